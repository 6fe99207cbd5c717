"""TEDS: tree-edit-distance-based similarity of HTML tables (Zhong et al., "Image-based table recognition: data, model,
and evaluation", ECCV 2020), and its structure-only variant.

    TEDS(a, b) = 1 − distance(a, b) / max(nodes of a, nodes of b)

over trees table → rows → cells (`table_tree.py`). Inserting or deleting a node costs 1. Renaming costs 1 when tag,
colspan or rowspan differ, otherwise the Levenshtein distance of the cell texts divided by the longer length, or 0 when
only structure counts. The value lies in [0, 1]; two empty tables have 1.

Limits. Distances are exact while the product of the two tables' node counts is at most `MAX_EXACT_NODE_PAIRS`. Larger
ones are compared as sequences: their nodes in postorder are aligned by the edit distance that asks only whether nodes
are equal, then aligned cells cost their text distance. Several tables are paired optimally while there are at most
`MAX_PAIRED_TABLES` and the product of all nodes of one side with all of the other stays within the same limit,
otherwise in the order of the document.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from rapidfuzz.distance import Levenshtein
from rapidfuzz.process import cdist

from reward.task_scorers.table_tree import MAX_SPAN, Cell, Table, read_tables
from reward.task_scorers.tree_edit import FlatTables, table_edit_distances

MAX_EXACT_NODE_PAIRS = 8_000_000
MAX_PAIRED_TABLES = 128


def teds(pred_html: str, ref_html: str, structure_only: bool = False) -> float:
    """Return the TEDS of the first tables in two pieces of HTML, in [0, 1].

    Cell texts are compared as they are read, not normalised. A side without a table has similarity 0 to a table, and 1
    to another side without one.

    >>> teds("<table><tr><td>a</td></tr></table>", "<table><tr><th>b</th></tr></table>")
    0.6666666666666667
    """
    predicted, reference = read_tables(pred_html), read_tables(ref_html)
    if not predicted or not reference:
        return float(not predicted and not reference)
    both = table_similarity(predicted[0], reference[0])
    return both[1] if structure_only else both[0]


def table_similarity(first: Table, second: Table) -> tuple[float, float]:
    """Return (TEDS, structure-only TEDS) of two tables, each in [0, 1]."""
    if first.rows == second.rows:
        return 1.0, 1.0
    if first.node_count * second.node_count > MAX_EXACT_NODE_PAIRS:
        return _sequence_similarity(first, second)
    content, structure = _exact_similarities([first], [second])
    return float(content[0, 0]), float(structure[0, 0])


def pair_tables(first: Sequence[Table], second: Sequence[Table]) -> list[tuple[int, int, float, float]]:
    """Pair equally many tables one to one, with the largest sum of TEDS and structure-only TEDS.

    Returns (index in `first`, index in `second`, TEDS, structure-only TEDS) in the order of `first`. Raises ValueError
    when the numbers differ.
    """
    if len(first) != len(second):
        raise ValueError(f"cannot pair {len(first)} tables with {len(second)}")
    if len(first) == 1:
        return [(0, 0, *table_similarity(first[0], second[0]))]
    node_pairs = sum(table.node_count for table in first) * sum(table.node_count for table in second)
    if len(first) > MAX_PAIRED_TABLES or node_pairs > MAX_EXACT_NODE_PAIRS:
        return _pair_in_order(first, second)
    from scipy.optimize import linear_sum_assignment

    content, structure = _exact_similarities(first, second)
    rows, columns = linear_sum_assignment(content + structure, maximize=True)
    return [(int(i), int(j), float(content[i, j]), float(structure[i, j])) for i, j in zip(rows, columns)]


def _pair_in_order(first: Sequence[Table], second: Sequence[Table]) -> list[tuple[int, int, float, float]]:
    pairs, budget = [], MAX_EXACT_NODE_PAIRS
    for index, (one, other) in enumerate(zip(first, second)):
        node_pairs = one.node_count * other.node_count
        if node_pairs <= budget:
            budget -= node_pairs
            similarity = table_similarity(one, other)
        else:
            similarity = _sequence_similarity(one, other)
        pairs.append((index, index, *similarity))
    return pairs


def _exact_similarities(first: Sequence[Table], second: Sequence[Table]) -> tuple[np.ndarray, np.ndarray]:
    """Return TEDS and structure-only TEDS of every pair: two matrices (len(first), len(second))."""
    first_flat, first_texts = _flatten(first)
    second_flat, second_texts = _flatten(second)
    pairs = np.indices((len(first), len(second)), dtype=np.int32).reshape(2, -1).T
    longer = np.maximum.outer([table.node_count for table in first], [table.node_count for table in second])
    costs = (
        cdist(first_texts, second_texts, scorer=Levenshtein.normalized_distance, dtype=np.float64, workers=1),
        np.zeros((len(first_texts), len(second_texts))),
    )
    content, structure = (
        np.maximum(1.0 - table_edit_distances(first_flat, second_flat, cost, pairs).reshape(longer.shape) / longer, 0.0)
        for cost in costs
    )
    return content, structure


def _flatten(tables: Sequence[Table]) -> tuple[FlatTables, list[str]]:
    """Lay tables out in arrays; also return the distinct cell texts that the arrays' text numbers stand for."""
    table_starts, row_starts, texts, spans = [0], [0], [], []
    numbers: dict[str, int] = {}
    for table in tables:
        for row in table.rows:
            for cell in row:
                texts.append(numbers.setdefault(cell.text, len(numbers)))
                spans.append(_span_number(cell))
            row_starts.append(len(texts))
        table_starts.append(len(row_starts) - 1)
    arrays = (np.array(values, dtype=np.int32) for values in (table_starts, row_starts, texts, spans))
    return FlatTables(*arrays), list(numbers)


def _sequence_similarity(first: Table, second: Table) -> tuple[float, float]:
    """Return approximate (TEDS, structure-only TEDS) of two tables, from alignments of their nodes in postorder."""
    nodes = list(_postorder(first)), list(_postorder(second))
    structure = Levenshtein.distance(*([_span_number(cell) if cell else 0 for cell in side] for side in nodes))
    numbers: dict[Cell | None, int] = {}
    content = 0.0
    for edit in Levenshtein.editops(*([numbers.setdefault(cell, len(numbers)) for cell in side] for side in nodes)):
        content += 1.0
        if edit.tag == "replace":
            one, other = nodes[0][edit.src_pos], nodes[1][edit.dest_pos]
            if one and other and _span_number(one) == _span_number(other):
                content += Levenshtein.normalized_distance(one.text, other.text) - 1.0
    longer = max(first.node_count, second.node_count)
    return 1.0 - content / longer, 1.0 - structure / longer


def _postorder(table: Table) -> Iterator[Cell | None]:
    """Yield the cells of each row, then None for the row."""
    for row in table.rows:
        yield from row
        yield None


def _span_number(cell: Cell) -> int:
    return cell.colspan * (MAX_SPAN + 1) + cell.rowspan
