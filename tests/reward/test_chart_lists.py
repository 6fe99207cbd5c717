"""Chart scorer: nested lists as node paths."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest

from reward.task_scorers.chart_deplot import process_chart_deplot_task
from reward.task_scorers.chart_deplot.kinds import read_chart
from reward.task_scorers.chart_deplot.mdlist import list_paths, read_items

LIST = "- Fruit\n  - Apple\n  - Pear\n- Grain"
PATHS = ["fruit", "fruit/apple", "fruit/pear", "grain"]


def similarity(response: str, reference: str, tolerance: str = "slight") -> float:
    return json.loads(process_chart_deplot_task(response, reference)["analysis"])["similarity"][tolerance]


def paths(text: str) -> list[str]:
    return list_paths(read_items(text))


@pytest.mark.parametrize(
    "text",
    [
        LIST,
        "* Fruit\n  * Apple\n  * Pear\n* Grain",
        "+ Fruit\n  + Apple\n  + Pear\n+ Grain",
        "1. Fruit\n   1. Apple\n   2. Pear\n2. Grain",
        "1) Fruit\n  a text line\n  1) Apple\n  2) Pear\n2) Grain",
        "1、Fruit\n  1、Apple\n  2、Pear\n2、Grain",
        "1.Fruit\n\t1.Apple\n\t2.Pear\n2.Grain",
        "• Fruit\n  ◦ Apple\n  ▪ Pear\n•Grain",
        "- Fruit\n\t- Apple\n\t- Pear\n- Grain",
        "- Fruit\n    - Apple\n    - Pear\n- Grain",
        "- Fruit\n - Apple\n - Pear\n- Grain",
        "  - Fruit\n      - Apple\n      - Pear\n  - Grain",
        "- Fruit\r\n  - Apple\r\n\r\n  - Pear\r\n- Grain",
        "### Food\nHere:\n- Fruit\n  - Apple\n  - Pear\n- Grain\nDone",
        "```markdown\n- Fruit\n  - Apple\n  - Pear\n- Grain\n```",
        "-   Fruit\n  -  Apple \n  - \n  - Pear\n---\n- Grain\n* * *",
        "* Fruit\n  - Apple\n  + Pear\n1. Grain",
        "- Fruit\n　- Apple\n　- Pear\n- Grain",
    ],
)
def test_fault_only_dashes_and_two_spaces_were_a_list(text):
    assert read_chart(text).kind == "list"
    assert sorted(paths(text)) == PATHS
    assert similarity(text, LIST, "strict") == 1


@pytest.mark.parametrize("line", ["-5 degrees", "**bold**", "1.5 million", "--> x", "2019", "- - -", "***", "a - b"])
def test_lines_that_are_no_items(line):
    assert read_items(line) == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Tea: green", ["tea/green"]),
        ("Tea：green", ["tea/green"]),
        ("Tea — green", ["tea/green"]),
        ("Tea——green", ["tea/green"]),
        ("Tea -> green", ["tea/green"]),
        ("Tea --> green", ["tea/green"]),
        ("Tea: green -> sencha", ["tea/green/sencha"]),
        ("Tea:", ["tea"]),
        ("Tea ->", ["tea"]),
        (": tea", [": tea"]),
        ("::", ["::"]),
        ("well-known", ["well-known"]),
        ("10 - 20", ["10 - 20"]),
        ("10:30", ["10/30"]),
    ],
)
def test_a_separator_between_texts_splits_a_name_into_parent_and_child(name, expected):
    assert paths(f"- {name}") == expected


def test_children_of_a_split_item_belong_to_its_last_part():
    assert paths("- Tea: green\n  - Sencha\n  - Matcha") == ["tea/green", "tea/green/sencha", "tea/green/matcha"]


def test_chains_of_single_children_join():
    assert paths("- A\n  - B\n    - C\n      - D\n      - E") == ["a/b/c", "a/b/c/d", "a/b/c/e"]
    assert paths("- A\n  - B") == paths("- A: B") == ["a/b"]


def test_an_item_belongs_to_the_nearest_item_above_with_a_smaller_indent():
    text = "- A\n    - B\n        - C\n        - D\n  - E\n- F"
    assert paths(text) == ["a", "a/b", "a/b/c", "a/b/d", "a/e", "f"]


def test_paths_are_compared_in_lower_case():
    assert similarity(LIST.upper(), LIST, "strict") == 1


def test_similarity_of_paths_is_the_insert_delete_ratio():
    """fruit/apple against fruit/apples: 22 of 23 characters in common."""
    response = LIST.replace("Apple", "Apples")
    assert similarity(response, LIST) == round(float((3 + Fraction(22, 23)) / 4), 6)
    assert similarity(response, LIST, "strict") == 0.75


@pytest.mark.parametrize(
    ("name", "slight", "high"),
    [
        ("abcdefghijklmnopqrst", 1, 1),
        ("abcdefghijklmnopqxyz", float(Fraction(17, 20)), float(Fraction(17, 20))),  # exactly on the floor 0.85
        ("abcdefghijklmnopwxyz", 0, 0.8),
        ("abcdefghijkl12345678", 0, 0.6),  # exactly on the floor 0.6
        ("abcdefghijk123456789", 0, 0),
    ],
)
def test_pairs_under_the_floor_count_nothing(name, slight, high):
    reference = "- abcdefghijklmnopqrst\n- 0"
    response = f"- {name}\n- 0"
    assert similarity(response, reference) == pytest.approx((slight + 1) / 2, abs=1e-6)
    assert similarity(response, reference, "high") == pytest.approx((high + 1) / 2, abs=1e-6)


def test_floors_are_applied_before_the_assignment():
    """Crosswise both pairs pass the floor; the greatest sum without floors pairs one of them with a stranger."""
    reference = "- abcdefghij\n- abcdefghijkl"
    response = "- abcdefghijk\n- bcdefghi"
    # abcdefghijk–abcdefghijkl 22/23 + bcdefghi–abcdefghij 16/18 against 20/21 + 16/20 (under the floor).
    assert similarity(response, reference) == round(float((Fraction(22, 23) + Fraction(16, 18)) / 2), 6)


def test_assignment_is_one_to_one():
    assert similarity("- apple\n- apple\n- apple", "- apple\n- pear") == pytest.approx(1 / 3, abs=1e-6)


def test_similarity_divides_by_the_longer_side():
    assert similarity("- Grain\n- Fruit", LIST) == 0.5
    assert similarity(LIST + "\n- x\n- y\n- z\n- w", LIST) == 0.5
