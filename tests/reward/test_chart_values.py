"""Chart scorer: which cells are numbers, and which numbers and texts agree."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest

from reward.task_scorers.chart_deplot import process_chart_deplot_task
from reward.task_scorers.chart_deplot.headers import display_header, normalize_header
from reward.task_scorers.chart_deplot.numbers import parse_value


def similarity(response: str, reference: str, tolerance: str = "slight") -> float:
    return json.loads(process_chart_deplot_task(response, reference)["analysis"])["similarity"][tolerance]


def one_cell(value: str, row: str = "A", column: str = "v") -> str:
    # A third column keeps the value's header in play: two-column tables ignore a differing one.
    return f"| | {column} | pad |\n|---|---|---|\n| {row} | {value} | |"


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("12", Decimal(12)),
        ("+12.50", Decimal("12.5")),
        ("-3", Decimal(-3)),
        ("\u22123", Decimal(-3)),
        ("\uff0d3", Decimal(-3)),
        ("５０％", Decimal(50)),
        ("50 %", Decimal(50)),
        ("50\\%", Decimal(50)),
        ("$1,234", Decimal(1234)),
        ("-$5", Decimal(-5)),
        ("€1,234,567.8", Decimal("1234567.8")),
        ("£7", Decimal(7)),
        ("¥8", Decimal(8)),
        ("￥8", Decimal(8)),
        ("1 234", Decimal(1234)),
        ("1，234", Decimal(1234)),
        (".5", Decimal("0.5")),
        ("5.", Decimal(5)),
        ("1e3", Decimal(1000)),
        ("1E-3", Decimal("0.001")),
        ("-0", Decimal(0)),
        ("1,23", "1,23"),
        ("1,2345", "1,2345"),
        ("1,00,000", "1,00,000"),
        ("0.5,123", "0.5,123"),
        ("1,234,56", "1,234,56"),
        ("N/A", "n/a"),
        ("nan", "nan"),
        ("inf", "inf"),
        ("Infinity", "infinity"),
        ("1_000", "1_000"),
        ("0x10", "0x10"),
        ("3k", "3k"),
        ("10²", "10²"),
        ("New York", "newyork"),
        ("%", ""),
        ("1e" + "9" * 50, "1e" + "9" * 50),
        ("1e-" + "9" * 50, Decimal(0)),
        ("0e" + "9" * 50, Decimal(0)),
    ],
)
def test_cell_values(cell, value):
    parsed = parse_value(cell)
    assert parsed == value
    assert isinstance(parsed, type(value))


def test_fault_negative_reference_accepted_any_number():
    """The deviation was divided by the signed reference, so that every number was "within" a negative one."""
    assert similarity(one_cell("500"), one_cell("-10")) == 0
    assert similarity(one_cell("-10.4"), one_cell("-10")) == 1
    assert similarity(one_cell("-11"), one_cell("-10")) == 0
    assert similarity(one_cell("10"), one_cell("-10"), "high") == 0


def test_fault_minus_sign_made_a_text():
    assert similarity(one_cell("\u22125"), one_cell("-5"), "strict") == 1


def test_fault_a_number_agreed_with_a_short_text():
    """Public case: N/A for 12 was five edits or fewer away and counted as right."""
    assert similarity(one_cell("N/A"), one_cell("12"), "high") == 0
    assert similarity(one_cell("12"), one_cell("N/A"), "high") == 0
    assert similarity(one_cell("1234567890x"), one_cell("1234567890"), "high") == 0


def test_fault_thousands_separators_counted_as_wrong():
    """Public case: 1,234 for 1234."""
    assert similarity(one_cell("1,234"), one_cell("1234"), "strict") == 1


@pytest.mark.parametrize(
    ("value", "reference", "strict", "slight", "high"),
    [
        ("1", "1.0", 1, 1, 1),
        ("1.05", "1", 0, 1, 1),
        ("0.95", "1", 0, 1, 1),
        ("1.0500000000000000001", "1", 0, 0, 1),
        ("1.1", "1", 0, 0, 1),
        ("1.1000001", "1", 0, 0, 0),
        ("0.9", "1", 0, 0, 1),
        ("2.1", "2", 0, 1, 1),
        ("0.105", "0.1", 0, 1, 1),
        ("0", "0", 1, 1, 1),
        ("0.0001", "0", 0, 0, 0),
        ("-105", "-100", 0, 1, 1),
        ("-95", "-100", 0, 1, 1),
        ("1e999999", "1e999999", 1, 1, 1),
        ("1.04e999999", "1e999999", 0, 1, 1),
        ("1e999999", "1", 0, 0, 0),
        ("9" * 4000, "9" * 4000, 1, 1, 1),
        ("9" * 4000, "9" * 3999, 0, 0, 0),
        ("1" + "0" * 4000, "104" + "0" * 3998, 0, 1, 1),
        ("1e-999999", "0", 0, 0, 0),
    ],
)
def test_number_tolerance_is_relative_to_the_reference_and_exact(value, reference, strict, slight, high):
    # Another row keeps the answers from being identical strings.
    found = [similarity(one_cell(value), one_cell(reference) + "\n", name) for name in ("strict", "slight", "high")]
    assert found == [strict, slight, high]


@pytest.mark.parametrize(
    ("row", "reference", "strict", "slight", "high"),
    [
        ("B", "A", 0, 0, 0),
        ("2020", "2019", 0, 0, 0),
        ("Appel", "Apple", 0, 0, 0),
        ("Aple", "Apple", 0, 1, 1),
        ("Banan", "Bananas", 0, 0, 0),
        ("Strawbery", "Strawberry", 0, 1, 1),
        ("Strwbery", "Strawberry", 0, 1, 1),
        ("Strwbry", "Strawberry", 0, 0, 0),
        ("United Kingdm of Britan", "United Kingdom of Britain", 0, 1, 1),
        ("Unted Kingdm of Britan", "United Kingdom of Britain", 0, 0, 1),
        ("", "A", 0, 0, 0),
    ],
)
def test_fault_word_tolerance_is_capped_by_a_fifth_of_the_reference(row, reference, strict, slight, high):
    """Two edits turned A into B and 2019 into 2020."""
    found = [similarity(one_cell("5", row), one_cell("5", reference), name) for name in ("strict", "slight", "high")]
    assert found == [strict, slight, high]


def test_the_cap_is_that_of_the_reference_not_of_the_response():
    assert similarity(one_cell("5", "Appl"), one_cell("5", "Apple")) == 1
    assert similarity(one_cell("5", "Apple"), one_cell("5", "Appl")) == 0


def test_distances_of_a_triple_are_summed_each_under_its_own_cap():
    reference = one_cell("strawberries", "blueberries", "raspberries")
    assert similarity(one_cell("strawberrie", "blueberrie", "raspberries"), reference) == 1
    assert similarity(one_cell("strawberrie", "blueberrie", "raspberrie"), reference) == 0
    assert similarity(one_cell("strawberrie", "blueberrie", "raspberrie"), reference, "high") == 1
    assert similarity(one_cell("aaa", "blueberries", "raspberries"), one_cell("bbb", "blueberries", "raspberries")) == 0


def test_texts_agree_up_to_width_case_and_blanks():
    assert similarity(one_cell("ＮＥＷ york"), one_cell("New York"), "strict") == 1


def test_the_better_pairing_of_the_two_headers_counts():
    """In sorted order aeroplanes would meet yeppelins; crosswise each header is one edit off."""
    assert similarity(one_cell("5", "Zeppelins", "Aeroplanes"), one_cell("5", "Yeppelins", "Zeroplanes")) == 1
    assert similarity(one_cell("5", "Aeroplanes", "Zeppelins"), one_cell("5", "Yeppelins", "Zeroplanes")) == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Sales（万元）", "sales(万元)"),
        ("Ｓａｌｅｓ", "SALES"),
        ("Length (µm)", "Length (μm)"),
        ("$\\mathrm{CO_2}$", "CO₂"),
        ("area (m$^{2}$)", "Area (m²)"),
        ("\\text{Total}", "Total"),
        ("\\textbf{Total \\text{sum}}", "total sum"),
        ("a   b", "a b"),
        ("A-Q1", "A 下四分位数"),
        ("A-Q1", "A（第一四分位数）"),
        ("A-Q1", "A Lower Quartile (Q1)"),
        ("A_Q2", "A 中位数"),
        ("A_Q2", "A median"),
        ("A-Q3", "A 上四分位数(Q3)"),
        ("A-Q3", "Upper quartile A"),
        ("A min", "A 最小值"),
        ("A Minimum", "A-min"),
        ("A max", "A 最大值"),
        ("Q1", "下四分位数"),
    ],
)
def test_headers_that_are_spelled_alike(first, second):
    assert normalize_header(first) == normalize_header(second)


@pytest.mark.parametrize(
    ("first", "second"),
    [("admin", "ad-min"), ("10²", "102"), ("sales_2019 ($)", "sales₂019 ()"), ("maxwell", "max-well"), ("q1", "q3")],
)
def test_headers_that_differ(first, second):
    assert normalize_header(first) != normalize_header(second)


def test_display_form_of_a_statistic():
    assert display_header(normalize_header("Group A 最小值")) == "group a-min"


@pytest.mark.parametrize(("wrong", "right"), [("min", "max"), ("Q1", "Q3"), ("median", "Q1")])
def test_one_statistic_is_never_another_however_long_its_group_is_named(wrong, right):
    group = "a group with a very long name"
    assert similarity(one_cell("5", f"{group} {wrong}"), one_cell("5", f"{group} {right}"), "high") == 0
