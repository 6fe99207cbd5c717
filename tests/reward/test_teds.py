"""TEDS: exact against a plain reference implementation, and right on the inputs that broke public tools."""

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reward.task_scorers import teds as teds_module
from reward.task_scorers.table_tree import Cell, Table
from reward.task_scorers.teds import pair_tables, table_similarity, teds
from tests.reward.reference_tree_edit import reference_teds
from tests.reward.table_strategies import similar_tables, tables


def grid(rows: int, columns: int, text: str = "") -> Table:
    return Table(((Cell(text),) * columns,) * rows)


def numbered(rows: int, columns: int) -> Table:
    return Table(tuple(tuple(Cell(f"{i}.{j}") for j in range(columns)) for i in range(rows)))


def html(*rows: str) -> str:
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


PUBLIC_CASES = {
    "teds-01: the denominator counts tree nodes, not tags inside cells": (
        '<table border="1"><tr><td>序号</td><td>税率' + "<br/>" * 500 + "</td></tr></table>",
        '<table border="1"><tr><td>二</td><td>【增值税】</td><td></td><td>1040450.72</td><td>9%</td></tr>'
        "<tr><td>三</td><td>【税后】</td><td></td><td>12601014.21</td><td></td></tr></table>",
        2.25 / 13,
    ),
    "teds-02: header text counts": (
        html("<th>WRONG</th><th>XX</th>", "<td>1</td><td>2</td>"),
        html("<th>A</th><th>B</th>", "<td>1</td><td>2</td>"),
        5 / 7,
    ),
    "teds-04: thead and tbody are transparent": (
        "<table><thead><tr><td>A</td></tr></thead><tbody><tr><td>1</td></tr></tbody></table>",
        html("<td>A</td>", "<td>1</td>"),
        1.0,
    ),
    "teds-05: two empty tables": ("<table></table>", "<table></table>", 1.0),
    "teds-07: a span with a unit": (html('<td colspan="2px">a</td>'), html('<td colspan="2">a</td>'), 1.0),
    "teds-10: a wrapped table": ("<div>" + html("<td>a</td>") + "</div>", html("<td>a</td>"), 1.0),
    "teds-11: no html and body around": (
        html("<td>a</td>"),
        "<html><body>" + html("<td>a</td>") + "</body></html>",
        1.0,
    ),
    "teds-15: a model looping on empty rows": (
        html(*["<td></td>" * 4] * 1000),
        html(*["<td>v</td>" * 4] * 6),
        7 / 5001,
    ),
    "th is td": (html("<th>a</th>"), html("<td>a</td>"), 1.0),
}


@pytest.mark.parametrize(("pred", "ref", "expected"), PUBLIC_CASES.values(), ids=PUBLIC_CASES)
def test_public_case(pred, ref, expected):
    assert teds(pred, ref) == pytest.approx(expected, abs=1e-9)
    assert teds(ref, pred) == pytest.approx(expected, abs=1e-9)


def test_public_case_teds_16_fractional_cell_cost():
    """teds-16: a 50x10 table with ten cells changed in one of ten characters and one removed."""
    reference = Table(tuple(tuple(Cell(f"{i:04}-{j:04}x") for j in range(10)) for i in range(50)))
    rows = [list(row) for row in reference.rows]
    for i in range(10):
        rows[i][0] = Cell(rows[i][0].text[:-1] + "y")
    rows[20].pop()
    content, structure = table_similarity(Table(tuple(map(tuple, rows))), reference)
    assert content == pytest.approx(1 - (10 * 0.1 + 1) / 551, abs=1e-9)
    assert round(content, 3) == 0.996
    assert structure == pytest.approx(1 - 1 / 551, abs=1e-9)


@settings(max_examples=150, deadline=None)
@given(tables(), tables())
def test_equals_the_reference_implementation_on_unrelated_tables(first, second):
    content, structure = table_similarity(first, second)
    assert content == pytest.approx(reference_teds(first, second), abs=1e-9)
    assert structure == pytest.approx(reference_teds(first, second, structure_only=True), abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(similar_tables())
def test_equals_the_reference_implementation_on_edited_tables(pair):
    content, structure = table_similarity(*pair)
    assert content == pytest.approx(reference_teds(*pair), abs=1e-9)
    assert structure == pytest.approx(reference_teds(*pair, structure_only=True), abs=1e-9)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        # The general distance lets cells outlive their row, and empty rows and cells stand in for one another.
        (
            Table(((Cell("a"), Cell("b"), Cell("c"), Cell("d")),)),
            Table(((Cell("a"), Cell("b")), (Cell("c"), Cell("d")))),
        ),
        (Table(((Cell("a"),) * 4,)), Table(((),) * 5)),
        (Table(((), (), ())), Table(((Cell("a"),), (Cell("b"), Cell("c"))))),
        (Table(((Cell("a"),), ())), Table(((), (Cell("a"),)))),
        (Table(()), numbered(2, 2)),
    ],
)
def test_degenerate_shapes_equal_the_reference_implementation(first, second):
    for one, other in ((first, second), (second, first)):
        content, structure = table_similarity(one, other)
        assert content == pytest.approx(reference_teds(one, other), abs=1e-9)
        assert structure == pytest.approx(reference_teds(one, other, structure_only=True), abs=1e-9)


def test_equals_table_recognition_metric_on_a_larger_table():
    metric = pytest.importorskip("table_recognition_metric").TEDS
    first, second = numbered(9, 4), numbered(8, 5)
    documents = [f"<html><body>{table.to_html()}</body></html>" for table in (first, second)]
    content, structure = table_similarity(first, second)
    assert content == pytest.approx(metric()(*documents), abs=1e-9)
    assert structure == pytest.approx(metric(structure_only=True)(*documents), abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(tables(6, 6), tables(6, 6))
def test_symmetric_and_in_the_unit_interval(first, second):
    forward, backward = table_similarity(first, second), table_similarity(second, first)
    assert forward == pytest.approx(backward, abs=1e-12)
    content, structure = forward
    assert 0.0 <= content <= structure + 1e-12 <= 1.0 + 1e-12


@settings(max_examples=50, deadline=None)
@given(tables(6, 6))
def test_a_table_is_fully_similar_to_itself(table):
    assert table_similarity(table, table) == (1.0, 1.0)
    assert teds(table.to_html(), table.to_html()) == 1.0


@settings(max_examples=50, deadline=None)
@given(tables(5, 4), st.data())
def test_dropping_a_row_or_a_cell_or_adding_an_empty_row_never_helps(table, data):
    rows = list(table.rows)
    damaged = [rows[:i] + rows[i + 1 :] for i in range(len(rows))]
    damaged += [
        [*rows[:i], row[:j] + row[j + 1 :], *rows[i + 1 :]] for i, row in enumerate(rows) for j in range(len(row))
    ]
    at = data.draw(st.integers(0, len(rows)))
    damaged.append([*rows[:at], (), *rows[at:]])
    for version in damaged:
        content, structure = table_similarity(Table(tuple(version)), table)
        assert content < 1.0
        assert structure < 1.0


def test_more_empty_rows_are_worse():
    values = [table_similarity(Table(numbered(4, 3).rows + ((),) * extra), numbered(4, 3))[0] for extra in range(6)]
    assert values == sorted(values, reverse=True)
    assert len(set(values)) == len(values)


def test_spans_and_texts_cost_what_they_should():
    plain = html("<td>abcd</td><td>x</td>")
    assert teds(html("<td>abcx</td><td>x</td>"), plain) == pytest.approx(1 - 0.25 / 4)
    assert teds(html("<td>abcx</td><td>x</td>"), plain, structure_only=True) == 1.0
    spanned = html('<td rowspan="2">abcd</td><td>x</td>')
    assert teds(spanned, plain) == pytest.approx(1 - 1 / 4)
    assert teds(spanned, plain, structure_only=True) == pytest.approx(1 - 1 / 4)


def test_sides_without_a_table():
    assert teds("no table", html("<td>a</td>")) == 0.0
    assert teds(html("<td>a</td>"), "") == 0.0
    assert teds("", "") == 1.0


def test_tables_are_paired_optimally_not_first_come():
    a, b = numbered(3, 3), grid(3, 3, "zzz")
    near_b = Table(((Cell("zz0"),) * 3,) * 3)
    pairs = pair_tables([near_b, a], [a, b])
    assert [(i, j) for i, j, *_ in pairs] == [(0, 1), (1, 0)]
    assert pairs[1][2:] == (1.0, 1.0)
    # Greedy pairing would give x its best partner p (0.9 + …) and leave y with nothing in common with q.
    x, y = grid(1, 4, "aaaaaaaa"), grid(1, 4, "aaaaaabb")
    p, q = grid(1, 4, "aaaaaaab"), grid(1, 4, "aaaaaaaa")
    assert [(i, j) for i, j, *_ in pair_tables([x, y], [p, q])] == [(0, 1), (1, 0)]


def test_pairing_needs_equally_many_tables():
    with pytest.raises(ValueError, match="1 tables with 2"):
        pair_tables([grid(1, 1)], [grid(1, 1), grid(1, 1)])


def test_a_page_of_very_many_tables_is_paired_in_order():
    many = [Table(((Cell(str(i)),),)) for i in range(teds_module.MAX_PAIRED_TABLES + 1)]
    pairs = pair_tables([*many[:-1], grid(1, 2)], many)
    assert [(i, j) for i, j, *_ in pairs] == [(i, i) for i in range(len(many))]
    assert all(pair[2:] == (1.0, 1.0) for pair in pairs[:-1])
    assert pairs[-1][3] == pytest.approx(1 - 1 / 4)


@pytest.fixture
def sequences_only(monkeypatch):
    """Make every table too large for the exact distance."""
    monkeypatch.setattr(teds_module, "MAX_EXACT_NODE_PAIRS", 0)


def test_the_approximation_for_large_tables_is_close_and_monotone(sequences_only):
    reference = numbered(40, 5)
    values = [table_similarity(Table(reference.rows[:keep]), reference) for keep in range(40, 0, -1)]
    assert values[0] == (1.0, 1.0)
    assert all(before[k] > after[k] for before, after in pairwise(values) for k in (0, 1))
    assert values[20][0] == pytest.approx(1 - 20 * 6 / 241)
    noisy = Table(tuple(tuple(Cell(cell.text + "x") for cell in row) for row in reference.rows))
    approximate = table_similarity(noisy, reference)
    assert approximate[1] == 1.0
    assert 0.7 < approximate[0] < 1.0


@settings(max_examples=50, deadline=None)
@given(pair=similar_tables())
def test_the_approximation_stays_in_range_and_below_structure(pair):
    content, structure = teds_module._sequence_similarity(*pair)
    assert 0.0 <= content <= structure + 1e-12 <= 1.0 + 1e-12


def test_large_tables_get_a_value():
    rows = Table(((Cell(""),) * 14,) * 1000)
    assert table_similarity(rows, rows) == (1.0, 1.0)
    content, structure = table_similarity(Table(rows.rows[:900]), rows)
    assert content == structure == pytest.approx(1 - 100 * 15 / 15001)


def test_works_where_no_cache_folder_can_be_written(tmp_path):
    """A read-only installation without a home folder must compile, not fail."""
    package = tmp_path / "reward" / "task_scorers"
    package.mkdir(parents=True)
    source = Path(teds_module.__file__).with_name("tree_edit.py")
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a cache folder would go")
    (package / "__pycache__").write_text("a file where a cache folder would go")
    (package / "tree_edit.py").write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    program = (
        "import numpy as np; from reward.task_scorers.tree_edit import FlatTables, table_edit_distances as d\n"
        "flat = FlatTables(*(np.array(v, dtype=np.int32) for v in ([0, 1], [0, 1], [0], [0])))\n"
        "print(d(flat, flat, np.array([[0.25]]), np.array([[0, 0]]))[0])"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": str(tmp_path),
        "HOME": str(blocked),
        "XDG_CACHE_HOME": str(blocked),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "0.25"
