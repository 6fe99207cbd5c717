"""Chart scorer: from the text of a table to its triples, alignment, matching."""

from __future__ import annotations

import json

import pytest

from reward.task_scorers.chart_deplot import process_chart_deplot_task
from reward.task_scorers.chart_deplot.agree import match_triples
from reward.task_scorers.chart_deplot.align import common_affixes
from reward.task_scorers.chart_deplot.html_grid import read_html_tables
from reward.task_scorers.chart_deplot.kinds import read_chart
from reward.task_scorers.chart_deplot.tables import Table
from reward.task_scorers.chart_deplot.triples import make_triples, read_cells

TABLE = "| | 2019 | 2020 |\n|---|---|---|\n| A | 10 | 20 |\n| B | 30 | 40 |"


def analysis(response: str, reference: str) -> dict:
    return json.loads(process_chart_deplot_task(response, reference)["analysis"])


def similarity(response: str, reference: str, tolerance: str = "slight") -> float:
    return analysis(response, reference)["similarity"][tolerance]


def triples(text: str) -> set[tuple[str, str, str]]:
    chart = read_chart(text)
    assert chart.kind == "table"
    return {(*sorted(triple[:2]), str(triple.value)) for triple in make_triples(read_cells(chart.tables))}


def read_html(html: str) -> Table:
    (table,) = read_html_tables([html])
    return table


EXPECTED = {("2019", "a", "10"), ("2020", "a", "20"), ("2019", "b", "30"), ("2020", "b", "40")}


@pytest.mark.parametrize(
    "text",
    [
        TABLE,
        "  | | 2019 | 2020 |  \n  |:--|:-:|--:|\n  | A | 10 | 20 |\n  | B | 30 | 40 |",
        "| | 2019 | 2020\n| - | - | -\n| A | 10 | 20\n| B | 30 | 40",
        " | 2019 | 2020\n--|---|---\nA | 10 | 20\nB | 30 | 40",
        " | 2019 | 2020\nA | 10 | 20\nB | 30 | 40",
        "| | 2019 | 2020 |\n| A | 10 | 20 |\n| B | 30 | 40 |",
        "x | 2019 | 2020\n---+---+---\nA | 10 | 20\nB | 30 | 40",
        "+---+------+------+\n| x | 2019 | 2020 |\n+===+======+======+\n| A | 10 | 20 |\n+---+---+---+\n| B | 30 | 40 |\n+-+",
        "| | 2019 | 2020 |\r\n|—|—|—|\r\n| A | 10 | 20 |\r\n| B | 30 | 40 |",
        "| | 2019 | 2020 |\n\n|---|---|---|\n\n| A | 10 | 20 |\n\n| B | 30 | 40 |",
        "| | 2019 | 2020 |\n|---|---|---|\n| A | 10 | 20 |\n|---|---|---|\n| B | 30 | 40 |",
        f"### Sales by year\nThe chart shows:\n\n{TABLE}\n\nSource: survey.",
        f"### Sales\n{TABLE}\nSource: survey",
        f"```markdown\n{TABLE}\n```",
        "| | 2019 | 2020 |\n|---|---|---|\n| A | 10 | 20 |\n| | | |\n| B | 30 | 40 |",
        "<table><tr><th></th><th>2019</th><th>2020</th></tr><tr><td>A</td><td>10</td><td>20</td></tr>"
        "<tr><td>B</td><td>30</td><td>40</td></tr></table>",
        "<TABLE border=1><thead><tr><th>x<th>2019<th>2020</thead><tbody><tr><td>A<td>10<td>20<tr><td>B<td>30<td>40",
        "```html\n<p>Sales</p><table><caption>c</caption><tr><td/><td>2019</td><td><b>20</b>20</td></tr>\n"
        "<tr><td>A</td><td>10</td><td>20</td></tr><tr><td>B</td><td>30</td><td>40</td></tr></table>\n```",
    ],
)
def test_written_forms_of_one_table(text):
    assert triples(text) == EXPECTED
    assert similarity(text, TABLE, "strict") == 1


def test_escaped_pipes_stay_in_cells():
    assert triples("| a\\|b | v |\n|---|---|\n| x \\| y | 1 |") == {("v", "x | y", "1")}
    assert triples("k | v\\|w\n--|--\na | 1") == {("a", "v|w", "1")}


def test_breaks_and_entities_in_markdown_cells_read_as_in_html():
    markdown = "| | a<br>b |\n|---|---|\n| R&amp;D | 1 |"
    markup = "<table><tr><td></td><td>a<br/>b</td></tr><tr><td>R&amp;D</td><td>1</td></tr></table>"
    assert triples(markdown) == triples(markup) == {("a b", "r&d", "1")}


def test_a_row_of_single_dashes_is_data():
    assert triples("| | v |\n|---|---|\n| A | 1 |\n| - | - |") == {("a", "v", "1"), ("-", "v", "-")}


def test_html_spans_are_expanded_by_copying():
    html = (
        "<table><tr><td rowspan=2></td><td colspan=2>2019</td></tr><tr><td>h1</td><td>h2</td></tr>"
        '<tr><td>A</td><td rowspan="2">1</td><td>2</td></tr><tr><td>B</td><td>3</td></tr></table>'
    )
    table = read_html(html)
    assert table.header == ("", "2019", "2019")
    assert table.rows == (("", "h1", "h2"), ("A", "1", "2"), ("B", "1", "3"))


@pytest.mark.parametrize(
    ("span", "width"), [("2", 2), ("2px", 2), (" 3", 3), ("", 1), ("x", 1), ("0", 1), ("-2", 1), ("9" * 5000, 1000)]
)
def test_html_spans_follow_the_integer_rules_of_html_and_are_capped(span, width):
    table = read_html(f'<table><tr><td>h<td>k</tr><tr><td>a</td><td colspan="{span}">1</td></tr></table>')
    assert len(table.rows[0]) == 1 + width


def test_a_row_span_ends_with_its_table():
    assert len(read_html("<table><tr><td>h<td>k<tr><td rowspan=900>a<td>1</table>").rows) == 1


def test_a_nested_table_is_text_of_its_cell():
    html = "<table><tr><td>h<td>k<tr><td>a<td><table><tr><td>x<td>y</table></table>"
    assert read_html(html).rows == (("a", "x y"),)


def test_headers_are_unordered():
    transposed = "| | A | B |\n|---|---|---|\n| 2019 | 10 | 30 |\n| 2020 | 20 | 40 |"
    assert similarity(transposed, TABLE, "strict") == 1


def test_row_order_is_free():
    """Public case."""
    assert similarity("| | 2019 | 2020 |\n|---|---|---|\n| B | 30 | 40 |\n| A | 10 | 20 |", TABLE, "strict") == 1


def test_fault_csv_is_no_known_kind():
    """Public case: a comma-separated response is of another kind."""
    assert process_chart_deplot_task(",2019,2020\nA,10,20\nB,30,40", TABLE)["reward"] == 0


def test_fault_empty_keys_agreed_with_every_key():
    """Public case, as tables: blank headers matched all headers as their substring."""
    assert similarity("| | |\n|---|---|\n| | 10 |", "| | 2019 |\n|---|---|\n| revenue | 10 |", "high") == 0


def test_a_blank_cell_gives_no_triple():
    assert triples("| | a | b |\n|---|---|---|\n| x | | 1 |") == {("b", "x", "1")}


def test_a_value_right_of_the_header_row_has_no_column_header():
    assert triples("| | a |\n|---|---|\n| x | 1 | 2 |") == {("a", "x", "1"), ("", "x", "2")}


@pytest.mark.parametrize("head", ["| | | |", "| Title | | |"])
def test_a_header_row_blank_right_of_its_first_cell_means_no_header(head):
    assert triples(f"{head}\n|---|---|---|\n| A | 10 | 20 |") == {("", "a", "10"), ("", "a", "20")}


def test_a_rule_line_without_a_row_above_means_no_header():
    assert triples("|---|---|\n| A | 10 |\n| B | 20 |") == {("", "a", "10"), ("", "b", "20")}


def test_the_first_line_of_a_loose_table_is_its_header():
    assert triples("x | 2019 | 2020\nA | 10 | 20") == {("2019", "a", "10"), ("2020", "a", "20")}


def test_several_tables_give_the_union_of_their_triples_each_once():
    second = "| | v |\n|---|---|\n| C | 5 |"
    assert triples(f"{TABLE}\n\n{second}") == EXPECTED | {("c", "v", "5")}
    assert triples(f"{TABLE}\n\nand\n\n{TABLE}") == EXPECTED
    assert similarity(f"{TABLE}\n\n{TABLE}", TABLE) == 1
    assert similarity(f"{second}\n\n{TABLE}", f"{TABLE}\n\n{second}", "strict") == 1


def test_a_header_row_on_one_side_only_is_ignored():
    headed = "| c | sales | cost |\n|---|---|---|\n| A | 1 | 2 |\n| B | 3 | 4 |"
    bare = "| | | |\n|---|---|---|\n| A | 1 | 2 |\n| B | 3 | 4 |"
    assert similarity(headed, bare, "strict") == 1
    assert similarity(bare, headed, "strict") == 1
    assert "header row" in analysis(bare, headed)["notes"][0]


def test_headers_on_both_sides_count():
    assert similarity(TABLE.replace("2020", "2035"), TABLE) == pytest.approx(2 / 6, abs=1e-6)


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("name", ["", "No."])
def test_a_running_index_column_is_ignored(start, name):
    response = f"| {name} | x | 2019 | 2020 |\n|---|---|---|---|\n" + "".join(
        f"| {start + i} | {row} |\n" for i, row in enumerate(["A | 10 | 20", "B | 30 | 40"])
    )
    assert similarity(response, TABLE, "strict") == 1


def test_a_column_that_does_not_run_from_0_or_1_is_not_ignored():
    response = "| | x | 2019 | 2020 |\n|---|---|---|---|\n| 2 | A | 10 | 20 |\n| 3 | B | 30 | 40 |"
    reference = TABLE.replace("| | 2019", "| key | 2019")
    assert similarity(response, reference) < 1


@pytest.mark.parametrize("corner", ["", "City"])
def test_an_extra_named_leading_column_is_ignored_when_the_other_headers_are_equal(corner):
    reference = f"| {corner} | Sales | Cost |\n|---|---|---|\n| Oslo | 1 | 2 |\n| Rome | 3 | 4 |"
    response = "| Region | City | Sales | Cost |\n|---|---|---|---|\n| N | Oslo | 1 | 2 |\n| S | Rome | 3 | 4 |"
    assert similarity(response, reference, "strict") == 1
    assert similarity(response.replace("Cost", "Loss"), reference) < 1


def test_a_header_row_that_named_the_extra_column_only_is_no_header():
    response = "| No. | name | | |\n|---|---|---|---|\n| 1 | A | 10 | 20 |\n| 2 | B | 30 | 40 |"
    assert similarity(response, "| | | |\n|---|---|---|\n| A | 10 | 20 |\n| B | 30 | 40 |", "strict") == 1
    assert similarity(response, TABLE, "strict") == 1


def test_notes_stay_short():
    prefix = "x" * 5_000 + "_"
    reference = f"| | {prefix}a | {prefix}b |\n|---|---|---|\n| r | 1 | 2 |"
    assert len(process_chart_deplot_task("| | a | b |\n|---|---|---|\n| r | 1 | 2 |", reference)["analysis"]) < 600


def test_a_leading_column_is_kept_when_the_widths_are_equal():
    reference = "| n | v | w |\n|---|---|---|\n| 1 | 5 | 6 |\n| 2 | 7 | 8 |"
    assert similarity(reference.replace("v", "q"), reference) == pytest.approx(2 / 6, abs=1e-6)


def test_the_value_header_of_two_column_tables_is_ignored():
    assert similarity("| Country | Share |\n|---|---|\n| A | 1 |", "| | Percentage |\n|---|---|\n| A | 1 |") == 1
    wide = "| | a | b |\n|---|---|---|\n| A | 1 | 2 |"
    assert similarity(wide.replace("a |", "q |"), wide) < 1


@pytest.mark.parametrize(
    ("headers", "affixes"),
    [
        (["sales_a", "sales_b"], ("sales_", "")),
        (["sales_2019", "sales_2020"], ("sales_", "")),
        (["a-kg", "b-kg"], ("", "-kg")),
        (["x_a_kg", "x_b_kg"], ("x_", "_kg")),
        (["sales - a", "sales - b"], ("sales - ", "")),
        (["a kg", "b kg"], ("", "")),
        (["sales_a"], ("", "")),
        (["sales_a", "sales_a"], ("", "")),
        (["sales_a", ""], ("", "")),
        (["a", "b"], ("", "")),
    ],
)
def test_common_affixes_end_or_start_in_a_dash_or_underscore(headers, affixes):
    assert common_affixes(headers) == affixes


@pytest.mark.parametrize(("prefix", "suffix"), [("sales_", ""), ("", "-kg"), ("avg-", "_kg")])
@pytest.mark.parametrize("transpose", [False, True])
def test_headers_that_lack_the_common_affix_of_the_reference_get_it(prefix, suffix, transpose):
    def table(a: str, b: str) -> str:
        return f"| | {a} | {b} |\n|---|---|---|\n| x | 1 | 2 |\n| y | 3 | 4 |"

    reference = table(f"{prefix}Tea{suffix}", f"{prefix}Milk{suffix}")
    response = table("Tea", "Milk")
    if transpose:
        response = "| | x | y |\n|---|---|---|\n| Tea | 1 | 3 |\n| Milk | 2 | 4 |"
    assert similarity(response, reference, "strict") == 1
    assert similarity(table("Tea", f"{prefix}Milk{suffix}"), reference, "strict") == 1
    assert similarity(table("Coal", "Iron"), reference) == 0


def test_box_plot_statistics_get_the_common_prefix_of_the_reference():
    reference = "| | Group X-Q1 | Group X-median | Group X-Q3 |\n|---|---|---|---|\n| A | 1 | 2 | 3 |"
    response = "| | 下四分位数 | 中位数 | 上四分位数 |\n|---|---|---|---|\n| A | 1 | 2 | 3 |"
    assert similarity(response, reference, "strict") == 1


@pytest.mark.parametrize("word", ["Outliers", "异常值", "离群点", "Scatter points", "离散点"])
def test_outlier_triples_that_the_reference_does_not_have_at_all_are_ignored(word):
    response = TABLE + f"\n| {word} | 7 | 8 |"
    assert similarity(response, TABLE, "strict") == 1
    assert similarity(response, TABLE + f"\n| {word} | 9 | 9 |") < 1
    assert similarity(TABLE, response) < 1


def test_outliers_do_not_excuse_scatter_points():
    reference = TABLE + "\n| outlier | 1 | 2 |"
    assert similarity(reference + "\n| scatter | 3 | 4 |", reference, "strict") == 1
    assert similarity(reference + "\n| outlier b | 3 | 4 |", reference) == pytest.approx(6 / 8)


def test_fault_many_predictions_matched_one_reference():
    """Both 10 and 10.1 were counted as the one 10 of the reference."""
    reference = "| | v | w |\n|---|---|---|\n| A | 10 | |\n| B | 1 | |"
    response = "| | v | w |\n|---|---|---|\n| A | 10 | |\n| A | 10.1 | |\n| A | 9.9 | |\n| B | 1 | |"
    assert similarity(response, reference) == pytest.approx(2 / 4)


def test_fault_greedy_matching_wasted_a_partner():
    """100 is within 5 % of 104 and of 96, 108 of 104 only: a first-come match leaves 108 alone."""
    reference = "| | v | w |\n|---|---|---|\n| A | 104 | |\n| A | 96 | |"
    response = "| | v | w |\n|---|---|---|\n| A | 100 | |\n| A | 108 | |"
    assert similarity(response, reference) == 1


def test_similarity_is_matches_over_the_union():
    response = TABLE + "\n| C | 1 | 2 |"
    assert similarity(response, TABLE) == pytest.approx(4 / 6, abs=1e-6)
    assert similarity("| | 2019 | 2020 |\n|---|---|---|\n| A | 10 | 20 |", TABLE) == pytest.approx(2 / 4)


def test_matching_pairs_are_one_to_one():
    chart = read_chart(TABLE)
    items = make_triples(read_cells(chart.tables))
    for pairs in match_triples(items, items).values():
        assert [ours for ours, _ in pairs] == [theirs for _, theirs in pairs]
        assert len(pairs) == len(items)
