"""Compiled edit distance between table trees (table → rows → cells), exact and in time proportional to the product of
the two node counts.

It is the ordered tree edit distance of Zhang and Shasha (SIAM J. Comput. 18(6), 1989) with insert and delete cost 1,
specialised for trees of depth three. Three facts make one pass over pairs of nodes enough:

- both roots are labelled `table`, so some optimal mapping maps root to root at cost 0, and the distance of the trees is
  that of their forests of rows;
- for the same reason the distance of two rows as trees is the string edit distance of their cells;
- mapping a cell to a row with k ≥ 1 cells (rename 1, insert k) is never cheaper than inserting that row and mapping the
  cell to one of its cells (1 + (k − 1) + at most 1), so such pairs matter for empty rows only.

What remains is the forest distance over prefixes of the two postorders. A row may still be deleted while its cells go
on to match cells of other rows, as in the general problem.

Importing this module compiles the kernel, or loads it from numba's cache next to this file (from a per-user cache
folder when this one is read-only; without any cache when neither can be written).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numba import float64, int32, void


@dataclass(frozen=True)
class FlatTables:
    """Tables laid out in flat arrays (int32).

    Table t has the rows `table[t] … table[t + 1] - 1` (table: (T + 1,)), row r the cells `row[r] … row[r + 1] - 1`
    (row: (R + 1,)). A cell has the index of its text among the side's distinct texts and a number that stands for its
    spans (text, span: (C,)).
    """

    table: np.ndarray
    row: np.ndarray
    text: np.ndarray
    span: np.ndarray


def table_edit_distances(first: FlatTables, second: FlatTables, text_cost: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Return the tree edit distance of each pair of tables (P,), float64.

    `pairs` (P, 2) names tables of the first and the second side. `text_cost` (U, V) holds the cost in [0, 1] of turning
    text u of the first side into text v of the second; cells of different spans cost 1. Runs without the GIL; memory
    beyond the arguments is linear in the number of nodes.
    """
    distances = np.empty(len(pairs))
    columns = np.empty((3, len(second.row) + len(second.text) + 1))
    _distances(
        first.table, first.row, first.text, first.span,
        second.table, second.row, second.text, second.span,
        np.ascontiguousarray(text_cost, dtype=np.float64), np.ascontiguousarray(pairs, dtype=np.int32),
        columns[0], columns[1], columns[2], distances,
    )  # fmt: skip
    return distances


def _compiled(*signature: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile for exactly `signature`, without the GIL, cached on disk where that is possible."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        try:
            return numba.njit(*signature, nogil=True, cache=True)(function)
        except RuntimeError:  # numba: "cannot cache function …: no locator available"
            return numba.njit(*signature, nogil=True)(function)

    return decorate


_INTS = int32[::1]
_FLOATS = float64[::1]


# Plain loops over arrays that the caller allocates: allocation and whole-array expressions in here would quadruple the
# time to compile.
@_compiled(
    void(
        _INTS, _INTS, _INTS, _INTS, _INTS, _INTS, _INTS, _INTS,
        float64[:, ::1], int32[:, ::1], _FLOATS, _FLOATS, _FLOATS, _FLOATS,
    )
)  # fmt: skip
def _distances(
    first_table, first_row, first_text, first_span,
    second_table, second_row, second_text, second_span,
    text_cost, pairs, line, before_row, cells, distances,
):  # fmt: skip
    for pair in range(distances.size):
        rows_from, rows_to = first_table[pairs[pair, 0]], first_table[pairs[pair, 0] + 1]
        others_from, others_to = second_table[pairs[pair, 1]], second_table[pairs[pair, 1] + 1]
        nodes = others_to - others_from + second_row[others_to] - second_row[others_from]
        # Column j stands for the forest of the second table's first j nodes in postorder. `line` holds the distances
        # of the part of the first table read so far, `before_row` those before its current row. `cells` holds, for
        # each row of the second table, the string edit distances between the cells of the current row read so far and
        # the first cells of that row; the stretches of the rows share the columns' numbering.
        for j in range(nodes + 1):
            line[j] = j
        for row in range(rows_from, rows_to):
            for j in range(nodes + 1):
                before_row[j] = line[j]
            j = 0
            for other in range(others_from, others_to):
                width = second_row[other + 1] - second_row[other]
                for k in range(width + 1):
                    cells[j + k] = k
                j += width + 1

            for cell in range(first_row[row], first_row[row + 1]):
                diagonal = line[0]
                line[0] += 1.0
                j = 0
                for other in range(others_from, others_to):
                    cells_diagonal = cells[j]
                    cells[j] += 1.0
                    for other_cell in range(second_row[other], second_row[other + 1]):
                        j += 1
                        rename = 1.0
                        if first_span[cell] == second_span[other_cell]:
                            rename = text_cost[first_text[cell], second_text[other_cell]]
                        above = line[j]
                        line[j] = min(diagonal + rename, min(above, line[j - 1]) + 1.0)
                        diagonal = above
                        above = cells[j]
                        cells[j] = min(cells_diagonal + rename, min(above, cells[j - 1]) + 1.0)
                        cells_diagonal = above
                    j += 1
                    above = line[j]
                    line[j] = min(above, line[j - 1]) + 1.0
                    if second_row[other] == second_row[other + 1]:
                        line[j] = min(line[j], diagonal + 1.0)
                    diagonal = above

            row_is_empty = first_row[row] == first_row[row + 1]
            diagonal = line[0]
            line[0] += 1.0
            j = 0
            for other in range(others_from, others_to):
                start = j
                for _ in range(second_row[other], second_row[other + 1]):
                    j += 1
                    above = line[j]
                    line[j] = min(above, line[j - 1]) + 1.0
                    if row_is_empty:
                        line[j] = min(line[j], diagonal + 1.0)
                    diagonal = above
                whole_row = before_row[start] + cells[j]
                j += 1
                above = line[j]
                line[j] = min(whole_row, min(above, line[j - 1]) + 1.0)
                diagonal = above
        distances[pair] = line[nodes]
