"""Chart scorer: properties over random charts, and the fast matching against brute force."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rapidfuzz.distance import Indel, Levenshtein

from reward.task_scorers.chart_deplot import agree, assignment, process_chart_deplot_task
from reward.task_scorers.chart_deplot.assignment import TEXT, assign, summed_similarity, text_ratio
from reward.task_scorers.chart_deplot.edges import EDGE, edge_ratio
from reward.task_scorers.chart_deplot.tolerance import TOLERANCES
from reward.task_scorers.chart_deplot.triples import Triple

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = settings(max_examples=60, deadline=None)

WORDS = st.sampled_from(
    ["A", "B", "Tea", "Milk", "Apples", "Pears", "Bananas", "2019", "2020", "北京", "Group X", "n-1"]
)
VALUES = st.one_of(
    st.integers(-1500, 1500).map(str),
    st.decimals(-20, 20, places=2).map(str),
    st.sampled_from(["N/A", "high", "12%", "$3", "1,234", "-", "", "low level"]),
)


@st.composite
def grids(draw, min_rows: int = 1) -> list[list[str]]:
    columns = draw(st.lists(WORDS, min_size=2, max_size=4, unique=True))
    rows = draw(st.lists(WORDS, min_size=min_rows, max_size=5, unique=True))
    body = [[row, *(draw(VALUES) for _ in columns)] for row in rows]
    body[0][1] = "7"
    return [["", *columns], *body]


def markdown(grid: list[list[str]]) -> str:
    head, *body = ["| " + " | ".join(row) + " |" for row in grid]
    return "\n".join([head, "|" + "---|" * len(grid[0]), *body])


def html(grid: list[list[str]]) -> str:
    rows = ("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in grid)
    return "<table>" + "".join(rows) + "</table>"


NAMES = st.text("abcdefg hij", min_size=1, max_size=12).map(str.strip).filter(bool)
FLAT_LISTS = st.lists(NAMES, min_size=2, max_size=8).map(lambda names: [f"- {name}" for name in names])
TREES = st.lists(st.tuples(NAMES, st.lists(NAMES, max_size=3)), min_size=2, max_size=5)


def outline(tree: list[tuple[str, list[str]]]) -> str:
    return "\n".join(f"- {name}" + "".join(f"\n  - {child}" for child in children) for name, children in tree)


@st.composite
def flowchart_lines(draw) -> list[str]:
    count = draw(st.integers(2, 5))
    nodes = [f"N{i}[{draw(NAMES)}]" for i in range(count)]
    ends = st.integers(0, count - 1)
    links = draw(st.lists(st.tuples(ends, ends, st.sampled_from(["", "yes", "no"])), min_size=1, max_size=6))
    return nodes + [f"N{a} -->{f'|{text}|' if text else ''} N{b}" for a, b, text in links]


def flowchart(lines: list[str]) -> str:
    return "\n".join(["flowchart TD", *lines])


CHARTS = st.one_of(
    grids().map(markdown),
    grids().map(html),
    FLAT_LISTS.map("\n".join),
    TREES.map(outline),
    flowchart_lines().map(flowchart),
)
TEXTS = st.one_of(CHARTS, st.text(max_size=200), st.text('|-<table>[](){}"\n;:&@=.~%`graph TD1\\$', max_size=200))


def similarities(response: str, reference: str) -> dict[str, float]:
    return json.loads(process_chart_deplot_task(response, reference)["analysis"])["similarity"]


def slight(response: str, reference: str) -> float:
    return similarities(response, reference)["slight"]


@SETTINGS
@given(CHARTS)
def test_a_chart_scores_1_against_itself_without_the_shortcut_for_identical_answers(chart):
    response = f"{chart}\n\n.\n" if not chart.startswith("flowchart") else f"{chart}\n%% end\n"
    assert similarities(response, chart) == {"strict": 1.0, "slight": 1.0, "high": 1.0}


@SETTINGS
@given(TEXTS, CHARTS)
def test_scores_are_tenths_similarities_grow_with_the_tolerance_and_calls_repeat(response, reference):
    result = process_chart_deplot_task(response, reference)
    assert result["decision"] == "scored"
    assert result["reward"] in [k / 10 for k in range(11)]
    found = json.loads(result["analysis"])["similarity"]
    assert 0 <= found["strict"] <= found["slight"] + 1e-6 <= found["high"] + 2e-6 <= 1 + 2e-6
    assert process_chart_deplot_task(response, reference) == result


@SETTINGS
@given(TEXTS, TEXTS)
def test_any_pair_of_texts_gives_a_valid_result(response, reference):
    result = process_chart_deplot_task(response, reference)
    assert set(result) == {"analysis", "is_valid", "reward", "decision"}
    assert result["is_valid"] == (result["decision"] == "scored") == (result["reward"] >= 0)
    assert result["decision"] in ("scored", "empty_reference", "bad_reference")


@SETTINGS
@given(grids(), grids(), st.randoms(use_true_random=False))
def test_order_of_rows_and_columns_changes_nothing(response, reference, rng):
    def shuffled(grid):
        # The first columns stay: a running index is one in order only.
        order = [0, *rng.sample(range(1, len(grid[0])), len(grid[0]) - 1)]
        body = rng.sample(grid[1:], len(grid) - 1)
        return [[row[i] for i in order] for row in [grid[0], *body]]

    expected = similarities(markdown(response), markdown(reference))
    assert similarities(markdown(shuffled(response)), html(shuffled(reference))) == expected


@SETTINGS
@given(TREES, TREES, st.randoms(use_true_random=False))
def test_order_of_list_items_changes_nothing(response, reference, rng):
    def shuffled(tree):
        return [(name, rng.sample(children, len(children))) for name, children in rng.sample(tree, len(tree))]

    expected = similarities(outline(response), outline(reference))
    assert similarities(outline(shuffled(response)), outline(shuffled(reference))) == expected


@SETTINGS
@given(flowchart_lines(), flowchart_lines(), st.randoms(use_true_random=False))
def test_order_of_statements_and_names_of_ids_change_nothing(response, reference, rng):
    def shuffled(lines):
        return [line.replace("N", "node_") for line in rng.sample(lines, len(lines))]

    expected = similarities(flowchart(response), flowchart(reference))
    assert similarities(flowchart(shuffled(response)), flowchart(shuffled(reference))) == expected


@SETTINGS
@given(grids(min_rows=3), st.data())
def test_removing_a_row_from_a_right_table_never_helps(grid, data):
    gone = data.draw(st.integers(1, len(grid) - 1))
    filled = any(cell.strip() for cell in grid[gone][1:])
    less = slight(markdown(grid[:gone] + grid[gone + 1 :]), markdown(grid))
    assert less < 1 if filled else less <= 1


@SETTINGS
@given(FLAT_LISTS, st.data())
def test_removing_an_item_from_a_right_list_lowers_its_similarity(lines, data):
    gone = data.draw(st.integers(0, len(lines) - 1))
    left = lines[:gone] + lines[gone + 1 :]
    if len(left) >= 2:
        assert slight("\n".join(left), "\n".join(lines)) < 1


@SETTINGS
@given(flowchart_lines(), st.data())
def test_removing_an_edge_from_a_right_flowchart_lowers_its_similarity(lines, data):
    links = [index for index, line in enumerate(lines) if "-->" in line]
    gone = data.draw(st.sampled_from(links))
    if len(links) > 1:
        assert slight(flowchart(lines[:gone] + lines[gone + 1 :]), flowchart(lines)) < 1


@SETTINGS
@given(grids(), grids(), st.data())
def test_duplicate_and_blank_rows_and_tables_change_nothing(response, reference, data):
    """Rows of a table are a set; only a running index column would be broken by a copy, and none is drawn here."""
    expected = similarities(markdown(response), markdown(reference))
    copied = data.draw(st.sampled_from(response[1:]))
    blank = [""] * len(response[0])
    assert similarities(markdown([*response, copied]), markdown(reference)) == expected
    assert similarities(markdown([*response, blank, blank]), markdown(reference)) == expected
    assert similarities(f"{markdown(response)}\n\nand\n\n{markdown(response)}", markdown(reference)) == expected


@SETTINGS
@given(grids(), grids())
def test_a_row_that_agrees_with_nothing_never_helps(response, reference):
    junk = ["junk row that is nowhere", *("77777777" for _ in response[0][1:])]
    before, after = (slight(markdown(grid), markdown(reference)) for grid in (response, [*response, junk]))
    assert after <= before


@SETTINGS
@given(TREES, TREES)
def test_a_list_item_unlike_all_others_never_helps(response, reference):
    assert slight(outline(response) + "\n- ZZZZZZZZZZZZ", outline(reference)) <= slight(
        outline(response), outline(reference)
    )
    assert slight(outline(reference) + "\n- ZZZZZZZZZZZZ", outline(reference)) < 1


@SETTINGS
@given(FLAT_LISTS, st.data())
def test_a_duplicate_of_an_item_lowers_a_right_list(lines, data):
    copied = data.draw(st.sampled_from(lines))
    assert slight("\n".join([*lines, copied]), "\n".join(lines)) < 1


@SETTINGS
@given(flowchart_lines(), flowchart_lines())
def test_an_edge_between_nodes_unlike_all_others_never_helps(response, reference):
    junk = "J1[ZZZZZZZZZZ] -->|QQQQ| J2[XXXXXXXXXX]"
    assert slight(flowchart([*response, junk]), flowchart(reference)) <= slight(
        flowchart(response), flowchart(reference)
    )


# --- against brute force ----------------------------------------------------------------------------------------------


def agrees(ours: Triple, theirs: Triple, words: int, percent: int) -> bool:
    """The definition, pair by pair, in rational arithmetic."""

    def distance(text: str, reference: str) -> int:
        found = Levenshtein.distance(text, reference)
        return found if found <= min(words, len(reference) // 5) else 1_000

    straight = distance(ours.first, theirs.first) + distance(ours.second, theirs.second)
    crossed = distance(ours.second, theirs.first) + distance(ours.first, theirs.second)
    headers = min(straight, crossed)
    if isinstance(ours.value, Decimal) and isinstance(theirs.value, Decimal):
        deviation = abs(Fraction(ours.value) - Fraction(theirs.value))
        return headers <= words and deviation <= Fraction(percent, 100) * abs(Fraction(theirs.value))
    if isinstance(ours.value, str) and isinstance(theirs.value, str):
        return headers + distance(ours.value, theirs.value) <= words
    return False


def largest_matching(ours: list[Triple], theirs: list[Triple], words: int, percent: int) -> int:
    """Kuhn's augmenting paths."""
    partner: dict[int, int] = {}

    def augment(i: int, seen: set[int]) -> bool:
        for j, reference in enumerate(theirs):
            if j not in seen and agrees(ours[i], reference, words, percent):
                seen.add(j)
                if j not in partner or augment(partner[j], seen):
                    partner[j] = i
                    return True
        return False

    return sum(augment(i, set()) for i in range(len(ours)))


HEADERS = st.one_of(
    st.sampled_from(["", "a", "strawberry", "strawbery", "strawbrry", "blueberry sales", "bluebery sales", "2019"]),
    st.text("abcde", min_size=4, max_size=6),
)
NUMBERS = st.sampled_from([95, 96, 99, 100, 101, 104, 105, 110, -100, -104, 0, 1]).map(Decimal)
CELLS = st.tuples(
    HEADERS, HEADERS, st.one_of(NUMBERS, NUMBERS, st.sampled_from(["medium", "mediun", "high", "lowlevels"]))
)
TRIPLES = st.lists(CELLS, min_size=1, max_size=14).map(
    lambda cells: sorted({Triple(*sorted(cell[:2]), cell[2]) for cell in cells}, key=lambda t: (*t[:2], str(t.value)))
)


@settings(max_examples=150, deadline=None)
@given(TRIPLES, TRIPLES)
def test_matching_equals_brute_force_at_every_tolerance(ours, theirs):
    found = agree.match_triples(ours, theirs)
    for tolerance in TOLERANCES:
        pairs = found[tolerance.name]
        assert len(pairs) == largest_matching(ours, theirs, tolerance.words, tolerance.percent)
        assert len({pair[0] for pair in pairs}) == len({pair[1] for pair in pairs}) == len(pairs)
        assert all(agrees(a, b, tolerance.words, tolerance.percent) for a, b in pairs)


@settings(max_examples=100, deadline=None)
@given(st.lists(NUMBERS, min_size=1, max_size=12), st.lists(NUMBERS, min_size=1, max_size=12))
def test_past_the_limits_numbers_under_equal_headers_are_still_matched_optimally(ours, theirs):
    ours, theirs = ([Triple("a", "b", value) for value in sorted(set(side))] for side in (ours, theirs))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agree, "MAX_TRIPLE_PAIRS", 0)
        found = agree.match_triples(ours, theirs)
    for tolerance in TOLERANCES:
        assert len(found[tolerance.name]) == largest_matching(ours, theirs, tolerance.words, tolerance.percent)


@pytest.mark.parametrize("limit", ["MAX_TRIPLE_PAIRS", "MAX_TEXT_PAIRS", "MAX_CANDIDATES"])
def test_past_a_limit_matching_is_never_better_than_the_exact_one(monkeypatch, limit):
    rng = random.Random(5)
    texts = ["strawberry", "strawbery", "blueberry sales", "bluebery sales"]
    sides = [
        sorted({Triple(rng.choice(texts), "v", Decimal(rng.randint(90, 110))) for _ in range(40)}) for _ in range(2)
    ]
    exact = {name: len(pairs) for name, pairs in agree.match_triples(*sides).items()}
    monkeypatch.setattr(agree, limit, 0)
    for name, pairs in agree.match_triples(*sides).items():
        assert 0 < len(pairs) <= exact[name]
    assert all(len(pairs) == len(sides[0]) for pairs in agree.match_triples(sides[0], sides[0]).values())


def best_sum(ours: list, theirs: list, ratio, floor: Fraction) -> Fraction:
    if len(ours) > len(theirs):
        ours, theirs = theirs, ours

    def worth(first, second) -> Fraction:
        found = ratio(first, second)
        return found if found >= floor else Fraction(0)

    table = [[worth(first, second) for second in theirs] for first in ours]
    return max(
        sum((table[i][j] for i, j in enumerate(chosen)), Fraction(0))
        for chosen in itertools.permutations(range(len(theirs)), len(ours))
    )


SHORT = st.lists(st.text("abc", max_size=7), min_size=1, max_size=5)
EDGES = st.lists(
    st.tuples(*[st.sampled_from(["start", "stop", "stopp", "", "yes", "yess"])] * 3), min_size=1, max_size=5
)


@settings(max_examples=100, deadline=None)
@given(SHORT, SHORT)
def test_assignment_of_texts_equals_brute_force(ours, theirs):
    for tolerance in TOLERANCES:
        pairs = assign(ours, theirs, TEXT)[tolerance.name]
        assert summed_similarity(pairs, TEXT) == best_sum(ours, theirs, text_ratio, tolerance.floor)
        assert all(text_ratio(*pair) >= tolerance.floor for pair in pairs)


@settings(max_examples=100, deadline=None)
@given(EDGES, EDGES)
def test_assignment_of_edges_equals_brute_force(ours, theirs):
    for tolerance in TOLERANCES:
        pairs = assign(ours, theirs, EDGE)[tolerance.name]
        assert summed_similarity(pairs, EDGE) == best_sum(ours, theirs, edge_ratio, tolerance.floor)


@SETTINGS
@given(st.text("abcdé文", max_size=30), st.text("abcdé文", max_size=30))
def test_ratio_is_that_of_the_library(first, second):
    assert float(text_ratio(first, second)) == pytest.approx(Indel.normalized_similarity(first, second))


def random_names(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choice("abcd") for _ in range(rng.randint(3, 9))) for _ in range(count)]


@pytest.mark.parametrize("limits", [{"SMALL_ASSIGNMENT_WORK": 0}, {"SMALL_ASSIGNMENT_WORK": 0, "MAX_LINKS": 0}])
def test_groups_of_linked_items_are_solved_as_well_as_the_whole(monkeypatch, limits):
    ours, theirs = random_names(1, 60), random_names(2, 50)
    whole = {name: summed_similarity(pairs, TEXT) for name, pairs in assign(ours, theirs, TEXT).items()}
    for name, value in limits.items():
        monkeypatch.setattr(assignment, name, value)
    assert {name: summed_similarity(pairs, TEXT) for name, pairs in assign(ours, theirs, TEXT).items()} == whole


@pytest.mark.parametrize("limits", [{"MAX_WORK": 300}, {"MAX_ASSIGNMENT_WORK": 1}, {"MAX_WORK": 1}])
def test_past_a_limit_assignment_is_valid_order_free_and_never_better_than_the_exact_one(monkeypatch, limits):
    ours, theirs = random_names(3, 60), random_names(3, 30) + random_names(4, 20)
    exact = {name: summed_similarity(pairs, TEXT) for name, pairs in assign(ours, theirs, TEXT).items()}
    for name, value in limits.items():
        monkeypatch.setattr(assignment, name, value)
    found = assign(ours, theirs, TEXT)
    shuffled = assign(random.Random(1).sample(ours, 60), random.Random(2).sample(theirs, 50), TEXT)
    for tolerance in TOLERANCES:
        total = summed_similarity(found[tolerance.name], TEXT)
        assert 0 < total <= exact[tolerance.name]
        assert total == summed_similarity(shuffled[tolerance.name], TEXT)
        assert all(text_ratio(*pair) >= tolerance.floor for pair in found[tolerance.name])
    assert summed_similarity(assign(ours, ours[::-1], TEXT)["slight"], TEXT) == len(ours)


def test_the_same_in_processes_with_other_hash_seeds():
    code = (
        "from reward.task_scorers.chart_deplot import process_chart_deplot_task as f\n"
        "t='| | a | b |\\n|---|---|---|\\n' + ''.join(f'| strawberry {i} | {i} | x{i} |\\n' for i in range(9))\n"
        "print(f(t.replace('strawb', 'strab').replace('5', '6'), t))\n"
        "m='flowchart TD\\nA[one] --> B[two] & C[three]\\nC -->|x| A'\n"
        "print(f(m.replace('two', 'tow'), m), f('- ab\\n- abc\\n- abd', '- abd\\n- ab\\n- abe'))\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "4242")
    }
    assert len(outputs) == 1
