"""Chart scorer: Mermaid flowcharts."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest

from reward.task_scorers.chart_deplot import process_chart_deplot_task
from reward.task_scorers.chart_deplot.mermaid import read_flowchart

CHART = "flowchart TD\nA[Start] --> B{OK?}\nB -->|yes| C[Done]\nB -->|no| A"


def similarity(response: str, reference: str, tolerance: str = "slight") -> float:
    return json.loads(process_chart_deplot_task(response, reference)["analysis"])["similarity"][tolerance]


def edges(body: str, header: str = "flowchart TD") -> list[tuple[str, str, str]]:
    return read_flowchart(f"{header}\n{body}").edges


def nodes(body: str) -> list[str]:
    return read_flowchart(f"flowchart TD\n{body}").nodes


@pytest.mark.parametrize(
    "shape",
    [
        "A[x y]",
        "A(x y)",
        "A([x y])",
        "A[[x y]]",
        "A[(x y)]",
        "A((x y))",
        "A(((x y)))",
        "A>x y]",
        "A{x y}",
        "A{{x y}}",
        "A[/x y/]",
        "A[\\x y\\]",
        "A[/x y\\]",
        "A[\\x y/]",
        "A(-x y-)",
        'A["x y"]',
        'A("x y")',
        'A(["x y"])',
        'A[["x y"]]',
        'A[("x y")]',
        'A(("x y"))',
        'A((("x y")))',
        'A>"x y"]',
        'A{"x y"}',
        'A{{"x y"}}',
        'A[/"x y"/]',
        'A[\\"x y"\\]',
        'A["`x y`"]',
        "A[ x  y ]",
        "A [x y]",
        "A[X<br/>Y]",
        "A[x\\ny]",
        'A["x\ny"]',
        'A@{ shape: rect, label: "x y" }',
        "A@{ shape: circle, label: 'x y' }",
        "A@{ label: x y, shape: stadium }",
        'A@{ icon: "fa:user", form: "square", label: "x y", pos: "t", h: 60 }',
        'A@{\n  shape: rect\n  label: "x y"\n}',
        "A[x y]:::big",
        "A:::big",
    ],
)
def test_every_documented_shape_gives_its_text(shape):
    expected = "a" if shape == "A:::big" else "x y"
    assert edges(f"{shape} --> B") == [(expected, "b", "")]
    assert edges(f"B-->{shape}") == [("b", expected, "")]
    assert nodes(f"{shape}\nA --> B") == [expected, "b"]


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("A[f(x)]", "f(x)"),
        ("A[a[0] > 1]", "a[0] > 1"),
        ("A((x) y)", "(x) y"),
        ("A{a {b} c}", "a {b} c"),
        ('A["a] b --> c"]', "a] b --> c"),
        ('A["5 #quot;inch#quot; &amp; #35;1 #9829;"]', '5 "inch" & #1 ♥'),
        ('A[5" pipe]', '5" pipe'),
        ("A[a; b]", "a; b"),
        ("A[50%% off]", "50%% off"),
        ("A[Größe / 大小]", "größe / 大小"),
    ],
)
def test_texts_with_brackets_quotes_and_entities(text, label):
    assert edges(f"{text} --> B") == [(label, "b", "")]


@pytest.mark.parametrize(
    "link",
    [
        "-->",
        "---",
        "----",
        "---->",
        "-.->",
        "-.-",
        "-..->",
        "==>",
        "===",
        "====>",
        "--o",
        "--x",
        "<-->",
        "o--o",
        "x--x",
        "~~~",
        "<==>",
        "<-.->",
    ],
)
def test_links_of_every_style(link):
    assert edges(f"A {link} B") == [("a", "b", "")]
    assert edges(f"A[one] {link} B[two]") == [("one", "two", "")]


@pytest.mark.parametrize(
    "link",
    [
        "-->|yes no|",
        "--> |yes no|",
        '-->|"yes no"|',
        "---|yes no|",
        "==>|yes no|",
        "-.->|yes no|",
        "<-->|yes no|",
        "-- yes no -->",
        "-- yes no ---",
        '-- "yes no" -->',
        "-- yes no --x",
        "== yes no ==>",
        "== yes no ===",
        "-. yes no .->",
        "-. yes no .-",
        "<-- yes no -->",
        "--yes no-->",
        "-->|Yes<br>No|",
    ],
)
def test_edge_texts_in_both_notations(link):
    assert edges(f"A {link} B") == [("a", "b", "yes no")]


def test_links_without_blanks():
    assert edges("A-->B---C==>D-.->E") == [("a", "b", ""), ("b", "c", ""), ("c", "d", ""), ("d", "e", "")]
    assert edges("A--no-->B") == [("a", "b", "no")]
    assert edges("a-b-->c_d") == [("a-b", "c_d", "")]


def test_as_in_mermaid_a_letter_o_or_x_after_a_link_is_its_head():
    assert edges("A---oB") == [("a", "b", "")]


def test_edges_are_directed_and_counted_as_often_as_written():
    assert edges("A --> B\nA --> B") == [("a", "b", "")] * 2
    assert edges("A <-- B") == [("b", "a", "")]
    assert edges("A <--> B") == [("a", "b", "")]
    assert similarity("flowchart TD\nA --> B", "flowchart TD\nB --> A", "strict") == pytest.approx(0.4)


def test_chained_edges():
    assert edges("A --> B -->|x| C -- y --> D") == [("a", "b", ""), ("b", "c", "x"), ("c", "d", "y")]


def test_fault_groups_joined_by_ampersands():
    assert edges("A & B --> C & D") == [("a", "c", ""), ("a", "d", ""), ("b", "c", ""), ("b", "d", "")]
    assert edges("A[x] & B --> C --> D & E") == [
        ("x", "c", ""), ("b", "c", ""), ("c", "d", ""), ("c", "e", ""),
    ]  # fmt: skip
    assert nodes("A & B\nA --> B") == ["a", "b"]


def test_fault_statements_separated_by_semicolons():
    """Public case: the one-line form gave an empty graph."""
    assert (
        similarity("flowchart TD; A[a] --> B[b]; B --> C[c];", "flowchart TD\nA[a] --> B[b]\nB --> C[c]", "strict") == 1
    )
    assert edges("A-->B;B-->C") == [("a", "b", ""), ("b", "c", "")]


def test_node_ids_are_irrelevant():
    """Public case."""
    response = "flowchart TD\nX1[Start] --> Q{OK?}\nQ -->|yes| Z[Done]\nQ -->|no| X1"
    assert similarity(response, CHART, "strict") == 1


def test_ignored_lines():
    body = (
        "%%{init: {'theme': 'dark'}}%%\n%% A --> X\nsubgraph one [A title --> x]\n  direction LR\n  A --> B\nend\n"
        "style A fill:#f9f,stroke:#333;\nclassDef big font-size:20pt;\nclass A,B big\nlinkStyle 0 stroke:red\n"
        'click A "https://a.b/;x" "tip"\naccTitle: A --> B\naccDescr: text'
    )
    chart = read_flowchart(f"flowchart TD\n{body}")
    assert (chart.nodes, chart.edges) == (["a", "b"], [("a", "b", "")])


def test_a_statement_behind_an_ignored_one_counts():
    assert edges("style A fill:#f9f; A --> B; class A x; B --> C") == [("a", "b", ""), ("b", "c", "")]


def test_ids_that_start_like_a_keyword_are_nodes():
    assert edges("endpoint --> styled\nEnd --> class1") == [("endpoint", "styled", ""), ("end", "class1", "")]


def test_edge_ids_are_no_nodes():
    chart = read_flowchart("flowchart TD\nA e1@--> B\ne1@{ animate: true }")
    assert (chart.nodes, chart.edges) == (["a", "b"], [("a", "b", "")])


def test_the_latest_text_of_a_node_counts():
    assert edges("A --> B\nA[first]\nB[two] --> A[last]\nA --> B") == [
        ("last", "two", ""), ("two", "last", ""), ("last", "two", ""),
    ]  # fmt: skip


def test_prose_around_a_flowchart_is_ignored():
    text = "Here is the chart:\n\n```mermaid\nflowchart TD\nA --> B\n```\nA --> C says the text."
    assert read_flowchart(text).edges == [("a", "b", "")]
    assert nodes("A --> B\nThis is all (I think).") == ["a", "b"]


def test_several_flowcharts_are_one_graph_with_separate_ids():
    chart = read_flowchart("```mermaid\ngraph TD\nA[x] --> B\n```\n```mermaid\ngraph TD\nA[y] --> B\n```")
    assert chart.edges == [("x", "b", ""), ("y", "b", "")]
    assert chart.nodes == ["x", "b", "y", "b"]


@pytest.mark.parametrize(
    "header", ["flowchart TD", "graph LR", "flowchart", "graph", "flowchart RL;", "  graph TB  ", "flowchart-elk BT"]
)
def test_header_lines(header):
    assert edges("A --> B", header) == [("a", "b", "")]


def test_statements_may_follow_the_direction():
    assert read_flowchart("flowchart TD A[x] --> B").edges == [("x", "b", "")]


@pytest.mark.parametrize("tail", ["A[cut", 'A["cut', "A -->", "A --> B[cut", "A -->|cut", "A -- cut", "A@{ label: cut"])
def test_a_cut_off_end_keeps_what_was_complete(tail):
    chart = read_flowchart(f"flowchart TD\nX --> Y\n{tail}")
    assert chart.edges[0] == ("x", "y", "")
    assert chart.nodes[:2] == ["x", "y"]


def test_similarity_weighs_edges_with_six_tenths_and_nodes_with_four():
    """Three of three nodes, one of two edges."""
    reference = "flowchart TD\nA[one] --> B[two]\nB --> C[three]"
    response = "flowchart TD\nA[one] --> B[two]\nC[three]"
    assert similarity(response, reference, "strict") == pytest.approx(0.6 * 1 / 2 + 0.4)


def test_edge_similarity_is_the_mean_of_source_target_and_text():
    """Texts yes against yse: ratio 4/6; the two edges with it have mean 8/9."""
    reference = "flowchart TD\nA -->|yes| B"
    response = "flowchart TD\nA -->|yse| B"
    assert similarity(response, reference) == round(float(Fraction(6, 10) * Fraction(8, 9) + Fraction(4, 10)), 6)
    assert similarity(response, reference, "strict") == 0.4


def test_an_edge_text_that_one_side_lacks_has_ratio_0():
    assert similarity("flowchart TD\nA --> B", "flowchart TD\nA -->|yes| B") == 0.4
    assert similarity("flowchart TD\nA --> B", "flowchart TD\nA -->|yes| B", "high") == pytest.approx(0.8)


def test_nodes_alone_count_when_neither_side_has_an_edge():
    reference = 'flowchart TD\nA["x --> y"]\nB[two]'
    response = 'flowchart TD\nA["x --> y"]\nB[six]'
    assert similarity(response, reference) == 0.5
    assert similarity('flowchart TD\nA["x --> y"] --> B[two]', reference) == 0.4


def test_labels_are_compared_in_lower_case():
    assert similarity(CHART.replace("Start", "START").replace("yes", "Yes"), CHART, "strict") == 1


def test_extra_nodes_and_edges_cost():
    assert similarity(CHART + "\nC --> D[more]", CHART, "strict") == pytest.approx(0.6 * 3 / 4 + 0.4 * 3 / 4)
