"""Seeded answers and references of realistic size for every task: what the reward benchmark and the audit test run on.

    python benchmarks/reward_corpus.py --rows 5000 --seed 7 --out data.parquet [--planted planted.json]

writes a dataset as data/prepare_data.py would, with 2% planted defects, and what was planted where.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_WORDS = (
    "the",
    "of",
    "invoice",
    "total",
    "amount",
    "date",
    "page",
    "table",
    "figure",
    "model",
    "data",
    "result",
    "method",
    "value",
    "price",
    "order",
    "number",
    "company",
    "address",
    "street",
    "report",
    "annual",
    "growth",
    "market",
    "energy",
    "system",
    "network",
    "signal",
    "image",
    "text",
    "region",
    "layout",
)
_HAN = (
    "的一是在不了有和人这中大为上个国我以要他时来用们生到作地于出就分对成会可主发年动同工也能下过子说产种面而方后多定行"
)
_CATEGORIES = ("title", "paragraph", "table", "figure", "figure_title", "header", "footer", "table_title")
_SYMBOLS = (
    r"$\alpha + \frac{1}{2}$",
    r"$x_{i}^{2} \leq \sum_{k=1}^{n} a_k$",
    r"\(E = mc^2\)",
    r"$$\int_0^1 f(t)\,dt$$",
)


@dataclass(frozen=True)
class Sample:
    """An answer with its reference. ``family`` tells the formats of one task apart."""

    family: str
    task_type: str
    response: str
    ref_answer: str
    question: str = ""
    source_lang_text: str = ""
    target_lang: str = ""


def rule_corpus(seed: int, per_family: int) -> Iterator[Sample]:
    """``per_family`` samples of each rule family. An answer is its reference with a few errors; one in ten is exact."""
    for family, (task, make) in _FAMILIES.items():
        for index in range(per_family):
            rng = random.Random(f"{seed}/{family}/{index}")
            errors = 0.0 if rng.random() < 0.1 else rng.choice((0.02, 0.05, 0.15))
            reference = make(rng)
            yield Sample(family, task, reference.render(_Noise(rng, errors)), reference.render(_Noise(rng, 0.0)))


def judge_samples(seed: int, count: int) -> Iterator[Sample]:
    """Translation and VQA in turn."""
    for index in range(count):
        rng = random.Random(f"{seed}/judge/{index}")
        if index % 2:
            yield Sample("vqa", "VQA", str(rng.randint(1, 99)), str(rng.randint(1, 99)), question=f"{_words(rng, 6)}?")
        else:
            source = _han(rng, 30)
            yield Sample("translation", "Translation", _words(rng, 20), _words(rng, 20), "", source, "English")


class _Noise:
    """Misreadings at a rate; a rate of 0 is the reference itself."""

    def __init__(self, rng: random.Random, rate: float) -> None:
        self._rng, self._rate = rng, rate

    def hits(self) -> bool:
        return self._rate > 0 and self._rng.random() < self._rate

    def text(self, text: str) -> str:
        if not self._rate:
            return text
        return "".join(self._rng.choice("oO0l1I.,") if self.hits() else char for char in text)

    def number(self, value: int, spread: int = 6) -> int:
        return value + self._rng.randint(-spread, spread) if self._rate else value

    def kept(self, items: list[Any]) -> list[Any]:
        kept = [item for item in items if not self.hits()]
        return kept or items[:1]


@dataclass(frozen=True)
class _Reference:
    """A document that renders itself, exactly or with misreadings."""

    render: Callable[[_Noise], str]


def _words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choice(_WORDS) for _ in range(count))


def _han(rng: random.Random, count: int) -> str:
    return "".join(rng.choice(_HAN) for _ in range(count))


def _phrase(rng: random.Random, low: int, high: int) -> str:
    count = rng.randint(low, high)
    return _words(rng, count) if rng.random() < 0.5 else _han(rng, 3 * count)


def _boxes(rng: random.Random, count: int) -> list[tuple[int, int, int, int]]:
    boxes = []
    for _ in range(count):
        x, y = rng.randint(0, 800), rng.randint(0, 960)
        boxes.append((x, y, x + rng.randint(30, 200), y + rng.randint(12, 40)))
    return boxes


def _spotting(write: Callable[[list[tuple[str, tuple[int, ...]]]], str]) -> Callable[[random.Random], _Reference]:
    def make(rng: random.Random) -> _Reference:
        items = [(_phrase(rng, 1, 5), box) for box in _boxes(rng, rng.randint(20, 90))]

        def render(noise: _Noise) -> str:
            return write(
                [(noise.text(text), tuple(noise.number(v, 3) for v in box)) for text, box in noise.kept(items)]
            )

        return _Reference(render)

    return make


def _quads(items: list[tuple[str, tuple[int, ...]]]) -> str:
    return "".join(f"<ref>{text}</ref><quad>({a},{b}),({c},{d})</quad>" for text, (a, b, c, d) in items)


def _plain_pairs(items: list[tuple[str, tuple[int, ...]]]) -> str:
    return "".join(f"{text}({a},{b}),({c},{d})" for text, (a, b, c, d) in items)


def _box_objects(items: list[tuple[str, tuple[int, ...]]]) -> str:
    return json.dumps([{"box": list(box), "text": text} for text, box in items], ensure_ascii=False)


def _layout(rng: random.Random) -> _Reference:
    blocks = [(rng.choice(_CATEGORIES), box, _phrase(rng, 4, 40)) for box in _boxes(rng, rng.randint(8, 35))]

    def render(noise: _Noise) -> str:
        parts = []
        for category, (a, b, c, d), text in noise.kept(blocks):
            a, b, c, d = (noise.number(value, 3) for value in (a, b, c, d))
            points = f"({a},{b}),({c},{b}),({c},{d}),({a},{d})"
            parts.append(f"{noise.text(text)}<hy-meta><layout>{category}</layout><poly>{points}</poly></hy-meta>")
        return "\n".join(parts)

    return _Reference(render)


def _parsing(table_share: float) -> Callable[[random.Random], _Reference]:
    def make(rng: random.Random) -> _Reference:
        parts: list[Any] = []
        for _ in range(rng.randint(6, 20)):
            if rng.random() < table_share:
                rows, columns = rng.randint(4, 25), rng.randint(3, 7)
                parts.append([[_cell(rng) for _ in range(columns)] for _ in range(rows)])
            elif rng.random() < 0.25:
                parts.append(f"{_phrase(rng, 5, 15)} {rng.choice(_SYMBOLS)}")
            else:
                parts.append(_phrase(rng, 20, 80))

        def render(noise: _Noise) -> str:
            return "\n\n".join(
                noise.text(part) if isinstance(part, str) else _html_table(part, noise) for part in parts
            )

        return _Reference(render)

    return make


def _cell(rng: random.Random) -> str:
    return f"{rng.randint(0, 99999):,}.{rng.randint(0, 99):02}" if rng.random() < 0.6 else _phrase(rng, 1, 3)


def _html_table(cells: list[list[str]], noise: _Noise) -> str:
    rows = ("".join(f"<td>{noise.text(cell)}</td>" for cell in row) for row in cells)
    return "<table>" + "".join(f"<tr>{row}</tr>" for row in rows) + "</table>"


def _ie(rng: random.Random) -> _Reference:
    fields = {f"{rng.choice(_WORDS)}_{index}": _phrase(rng, 1, 6) for index in range(rng.randint(5, 25))}

    def render(noise: _Noise) -> str:
        kept = noise.kept(list(fields))
        return json.dumps({key: noise.text(fields[key]) for key in kept}, ensure_ascii=False, indent=2)

    return _Reference(render)


def _chart_table(rng: random.Random) -> _Reference:
    columns = [f"{2000 + index}" for index in range(rng.randint(2, 6))]
    rows = [
        (f"{_words(rng, 2)} {index}", [rng.randint(1, 9999) / 10 for _ in columns])
        for index in range(rng.randint(4, 15))
    ]

    def render(noise: _Noise) -> str:
        lines = ["|  | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
        for name, values in noise.kept(rows):
            read = (f"{value * 1.3 if noise.hits() else value:.1f}" for value in values)
            lines.append(f"| {noise.text(name)} | " + " | ".join(read) + " |")
        return "\n".join(lines)

    return _Reference(render)


def _chart_list(rng: random.Random) -> _Reference:
    nodes = [(rng.randint(0, 3), _words(rng, 3)) for _ in range(rng.randint(12, 40))]

    def render(noise: _Noise) -> str:
        lines, depth = [], -1
        for wanted, name in noise.kept(nodes):
            depth = min(wanted, depth + 1)
            lines.append(f"{'  ' * depth}- {noise.text(name)}")
        return "\n".join([*lines, "- end"])

    return _Reference(render)


def _chart_mermaid(rng: random.Random) -> _Reference:
    names = [_words(rng, 2) for _ in range(rng.randint(6, 25))]
    edges = [(rng.randrange(index), index, _words(rng, 1)) for index in range(1, len(names))]

    def render(noise: _Noise) -> str:
        lines = ["```mermaid", "flowchart TD"]
        for source, target, label in noise.kept(edges):
            lines.append(f"N{source}[{names[source]}] -->|{noise.text(label)}| N{target}[{noise.text(names[target])}]")
        return "\n".join([*lines, "```"])

    return _Reference(render)


_FAMILIES: dict[str, tuple[str, Callable[[random.Random], _Reference]]] = {
    "spotting, quads": ("Spotting", _spotting(_quads)),
    "spotting, plain": ("检测识别", _spotting(_plain_pairs)),
    "spotting, JSON": ("spotting_json", _spotting(_box_objects)),
    "layout": ("Layout", _layout),
    "parsing, text": ("Parsing", _parsing(0.0)),
    "parsing, tables": ("通用解析", _parsing(0.15)),
    "IE": ("IE", _ie),
    "chart, table": ("chart_deplot", _chart_table),
    "chart, list": ("图表解析", _chart_list),
    "chart, Mermaid": ("chart_deplot", _chart_mermaid),
}


@dataclass(frozen=True)
class Planted:
    """A defect put into a dataset."""

    row: int
    problem: str


def audit_dataset(seed: int, rows: int, defect_share: float = 0.02) -> tuple[list[dict[str, Any]], list[Planted]]:
    """Rows of every task as data/prepare_data.py writes them, and the defects that were planted in them.

    The problems are named as ``python -m reward audit`` names them.
    """
    rng = random.Random(f"{seed}/audit")
    per_family = rows // (len(_FAMILIES) + 2) + 1
    samples = [*rule_corpus(seed, per_family), *judge_samples(seed, 2 * per_family)]
    rng.shuffle(samples)
    records = [_record(index, sample) for index, sample in enumerate(samples[:rows])]
    planted = []
    for row in sorted(rng.sample(range(rows), round(rows * defect_share))):
        problem, change = rng.choice(_DEFECTS)
        while not change(records[row], rng):
            problem, change = rng.choice(_DEFECTS)
        planted.append(Planted(row, problem))
    return records, planted


def _record(index: int, sample: Sample) -> dict[str, Any]:
    return {
        "data_source": sample.task_type,
        "prompt": [{"role": "user", "content": "<image>" + sample.question}],
        "images": [f"/images/{index:06}.png"],
        "reward_model": {"style": "rule", "ground_truth": sample.ref_answer},
        "extra_info": {
            "task_type": sample.task_type,
            "question": sample.question,
            "img_path": [f"/images/{index:06}.png"],
            "source_lang_text": sample.source_lang_text,
            "target_lang": sample.target_lang,
            "index": index,
            "split": "train",
            "id": f"row-{index}",
        },
    }


def _unknown_task(record: dict[str, Any], rng: random.Random) -> bool:
    record["extra_info"]["task_type"] = rng.choice(("ocr", "docvqa", "spoting", "解析", "Pie_qa", "chart-deplot"))
    return True


def _ambiguous_task(record: dict[str, Any], rng: random.Random) -> bool:
    # Named so that the precedence leaves the row with its own scorer: the name is the only defect.
    both = {
        "Parsing": "layout_parsing",
        "通用解析": "parsing与版面分析",
        "IE": "ie_vqa",
        "Layout": "layout_translation",
    }
    name = both.get(record["extra_info"]["task_type"])
    if name:
        record["extra_info"]["task_type"] = name
    return name is not None


def _empty_reference(record: dict[str, Any], rng: random.Random) -> bool:
    if record["extra_info"]["task_type"] in ("Spotting", "检测识别", "spotting_json", "Layout"):
        return False
    record["reward_model"]["ground_truth"] = rng.choice(("", " \n ", "<answer></answer>", "<think>the total</think>\n"))
    return True


def _bad_reference(record: dict[str, Any], rng: random.Random) -> bool:
    garbage = {
        "Spotting": ("the page says hello", '```json\n[{"box": [1, 2, 3, 4], "text": "a"}]\n```', '[{"box": [1, 2, 3'),
        "spotting_json": ("nothing to see", '{"box": [1, 2, 3, 4], "text": "a"}'),
        "检测识别": ("(AP)", "<ref>cut off</ref><quad>(1,2),(3"),
        "Layout": ("a page with a table", "<hy-meta><layout>table</layout><poly>(1,2),(3", "```json\n[]\n```"),
        "Parsing": ("<|endoftext|>", "$ $", "(1,2),(3,4)"),
        "通用解析": ("</s>", "<quad>(1,2),(3,4)</quad>"),
        "chart_deplot": ("The chart shows growth.", "- one item only"),
        "图表解析": ("图中没有数据", "{}"),
    }
    choices = garbage.get(record["extra_info"]["task_type"])
    if choices:
        record["reward_model"]["ground_truth"] = rng.choice(choices)
    return choices is not None


def _empty_question(record: dict[str, Any], rng: random.Random) -> bool:
    info = record["extra_info"]
    if info["task_type"] not in ("VQA", "Translation"):
        return False
    info["question"] = info["source_lang_text"] = ""
    return True


_DEFECTS: tuple[tuple[str, Callable[[dict[str, Any], random.Random], bool]], ...] = (
    ("unknown_task", _unknown_task),
    ("ambiguous_task", _ambiguous_task),
    ("empty_reference", _empty_reference),
    ("bad_reference", _bad_reference),
    ("empty_question", _empty_question),
)


def write_parquet(records: list[dict[str, Any]], path: Path) -> None:
    """Write rows as one parquet file."""
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--planted", type=Path)
    options = parser.parse_args()
    records, planted = audit_dataset(options.seed, options.rows)
    write_parquet(records, options.out)
    if options.planted:
        options.planted.write_text(json.dumps([vars(defect) for defect in planted]), encoding="utf-8")
    print(f"{options.out}: {len(records)} rows, {len(planted)} planted defects")


if __name__ == "__main__":
    main()
