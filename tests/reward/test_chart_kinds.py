"""Chart scorer: kinds, precedence, the contract of the entry function, and the score made of a similarity."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest

from reward.task_scorers.chart_deplot import chart_details, process_chart_deplot_task
from reward.task_scorers.chart_deplot.kinds import read_chart
from reward.task_scorers.chart_deplot.tolerance import threshold_score

TABLE = "| | 2019 | 2020 |\n|---|---|---|\n| A | 10 | 20 |\n| B | 30 | 40 |"
LIST = "- Fruit\n  - Apple\n  - Pear\n- Grain"
FLOWCHART = "flowchart TD\nA[Start] --> B{OK?}\nB -->|yes| C[Done]\nB -->|no| A"
HTML = "<table><tr><td></td><td>v</td></tr><tr><td>A</td><td>1</td></tr></table>"
LOOSE = "Item | Price\nTea | 3\nCoffee | 4"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (TABLE, "table"),
        (LIST, "list"),
        (FLOWCHART, "mermaid"),
        (HTML, "table"),
        (LOOSE, "table"),
        (f"```mermaid\n{FLOWCHART}\n```", "mermaid"),
        (f"Here it is:\n```\n{FLOWCHART}\n```\nDone.", "mermaid"),
        ("graph LR\nA --- B", "mermaid"),
        ("graph\nA --> B", "mermaid"),
        ("flowchart\nA --> B", "mermaid"),
        ("```mermaid\ngraph BT; A-->B\n```", "mermaid"),
        ("FLOWCHART td\nA ==> B", "mermaid"),
        ("flowchart TD\nA[alone]", ""),
        ("A --> B", ""),
        ("graph showing sales\nx --> y", ""),
        ("- one item", ""),
        ("1. one\n2. two", "list"),
        ("just prose", ""),
        ("", ""),
        (",2019,2020\nA,10,20\nB,30,40", ""),
        ('{"a": {"b": "10"}}', ""),
        ("<table></table>", ""),
        ("| a | b |", ""),
    ],
)
def test_kind_of_an_answer(text, kind):
    assert read_chart(text).kind == kind


def test_mermaid_goes_before_lists_and_tables():
    assert read_chart(f"{TABLE}\n\n{LIST}\n\n{FLOWCHART}").kind == "mermaid"


@pytest.mark.parametrize("table", [TABLE, HTML])
def test_a_table_with_a_rule_line_or_in_html_goes_before_list_items_around_it(table):
    assert read_chart(f"- one\n- two\n\n{table}\n\n- three").kind == "table"


def test_a_list_goes_before_a_loose_table():
    assert read_chart(f"- one\n- two\n\n{LOOSE}").kind == "list"


@pytest.mark.parametrize("reference", [TABLE, LIST, FLOWCHART, HTML, LOOSE])
@pytest.mark.parametrize("response", [TABLE, LIST, FLOWCHART, HTML, "prose", "", "   "])
def test_a_response_of_another_kind_scores_0_and_is_valid(response, reference):
    result = process_chart_deplot_task(response, reference)
    assert result["is_valid"] is True
    assert result["decision"] == "scored"
    if read_chart(response).kind != read_chart(reference).kind:
        assert result["reward"] == 0.0


@pytest.mark.parametrize("reference", ["", " \n\t "])
def test_an_empty_reference_is_dropped(reference):
    result = process_chart_deplot_task(TABLE, reference)
    assert (result["decision"], result["is_valid"], result["reward"]) == ("empty_reference", False, -1.0)


@pytest.mark.parametrize(
    "reference",
    [
        "prose",
        "{}",
        "- one item",
        ",2019\nA,10",
        "flowchart TD\nA[alone]",
        "| a | b |\n|---|---|",
        "| a | b |\n|---|---|\n| x | |",
        "<table><tr><td>a</td></tr></table>",
    ],
)
def test_a_reference_without_a_known_kind_or_content_is_dropped_even_when_repeated(reference):
    for response in (reference, TABLE):
        result = process_chart_deplot_task(response, reference)
        assert (result["decision"], result["is_valid"], result["reward"]) == ("bad_reference", False, -1.0)


@pytest.mark.parametrize("reference", [TABLE, LIST, FLOWCHART, HTML, LOOSE])
def test_an_identical_response_scores_1(reference):
    result = process_chart_deplot_task(f"\n  {reference}\n", reference)
    assert result["reward"] == 1.0
    assert json.loads(result["analysis"])["similarity"] == {"strict": 1.0, "slight": 1.0, "high": 1.0}


def test_the_analysis_names_kinds_similarities_and_counts():
    analysis = json.loads(process_chart_deplot_task(TABLE.replace("40", "41").replace("10", "99"), TABLE)["analysis"])
    assert analysis["kind"] == {"reference": "table", "response": "table"}
    assert analysis["similarity"] == {"strict": round(2 / 6, 6), "slight": 0.6, "high": 0.6}
    assert analysis["counts"] == {"response_triples": 4, "reference_triples": 4}


def test_details_list_what_agrees_what_is_missing_and_what_is_extra():
    details = chart_details("| | v |\n|---|---|\n| A | 1 |\n| B | 2 |", "| | v |\n|---|---|\n| A | 1 |\n| C | 9 |")
    assert details["agreeing"] == [["a | v | 1", "a | v | 1"]]
    assert details["missing"] == ["c | v | 9"]
    assert details["extra"] == ["b | v | 2"]
    flow = chart_details(FLOWCHART.replace("Done", "Ready"), FLOWCHART)
    assert "ok? -[yes]-> done" in flow["missing"]


@pytest.mark.parametrize(
    ("similarity", "score"),
    [
        (Fraction(0), 0.0),
        (Fraction(49999, 100000), 0.0),
        (Fraction(1, 2), 0.1),
        (Fraction(11, 20), 0.2),
        (Fraction(3, 5), 0.3),
        (Fraction(13, 20), 0.4),
        (Fraction(7, 10), 0.5),
        (Fraction(3, 4), 0.6),
        (Fraction(4, 5), 0.7),
        (Fraction(17, 20), 0.8),
        (Fraction(9, 10), 0.9),
        (Fraction(949999, 1000000), 0.9),
        (Fraction(19, 20), 1.0),
        (Fraction(1), 1.0),
    ],
)
def test_score_is_the_mean_over_ten_thresholds_compared_exactly(similarity, score):
    assert threshold_score(similarity) == score


@pytest.mark.parametrize(("right", "total", "score"), [(11, 20, 0.2), (13, 20, 0.4), (17, 20, 0.8), (19, 20, 1.0)])
def test_fault_binary_thresholds_a_similarity_on_a_threshold_passes_it(right, total, score):
    """0.5 + 0.05 k in binary is above 0.55, 0.65 …, so that 11 of 20 right rows missed the threshold they reach."""
    reference = "| | v |\n|---|---|\n" + "".join(f"| r{i} | {i + 1} |\n" for i in range(total))
    response = "| | v |\n|---|---|\n" + "".join(f"| r{i} | {i + 1} |\n" for i in range(right))
    assert process_chart_deplot_task(response, reference)["reward"] == score
