"""Answers of about 64,000 characters, built to be slow, deep or large; and what each costs in ``compute_score``.

    python benchmarks/hostile_answers.py [--task Parsing] [--json]

Each answer is scored against a normal reference, against itself with one end cut, and as the reference of a normal
answer. Runs under a memory limit; prints the slowest. The test suite reads the JSON lines.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

SIZE = 64_000
CASE_LIMIT_S = 20
FIRST_CALL_S = 0.25
ADDRESS_SPACE = 8 << 30

NORMAL = {
    "Spotting": "<ref>Total</ref><quad>(10,20),(90,40)</quad><ref>9.50</ref><quad>(10,50),(90,70)</quad>",
    "Layout": "A page<hy-meta><layout>paragraph</layout><poly>(1,1),(90,1),(90,40),(1,40)</poly></hy-meta>",
    "Parsing": "A page.\n\n<table><tr><td>a</td><td>b</td></tr><tr><td>1</td><td>2</td></tr></table>",
    "IE": '{"total": "9.50", "items": [{"name": "tea"}]}',
    "chart_deplot": "| | 2019 | 2020 |\n|---|---|---|\n| A | 10 | 20 |\n| B | 30 | 40 |",
}
_EXTRA_NORMAL = {
    "chart_deplot": ("graph TD\nA[a] --> B[b]\nB --> C[c]", "- a\n  - b\n- c\n- d"),
    "Spotting": ("Total(10,20),(90,40)", '[{"box": [10, 20, 90, 40], "text": "Total"}]'),
    "Layout": ('[{"layout_type": "table", "bbox": [[1, 1], [9, 9]], "text": "t"}]',),
    "Parsing": ("A page of text with $x^2$.",),
}


def _fill(unit: str, size: int = SIZE) -> str:
    return (unit * (size // len(unit) + 1))[:size]


def _rows(unit: str, head: str = "", tail: str = "", size: int = SIZE) -> str:
    """Whole units between a head and a tail; ``#`` in the unit counts them."""
    parts, length, index = [head], len(head) + len(tail), 0
    while length < size:
        parts.append(unit.replace("#", str(index)))
        length += len(parts[-1])
        index += 1
    return "".join([*parts, tail])


def _repeats() -> dict[str, str]:
    units = (
        "a", "ab", "的", "9", " ", "\n", "\n\n", " \t", "x\n", "\\", "$", "$a$", "&", "&amp;", "&#", "<", ">",
        "<a ", "</", "(", ")", "[", "{", "}", '{"a":', "[[", "|", "|-", "|---|\n", "- a\n", "-", "--", "-->",
        "A-->", "A&", "#", "*", ":", "<table>", "<table><tr><td>", "<tr>", "<td>", "</td>", "<tr></tr>",
        "<thead>", "<br>", "<hy-meta>", "<hy-meta><layout>", "<quad>", "<quad></quad>", "<ref>", "<ref></ref>",
        "<pos_1>", "<poly>", "(1,", "(1,2),", "(1,2),(3,4)", "(1,2)(3,4)", "<think>", "<answer>", "</answer>",
        "<think></think>", "<answer></answer>", "<|", "<|a|>", "<!--", "<![CDATA[", "\\left(", "\\frac{",
        "\\frac{a}{", "x^{", "_{", "\\text{", "\\begin{array}{c}", "\\begin{aligned}", "\\(", "\\[", "\\\\",
        "```", "```json\n", "```mermaid\n", "graph TD\n", "subgraph a\n", "A[", "A[a]-->|", "A(((", "A>", "%%",
        ";", ",", '"', "'", "\ud800", "\udc00\ud800", "\x00", "\u200b", "\u0301", "e\u0301", "\u3000", "\uff11",
        "\U0001f600", "\u202e", "𝟘", "ﬃ", "½", "1e999,", "NaN ", "- NaN\n", "0.", "1,234", "%", "$1",
        "[[1,2,3,4],", '{"box":[1,2,3,4],"text":"a"},',
    )  # fmt: skip
    return {f"repeat {unit[:20]!a}": _fill(unit) for unit in units}


def _boxes() -> dict[str, str]:
    rng = random.Random(1)

    def item(index: int) -> tuple[int, int, int, int]:
        x, y = rng.randint(0, 900), rng.randint(0, 900)
        return x, y, x + rng.randint(1, 100), y + rng.randint(1, 100)

    spread = [item(index) for index in range(500)]
    quads = "".join(f"<ref>t{i}</ref><quad>({a},{b}),({c},{d})</quad>" for i, (a, b, c, d) in enumerate(spread))
    polygons = "".join(
        f"t{i}<hy-meta><layout>text</layout><poly>({a},{b}),({c},{b}),({c},{d}),({a},{d})</poly></hy-meta>"
        for i, (a, b, c, d) in enumerate(spread)
    )
    slanted = "".join(
        f"<hy-meta><layout>text</layout><poly>({a},{b + 3}),({c + 3},{b}),({c},{d + 3}),({a - 3},{d})</poly></hy-meta>"
        for a, b, c, d in [(100 + i % 5, 100, 800, 800) for i in range(500)]
    )
    points = ",".join(f"({rng.randint(0, 999)},{rng.randint(0, 999)})" for _ in range(7000))
    digits = "9" * 4000
    return {
        "500 boxes": quads,
        "500 identical boxes": "<ref>t</ref><quad>(1,1),(90,90)</quad>" * 500,
        "identical boxes": _fill("<ref></ref><quad>(1,1),(90,90)</quad>"),
        "nearly identical boxes": _rows("<ref>t#</ref><quad>(1,1),(990,99#)</quad>"),
        "identical plain items": _fill("a(1,1),(9,9)"),
        "identical JSON items": _rows('{"box": [1, 1, 9, 9], "text": "#"},', "[", '{"box": [1, 1, 9, 9], "text": ""}]'),
        "JSON items without boxes": _rows("{},", "[", "{}]"),
        "500 polygons": polygons,
        "500 slanted overlapping polygons": slanted,
        "a polygon of 7000 points": f"<hy-meta><layout>text</layout><poly>{points}</poly></hy-meta>",
        "a quad of 7000 points": f"<ref>t</ref><quad>{points}</quad>",
        "JSON polygon of 7000 points": json.dumps([{"layout_type": "text", "bbox": f"{points}", "text": "t"}]),
        "coordinates of 4000 digits": f"<ref>t</ref><quad>({digits},1),(2,{digits})</quad>t({digits},1),(2,{digits})",
        "polygon of 4000-digit coordinates": "<hy-meta><layout>t</layout><poly>"
        f"({digits},1),(2,{digits}),(3,3),(4,-{digits})</poly></hy-meta>",
        "plain coordinates of 4000 digits": f"t({digits}.5,1),(2,{digits})",
        "JSON numbers of 10000 digits": '[{"box": [' + "9" * 10000 + ', 1, 2, 3], "text": "a"}]',
        "JSON numbers of 4000 digits": f'[{{"box": [{digits}, 1, 2, -{digits}], "text": "a"}}]',
        "JSON numbers that are none": '[{"box": [NaN, Infinity, -Infinity, 1e999], "text": "a"}, {"box": [1e308, 1, 2, 9]}]',
        "layout numbers that are none": '[{"layout_type": "a", "bbox": [[NaN, 1], [Infinity, 3], [1e308, 9], [1, -1e308]]}]',
        "lone surrogates in items": "<ref>\ud800a</ref><quad>(1,2),(30,40)</quad>",
    }


def _tables() -> dict[str, str]:
    digits = "9" * 4000
    return {
        "1000 rows": "<table>"
        + "".join(f"<tr><td>{i}</td><td>b{i % 7}</td><td>c</td></tr>" for i in range(1000))
        + "</table>",
        "1000 empty rows": "<table>" + "<tr><td></td><td></td><td></td><td></td></tr>" * 1000 + "</table>",
        "one row of cells": _rows("<td>#</td>", "<table><tr>", "</tr></table>"),
        "many tables": _rows("<table><tr><td>#</td></tr></table>"),
        "many empty tables": _fill("<table></table>"),
        "many tables of cells": _rows("<table><tr><td>#</td><td>b</td></tr><tr><td>c</td></tr></table>"),
        "huge spans": _fill('<table><tr><td colspan="1000" rowspan="1000">a</td></tr></table>'),
        "huge spans in one table": _rows('<tr><td colspan="1000" rowspan="1000">#</td></tr>', "<table>", "</table>"),
        "spans of 10000 digits": f'<table><tr><td colspan="{"9" * 10000}" rowspan="-{"9" * 10000}">a</td></tr></table>',
        "nested tables": _fill("<table><tr><td>a"),
        "nested divisions": _fill("<div>") + "<table><tr><td>a</td></tr></table>",
        "nested inline markup in a cell": "<table><tr><td>" + _fill("<b>", 60_000) + "</td></tr></table>",
        "attributes": "<table><tr><td " + _fill("a=b ", 60_000) + ">x</td></tr></table>",
        "an unclosed attribute": '<table><tr><td colspan="' + _fill("2", 60_000),
        "one large cell": "<table><tr><td>" + _fill("text ", 60_000) + "</td></tr></table>",
        "1000 Markdown rows": "| | v | w |\n|---|---|---|\n"
        + "".join(f"| row{i} | {i} | x{i} |\n" for i in range(1000)),
        "Markdown rows of one name": "| | v |\n|---|---|\n" + _fill("| a | 1 |\n"),
        "Markdown columns": "| a |"
        + _rows(" # |", size=20_000)
        + "\n"
        + _fill("|---", 20_000)
        + "\n| x |"
        + _rows(" # |", size=20_000),
        "loose pipes": _rows("a# | # | b#\n"),
        "numbers of 4000 digits in a table": f"| | v |\n|---|---|\n| a | {digits} |\n| b | -{digits}.5 |\n| c | 1e99999 |",
        "numbers that are none in a table": "| | v |\n|---|---|\n| a | NaN |\n| b | Infinity |\n| c | -inf |\n| d | 1_000 |",
        "text cells": "| | v |\n|---|---|\n" + _rows("| name | value number # |\n"),
    }


def _graphs() -> dict[str, str]:
    return {
        "ampersand product": "graph TD\n" + _rows("A# & ", size=30_000) + "Z --> " + _rows("B# & ", size=30_000) + "Y",
        "chained ampersand product": "graph TD\n" + " --> ".join([_rows("A# & ", size=500) + "Z"] * 100),
        "a long chain": "graph TD\nA" + _rows(" --> N#"),
        "many edges": "graph TD\n" + _rows("A# --> B#\n"),
        "many equal edges": "graph TD\n" + _fill("A --> B\n"),
        "many labelled nodes": "graph TD\n" + _rows("A#[label of node #]\n"),
        "unclosed shapes": "graph TD\n" + _fill("A[[(({{"),
        "unclosed labels": "graph TD\n" + _fill("A -->|x "),
        "quoted label": 'graph TD\nA["' + _fill('x"', 60_000),
        "comment lines": "graph TD\nA --> B\n" + _fill("%% a\nstyle A fill\n"),
        "statements": "graph TD;" + _rows("A#-->B#;"),
        "list of names": _rows("- item number #\n"),
        "deep list": "".join(f"{' ' * (2 * i)}- a\n" for i in range(250)),
        "very deep list": "".join(f"{' ' * i}- a\n" for i in range(350)),
        "list of separators": "- a\n- " + _fill("a: ", 60_000),
        "list of one chain": "- a\n- " + _fill("a -> ", 60_000),
        "numbered list": _rows("#. item\n"),
        "list of long names": _rows(f"- {'x' * 3000} #\n"),
    }


def _objects() -> dict[str, str]:
    return {
        "5000 fields": _rows('"k#": "v",', "{", '"z": ""}'),
        "fields of one name": _fill('{"a": "1",', 10)[:1] + _fill('"a": "1",')[:-9] + '"a": "2"}',
        "nested objects": '{"a":' * 10_000 + "1" + "}" * 10_000,
        "nested arrays": '{"a":' + "[" * 30_000 + "]" * 30_000 + "}",
        "nested objects 900 deep": '{"a":' * 900 + "1" + "}" * 900,
        "objects in text": _fill('{"a": "1"} '),
        "unclosed objects": _fill('{"a": "1" '),
        "fences with objects": _fill('```json\n{"a": "1"}\n```\n'),
        "unclosed fences": _fill('```json\n{"a": "1"\n'),
        "one long value": json.dumps({"total": _fill("text ", 60_000)}),
        "integers of 10000 digits": '{"total": ' + "9" * 10_000 + ', "b": -' + "9" * 4000 + "}",
        "JSON fields that are none": '{"a": NaN, "b": Infinity, "c": -Infinity, "d": 1e999, "e": -0.0}',
        "lone surrogates in fields": '{"\\ud800": "\\udfff", "a\ud800": "\udfff"}',
        "escapes": '{"a": "' + _fill("\\u0000", 60_000) + '"}',
        "backslashes": '{"a": "' + _fill("\\\\", 60_000) + '"}',
        "array of objects": _rows('{"a": "#"},', "[", '{"a": "1"}]'),
    }


def _texts() -> dict[str, str]:
    rng = random.Random(2)
    markup = ["<td>", "</td>", "<tr>", "<table>", "</table>", "(1,2)", "-->", "- ", *'|${}a" \n']
    return {
        "noise": "".join(chr(rng.randint(32, 0x9FFF)) for _ in range(SIZE)),
        "noise of ASCII": "".join(chr(rng.randint(32, 126)) for _ in range(SIZE)),
        "noise of markup": "".join(rng.choice(markup) for _ in range(20_000)),
        "two halves": _fill("a", SIZE // 2) + _fill("b", SIZE // 2),
        "a repeated paragraph": _fill("The same paragraph again and again, with a number 17.\n\n"),
        "coordinates in text": _fill("text (12,34),(56,78) "),
        "coordinates without end": "(1,2)" + _fill(",(3,4)") + ",(",
        "blanks then a letter": _fill(" ", SIZE - 1) + "x",
        "open brackets then text": _fill("((((", 60_000) + "a(1,2),(3,4)",
    }


def hostile_answers() -> dict[str, str]:
    """Name to text, the same in every process."""
    return {**_repeats(), **_texts(), **_boxes(), **_tables(), **_graphs(), **_objects()}


def pairings(task: str, answer: str, few: bool = False) -> Iterator[tuple[str, str, str]]:
    """(kind, response, reference) for one hostile answer; ``few`` leaves out what rarely adds anything."""
    yield "against a normal reference", answer, NORMAL[task]
    yield "against a part of it", answer, answer[len(answer) // 3 :]
    if few:
        return
    for reference in _EXTRA_NORMAL.get(task, ()):
        yield "against a normal reference", answer, reference
    yield "as the reference", NORMAL[task], answer
    yield "against itself", answer, answer
    yield "cut", answer[: -max(1, len(answer) // 100)], answer


def run_task(task: str, names: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """Score every hostile answer in its pairings; a pairing that runs for longer than the limit ends in "timeout"."""
    import reward_ocr

    def give_up(signum: int, frame: Any) -> None:
        raise TimeoutError(f"more than {CASE_LIMIT_S} s")

    def timed(name: str, response: str, reference: str) -> tuple[dict[str, Any], float]:
        signal.alarm(CASE_LIMIT_S)
        start = time.perf_counter()
        result = reward_ocr.compute_score("hostile", response, reference, {"task_type": task, "id": name})
        seconds = time.perf_counter() - start
        signal.alarm(0)
        return result, seconds

    signal.signal(signal.SIGALRM, give_up)
    repeats = _repeats()
    for name, answer in hostile_answers().items():
        if names and name not in names:
            continue
        results, slowest = [], 0.0
        for kind, response, reference in pairings(task, answer, few=name in repeats):
            result, seconds = timed(name, response, reference)
            if seconds > FIRST_CALL_S:
                # The first call of a code path pays for imports and compilation; the answer itself costs the second.
                seconds = min(seconds, timed(name, response, reference)[1])
            results.append({"kind": kind, "result": result})
            slowest = max(slowest, seconds)
        yield {"task": task, "name": name, "seconds": slowest, "peak_mib": peak_mib(), "results": results}


def peak_mib() -> int:
    """Peak resident memory of this program; getrusage's figure starts from the process that started it."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) // 1024 for line in status if line.startswith("VmHWM:"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=sorted(NORMAL), action="append", help="only this task (repeatable)")
    parser.add_argument("--name", action="append", help="only this answer (repeatable)")
    parser.add_argument("--json", action="store_true", help="a JSON object per answer, with its results")
    parser.add_argument("--slowest", type=int, default=10, metavar="N", help="answers to print per task (default: 10)")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    for task in options.task or NORMAL:
        records = []
        for record in run_task(task, options.name):
            if options.json:
                print(json.dumps(record), flush=True)
            records.append(record)
        if not options.json:
            print(f"{task}: {len(records)} answers, peak {max(record['peak_mib'] for record in records)} MiB")
            for record in sorted(records, key=lambda record: -record["seconds"])[: options.slowest]:
                decisions = sorted({entry["result"]["decision"] for entry in record["results"]})
                print(f"  {record['seconds'] * 1000:8.1f} ms  {record['name']}  {', '.join(decisions)}")


if __name__ == "__main__":
    main()
