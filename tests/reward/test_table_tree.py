"""Reading tables out of HTML: spans, broken markup and what a browser makes of it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reward.task_scorers.table_tree import Cell, Table, read_html, read_span, read_tables
from tests.reward.table_strategies import tables


def texts(html: str) -> list[list[list[str]]]:
    return [[[cell.text for cell in row] for row in table.rows] for table in read_tables(html)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, 1),
        ("", 1),
        ("2", 2),
        ("2px", 2),
        (" \t\n3", 3),
        ("+4", 4),
        ("007", 7),
        ("2.9", 2),
        ("1e3", 1),
        ("-2", 1),
        ("0", 1),
        ("two", 1),
        ("２", 1),
        ("1000", 1000),
        ("1001", 1000),
        ("9" * 5000, 1000),
    ],
)
def test_span(value, expected):
    assert read_span(value) == expected


@pytest.mark.parametrize(
    "attribute", ['colspan="2"', "colspan=2", "COLSPAN = '2'", 'style="a>b" colspan="2"', "colspan='2px'"]
)
def test_span_attribute_survives_however_it_is_written(attribute):
    assert read_tables(f"<table><tr><td {attribute}>a</td></tr></table>")[0].rows == ((Cell("a", colspan=2),),)


def test_row_groups_are_transparent_and_th_is_a_cell():
    html = (
        "<table><caption>c</caption><colgroup><col></colgroup><thead><tr><th>a</th></tr></thead>"
        "<tbody><tr><td>b</td></tr></tbody><tbody><tr><td>c</td></tr></tbody><tfoot><tr><td>d</td></tr></tfoot></table>"
    )
    assert texts(html) == [[["a"], ["b"], ["c"], ["d"]]]
    assert read_tables(html)[0].caption == "c"
    assert read_tables(html)[0].node_count == 9


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("<table><tr><td>a<td>b<tr><td>c", [[["a", "b"], ["c"]]]),
        ("<table><td>a</td><td>b</table>", [[["a", "b"]]]),
        ("<table><tr><td>a</td></tr><tr><td>b</td><td>c</t", [[["a"], ["b", "c"]]]),
        ('<table><tr><td>a</td></tr><tr><td colspan="2', [[["a"], []]]),
        ("<table><tr><td>a</td></tr><table><tr><td>b</td></tr></table>", [[["a"]], [["b"]]]),
        ("<table><tr></tr><tr><td></td></tr></table>", [[[], [""]]]),
        ("<table><tr><td>a</div></b></td><td>b</td></tr></table>", [[["a", "b"]]]),
        ("<TABLE><TR><TD>a</TD></TR></TABLE>", [[["a"]]]),
        ("</table></td><table></table>", [[]]),
        ("<table><!-- <tr><td>x --><tr><td>a</td></tr></table>", [[["a"]]]),
        ("<table><tr><td>a<script>var x = '<td>';</script></td></tr></table>", [[["a"]]]),
        ("no table", []),
    ],
)
def test_broken_html_is_read_like_a_browser(html, expected):
    assert texts(html) == expected


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("  a \n\t b ", "a b"),
        ("a<br>b<br/>c<BR />d", "a b c d"),
        ("a&amp;b &lt;td&gt; &#x4e2d;&nbsp;&hellip;", "a&b <td> 中 …"),
        ("<b>a</b><i>b</i><sup>2</sup><span style='x'>c</span>", "ab2c"),
        ("x<y", "x<y"),
        ("p < 0.05 and q > 2", "p < 0.05 and q > 2"),
        ("$a<b$ and $c>d$", "$a<b$ and $c>d$"),
        ("a<table><tr><td>n</td><td>m</td></tr></table>b", "a n m b"),
        ("<div><p>a</p></div>", "a"),
        ("\ud800", "\ufffd"),
        ("&#" + "9" * 6000 + ";", "\ufffd"),
    ],
)
def test_cell_text(cell, expected):
    assert texts(f"<table><tr><td>{cell}</td><td>next</td></tr></table>") == [[[expected, "next"]]]


def test_text_between_rows_moves_in_front_of_the_table():
    pieces = read_html("<table><tr><td>a</td></tr>stray &amp; lost</table> behind")
    assert [piece if isinstance(piece, str) else piece.rows for piece in pieces] == [
        "stray & lost",
        ((Cell("a"),),),
        " behind",
    ]


@settings(max_examples=60, deadline=None)
@given(tables(5, 5))
def test_written_html_reads_back(table):
    assert read_tables(table.to_html()) == [table]


def test_html_is_written_with_bare_tags_and_spans_in_order():
    table = Table(((Cell("a", 2, 3), Cell("b", 1, 2)),), caption="title")
    assert table.to_html() == ('<table>title<tr><td colspan="2" rowspan="3">a</td><td rowspan="2">b</td></tr></table>')


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                "<table>",
                "</table>",
                "<tr>",
                "</tr>",
                "<td>",
                "</td>",
                "<th colspan=2>",
                "<b>",
                "<p>",
                "<caption>",
                "<tbody>",
                "</tbody>",
                "x",
                "<",
                ">",
                "&",
                "<!--",
                '"',
                "<td ",
                "</",
                "<select>",
            ]
        ),
        max_size=30,
    ).map("".join)
)
def test_any_tag_soup_is_read(html):
    for table in read_tables(html):
        assert table.node_count >= 1


@pytest.mark.parametrize(
    "html",
    [
        "<table><tr><td>" + "<div>" * 12_000 + "deep",
        "<table><tr><td>" + "<table><tr><td>" * 4_000 + "deep",
        "<table>" + "<td>" * 16_000,
        "<table><tr><td><p>" + "".join(f"<b a={i}>" for i in range(3_000)) + "<p>x" * 5_000,
        "<table><tr><td>" + '<b ="' * 12_000,
        "<table><tr><td>" + "<!--" * 16_000,
        "<table><tr><td>" + "&" * 64_000,
    ],
    ids=["deep divs", "nested tables", "cells", "formatting elements", "open quotes", "open comments", "ampersands"],
)
def test_hostile_html_is_read(html):
    assert len(read_tables(html)) == 1
