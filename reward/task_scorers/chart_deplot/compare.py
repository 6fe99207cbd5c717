"""Similarity of two charts of one kind, at the three tolerances."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from reward.task_scorers.chart_deplot.agree import match_triples
from reward.task_scorers.chart_deplot.align import add_common_affixes, align_tables, drop_scattered
from reward.task_scorers.chart_deplot.assignment import TEXT, assign, summed_similarity
from reward.task_scorers.chart_deplot.edges import EDGE
from reward.task_scorers.chart_deplot.headers import display_header
from reward.task_scorers.chart_deplot.kinds import LIST, MERMAID, TABLE, Chart
from reward.task_scorers.chart_deplot.mermaid import Edge
from reward.task_scorers.chart_deplot.tolerance import SLIGHT, TOLERANCES, Similarities
from reward.task_scorers.chart_deplot.triples import Triple, make_triples, read_cells

EDGE_WEIGHT = Fraction(6, 10)
NODE_WEIGHT = Fraction(4, 10)
DESCRIPTION_CHARS = 160

Item = Triple | Edge | str


class Comparison(NamedTuple):
    """Outcome of a comparison.

    Attributes:
        similarities: similarity in [0, 1] by tolerance name.
        counts: number of compared items on both sides.
        notes: what was ignored or added before the comparison.
        agreeing: pairs of (response item, reference item) at the slight tolerance.
        response: items of the response: triples, paths, or edges and node texts.
        reference: items of the reference.
    """

    similarities: Similarities
    counts: dict[str, int]
    notes: list[str]
    agreeing: list[tuple[Item, Item]]
    response: list[Item]
    reference: list[Item]


def compare_tables(response: Chart, reference: Chart) -> Comparison:
    """Matches / (response triples + reference triples - matches)."""
    tables = align_tables(response.tables, reference.tables)
    expected = read_cells(tables.reference)
    cells, affix_notes = add_common_affixes(read_cells(tables.response), expected)
    cells, scatter_notes = drop_scattered(cells, expected)
    ours, theirs = make_triples(cells), make_triples(expected)
    matchings = match_triples(ours, theirs)
    similarities = {
        name: Fraction(len(pairs), len(ours) + len(theirs) - len(pairs)) for name, pairs in matchings.items()
    }
    counts = {"response_triples": len(ours), "reference_triples": len(theirs)}
    notes = [*tables.notes, *affix_notes, *scatter_notes]
    return Comparison(similarities, counts, notes, matchings[SLIGHT.name], ours, theirs)


def compare_lists(response: Chart, reference: Chart) -> Comparison:
    """Summed similarity of the assigned paths / paths of the longer side."""
    pairs = assign(response.paths, reference.paths, TEXT)
    total = max(len(response.paths), len(reference.paths))
    similarities = {name: summed_similarity(chosen, TEXT) / total for name, chosen in pairs.items()}
    counts = {"response_paths": len(response.paths), "reference_paths": len(reference.paths)}
    return Comparison(similarities, counts, [], pairs[SLIGHT.name], list(response.paths), list(reference.paths))


def compare_flowcharts(response: Chart, reference: Chart) -> Comparison:
    """0.6 · edges + 0.4 · nodes, each the summed similarity of the assigned / items of the longer side.

    Nodes alone count when neither side has an edge.
    """
    ours, theirs = response.flowchart, reference.flowchart
    edges, nodes = assign(ours.edges, theirs.edges, EDGE), assign(ours.nodes, theirs.nodes, TEXT)
    edge_total = max(ours.edge_count, theirs.edge_count)
    node_total = max(len(ours.nodes), len(theirs.nodes))
    similarities: Similarities = {}
    for name in (tolerance.name for tolerance in TOLERANCES):
        similarities[name] = summed_similarity(nodes[name], TEXT) / node_total
        if edge_total:
            edge_similarity = summed_similarity(edges[name], EDGE) / edge_total
            similarities[name] = EDGE_WEIGHT * edge_similarity + NODE_WEIGHT * similarities[name]
    counts = {
        "response_nodes": len(ours.nodes),
        "reference_nodes": len(theirs.nodes),
        "response_edges": ours.edge_count,
        "reference_edges": theirs.edge_count,
    }
    agreeing: list[tuple[Item, Item]] = [*edges[SLIGHT.name], *nodes[SLIGHT.name]]
    return Comparison(similarities, counts, [], agreeing, [*ours.edges, *ours.nodes], [*theirs.edges, *theirs.nodes])


COMPARISONS = {TABLE: compare_tables, LIST: compare_lists, MERMAID: compare_flowcharts}


def describe_item(item: Item) -> str:
    """An item as one line for people.

    >>> describe_item(("start", "done", "yes")), describe_item("fruit/apple")
    ('start -[yes]-> done', 'fruit/apple')
    """
    if isinstance(item, Triple):
        text = " | ".join([display_header(item.first), display_header(item.second), str(item.value)])
    elif isinstance(item, tuple):
        text = f"{item[0]} -[{item[2]}]-> {item[1]}" if item[2] else f"{item[0]} -> {item[1]}"
    else:
        text = item
    return text if len(text) <= DESCRIPTION_CHARS else text[: DESCRIPTION_CHARS - 1] + "…"
