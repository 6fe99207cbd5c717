"""Chart scorer: hostile answers of 64k characters finish, and what they expand to is bounded.

Each test runs under a time limit far above what it takes; sizes are checked, not seconds.
"""

from __future__ import annotations

import random

import pytest

from reward.task_scorers.chart_deplot import chart_details, process_chart_deplot_task
from reward.task_scorers.chart_deplot.html_grid import MAX_GRID_CELLS, read_html_tables
from reward.task_scorers.chart_deplot.mdlist import MAX_PATH_CHARS, list_paths, read_items
from reward.task_scorers.chart_deplot.mermaid import MAX_EDGES, MAX_LABEL_CHARS, read_flowchart

pytestmark = pytest.mark.timeout(60)

SIZE = 64_000
TABLE = "|k|v|\n|-|-|\n|a|1|\n|b|x|"
LIST = "- a\n- b"
CHART = "flowchart TD\nA[x] -->|y| B"


def repeat(unit: str, size: int = SIZE) -> str:
    return unit * (size // len(unit))


def lines(make, size: int = SIZE) -> str:
    parts: list[str] = []
    length = 0
    while length < size:
        parts.append(make(len(parts)))
        length += len(parts[-1]) + 1
    return "\n".join(parts)


def word(rng: random.Random, length: int, letters: str = "abcdefgh") -> str:
    return "".join(rng.choices(letters, k=length))


UNITS = [
    "|", "\\|", "|-", "-|-\n", ":|", "+-", "=", "1,", "1,234,", "$", "$x$ ", "\\text{", "(", "-", ".", "<br", "<table",
    "<table><tr><td>", "</table", "<tr>", "&amp", "q1 ", " ", "\t- a\n", "- a: ", "[", "A((x) ", "A[[x] ", '"', 'A["', "A@{",
    'A@{"', "A -- ", "A == b", "A-.", "<", ";", "A-->|", "A-->", "subgraph [", 'style A "', "&", "A&", "x--", "~", ":::",
    "e1@", "#quot;", '"\n', "@{\n", '[({"})]', "\ud800", "\x00", "９", "—", "a:", "1.", "•", "\u3000", "%%", "```\n",
    "graph TD\n", "- - ", "1)a\n", "A>", "A>x] ",
]  # fmt: skip


@pytest.mark.parametrize("size", [16_000, pytest.param(SIZE, marks=pytest.mark.slow)])
@pytest.mark.parametrize("unit", UNITS, ids=ascii)
def test_repeats_of_any_unit_in_any_place_finish(unit, size):
    text = repeat(unit, size)
    for response, reference in [
        (text, TABLE),
        (f"{TABLE}\n|{text}|1|\n|x|{text[:100]}|", TABLE),
        (f"<table><tr><td>{text}<td>1<tr><td>a<td>1", TABLE),
        (f"- {text}\n- b", LIST),
        (f"{CHART}\n{text}", CHART),
        (f"{CHART}\nC[{text[:9_000]}] --> D{{{text[:9_000]}", CHART),
    ]:
        result = process_chart_deplot_task(response, reference)
        assert result["decision"] == "scored"
        assert 0 <= result["reward"] <= 1
        assert len(result["analysis"]) < 4_000


@pytest.mark.parametrize("unit", UNITS, ids=ascii)
def test_a_hostile_reference_is_scored_or_dropped(unit):
    text = repeat(unit, 8_000)
    for reference in (text, f"{TABLE}\n|{text}|1|", f"{CHART}\n{text}", f"- {text}\n- b"):
        assert process_chart_deplot_task(TABLE, reference)["decision"] in ("scored", "bad_reference", "empty_reference")


RNG = random.Random(7)
HEAD = "|k|v|\n|-|-|\n"
PAIRS = {
    "short rows": lambda: HEAD + lines(lambda i: f"{i:x}|{RNG.randint(1, 9)}"),
    "five-letter rows": lambda: HEAD + lines(lambda i: f"{word(RNG, 5)}|1"),
    "similar rows": lambda: HEAD + lines(lambda i: f"aaaaaaaaaaaaaaaaaaaaaaaa{RNG.randint(0, 99)}|{i}"),
    "close values of one row": lambda: HEAD + lines(lambda i: f"a|{1_000_000 + i * RNG.randint(1, 5)}"),
    "text values": lambda: HEAD + lines(lambda i: f"{word(RNG, 5)}|{word(RNG, 8)}"),
    "long text values": lambda: HEAD + lines(lambda i: f"k|{word(RNG, 600)}"),
    "large exponents": lambda: HEAD + lines(lambda i: f"a|1e{900_000 + i}"),
    "long numbers": lambda: HEAD + lines(lambda i: f"a|{word(RNG, 5_000, '0123456789')}"),
    "wide grid": lambda: (
        "|" + "|".join(word(RNG, 6) for _ in range(90)) + "|\n|" + "-|" * 90 + "\n"
        + lines(lambda i: word(RNG, 6) + "|" + "|".join(str(RNG.randint(10, 99)) for _ in range(89)))
    ),
    "flat list": lambda: lines(lambda i: f"- {word(RNG, 6)}"),
    "similar list": lambda: lines(lambda i: f"- aaaaaaaaaaaaaaaa{word(RNG, 4)}"),
    "list of lengths": lambda: lines(lambda i: "- " + "a" * RNG.randint(1, 100)),
    "deep list": lambda: lines(lambda i: "\t" * i + f"- a{word(RNG, 1)}\n" + "\t" * (i + 1) + "- c"),
    "list under a long root": lambda: f"- {word(RNG, 30_000)}\n" + lines(lambda i: f" - {word(RNG, 2)}", 33_000),
    "edges": lambda: "graph TD\n" + lines(lambda i: f"{word(RNG, 3)}-->{word(RNG, 3)}"),
    "one chain": lambda: "graph TD\n" + "-->".join(word(RNG, 4) for _ in range(9_000)),
    "nodes": lambda: "graph TD\nA-->B\n" + lines(lambda i: f"{i:x}[abcdefghij{word(RNG, 2)}]"),
    "edges of a long text": lambda: f"graph TD\nA[{word(RNG, 30_000)}]\n" + lines(lambda i: f"A-->{i}", 33_000),
    "groups": lambda: "graph TD\n" + repeat("ab&", 30_000) + "c-->" + repeat("de&", 30_000) + "f",
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_two_different_answers_of_64k_characters_are_compared(name):
    response, reference = PAIRS[name](), PAIRS[name]()
    details = chart_details(response, reference)
    assert details["decision"] == "scored"
    assert 0 <= details["similarity"]["strict"] <= 1
    same = process_chart_deplot_task(
        f"{reference}\n", f" {reference}" if name == "long numbers" else f"{reference}\n\n"
    )
    assert same["reward"] == 1.0


def test_spans_do_not_blow_up_the_grid():
    for html in (
        "<table>" + "<tr><td rowspan=1000 colspan=1000>x<td>y</tr>" * 1_400,
        "<table>" + "<tr><td colspan=99999>x</tr>" * 2_000,
        "<table><tr>" + "<td rowspan=1000 colspan=1000>x" * 2_000 + "<tr>" * 2_000,
    ):
        (table,) = read_html_tables([html])
        assert sum(map(len, table.rows)) <= 4 * MAX_GRID_CELLS
    many = [f"<table><tr><td rowspan=1000 colspan=1000>{i}" + "<tr>" * 45 for i in range(250)]
    assert sum(len(row) for table in read_html_tables(many) for row in table.rows) <= 4 * MAX_GRID_CELLS


def test_groups_of_nodes_do_not_blow_up_the_edges():
    names = " & ".join(f"n{i}" for i in range(5_000))
    chart = read_flowchart(f"graph TD\n{names} --> {names}")
    assert chart.edge_count == 25_000_000
    assert len(chart.edges) == MAX_EDGES


def test_texts_of_nodes_are_cut():
    assert len(read_flowchart(f"graph TD\nA[{'x' * 60_000}] --> B").nodes[0]) == MAX_LABEL_CHARS


def test_paths_are_cut_when_they_would_multiply_a_long_name():
    paths = list_paths(read_items("- " + "x" * 30_000 + "\n" + " - y\n" * 6_000))
    assert len(paths) == 6_001
    assert sum(map(len, paths)) <= MAX_PATH_CHARS
    assert all(path.endswith("/y") for path in paths[1:])


def test_lone_surrogates_and_control_characters_are_text():
    table = "| | v |\n|---|---|\n| a\ud800b | 1 |\n| \x00\x0b | 2 |"
    assert process_chart_deplot_task(table + "\n", table + "\n\n.")["reward"] == 1.0
    assert process_chart_deplot_task("<table><tr><td>a\udfff<td>k<tr><td>x<td>1", TABLE)["decision"] == "scored"


def test_nothing_is_evaluated(tmp_path):
    """Public case: an answer that is an expression."""
    target = tmp_path / "made"
    answer = f"| | v |\n|---|---|\n| a | __import__('pathlib').Path('{target}').touch() |"
    process_chart_deplot_task(answer, answer + "\n| b | 1 |")
    assert not target.exists()
    assert process_chart_deplot_task("{'a': 1}", "{'a': 2}")["decision"] == "bad_reference"
