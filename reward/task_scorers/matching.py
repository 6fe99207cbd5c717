"""One-to-one matching of two item lists: most pairs first, then largest summed weight, then least tie cost.

The allowed pairs form a bipartite graph that falls apart into connected components, nearly all of one pair when neither
list overlaps itself. Each component is solved exactly in three steps:

1. An assignment problem over integers held in doubles, in which one more pair outweighs any weights. Weights are
   rounded to 2**-30 (1e-9), so no sum loses precision.
2. Optimal dual prices of that assignment by Bellman-Ford over the exchanges it allows. By complementary slackness the
   equally good matchings are exactly those made of pairs with zero reduced cost that cover every priced column.
3. A second assignment over these pairs alone, by tie cost. Reduced costs up to 8e-9 count as zero, which absorbs the
   rounding of weights that are equal in exact arithmetic.

Past ``MAX_EXACT_CELLS`` (rows times columns, summed over the components from the smallest on; two lists of 547 items
that all overlap) the remaining components are matched greedily, past ``MAX_CANDIDATES`` allowed pairs all of them:
items with equal labels first, then row by row the heaviest free column. That is a greedy matching in a fixed order of
the pairs, so losing an item never raises the number of pairs, and lists that do not overlap themselves still get their
exact matching.
"""

from collections.abc import Callable, Hashable, Sequence

import numpy as np

from reward.task_scorers.geometry import CHUNK_CELLS, THRESHOLD_SLACK, Candidates, box_candidates, box_iou_matrix

MAX_EXACT_CELLS = 300_000
MAX_CANDIDATES = 400_000
MAX_BOX_PAIRS = 1_000_000

_UNITS = float(1 << 30)
_TIE_SLACK = 8.0

Pair = tuple[int, int]
WeightedPair = tuple[int, int, float]
TieCost = Callable[[np.ndarray, np.ndarray], np.ndarray]
Labels = tuple[Sequence[Hashable], Sequence[Hashable]]


def max_matching_then_weight(weight: np.ndarray, allowed: np.ndarray, tie_cost: np.ndarray | None = None) -> list[Pair]:
    """Match rows to columns one to one, over allowed pairs only.

    Args:
        weight: (N, M) finite, at least 0; entries that are not allowed are ignored.
        allowed: (N, M) booleans.
        tie_cost: (N, M) finite, at least 0, or None.

    Returns:
        Pairs in row order: of all matchings with the most pairs those of largest summed weight, of these one of least
        summed tie cost.

    >>> weight = np.array([[0.9, 0.6], [0.8, 0.0]])
    >>> max_matching_then_weight(weight, weight >= 0.5)
    [(0, 1), (1, 0)]
    """
    weight, allowed = np.asarray(weight, dtype=np.float64), np.asarray(allowed, dtype=bool)
    rows, cols = np.nonzero(allowed)
    block = None if tie_cost is None else (lambda chosen_rows, chosen_cols: tie_cost[np.ix_(chosen_rows, chosen_cols)])
    return [pair[:2] for pair in match_candidates((rows, cols, weight[rows, cols]), weight.shape, block)]


def match_candidates(
    candidates: Candidates, shape: tuple[int, int], tie_cost: TieCost | None = None, labels: Labels | None = None
) -> list[WeightedPair]:
    """The same for a sparse list of allowed pairs, with the weights of the chosen ones.

    Args:
        candidates: ``(rows, cols, weight)`` in row-major order without repeats.
        shape: numbers of rows and of columns.
        tie_cost: gives the block (n, m) of tie costs for some rows (n,) and columns (m,); asked only where there is a
            choice.
        labels: one label for each row and each column, for the greedy matching past the exact size: equal ones are
            paired first and must belong to an allowed pair of weight 1.
    """
    rows, cols, weight = candidates
    if not len(rows):
        return []
    if len(rows) > MAX_CANDIDATES:
        return _greedy_candidates(rows, cols, weight, shape[1], labels)
    lone = (np.bincount(rows, minlength=shape[0])[rows] == 1) & (np.bincount(cols, minlength=shape[1])[cols] == 1)
    pairs = list(zip(rows[lone].tolist(), cols[lone].tolist(), weight[lone].tolist(), strict=True))
    rows, cols, weight = rows[~lone], cols[~lone], weight[~lone]
    spent = 0
    too_large = []
    for members in _components(rows, cols, shape):
        block_rows, row_index = np.unique(rows[members], return_inverse=True)
        block_cols, col_index = np.unique(cols[members], return_inverse=True)
        spent += len(block_rows) * len(block_cols)
        if spent > MAX_EXACT_CELLS:
            too_large.append(members)
            continue
        allowed = np.zeros((len(block_rows), len(block_cols)), dtype=bool)
        allowed[row_index, col_index] = True
        weights = np.zeros(allowed.shape)
        weights[row_index, col_index] = weight[members]
        ties = None if tie_cost is None else tie_cost(block_rows, block_cols)
        for row, col in _solve(weights, allowed, ties):
            pairs.append((int(block_rows[row]), int(block_cols[col]), float(weights[row, col])))
    if too_large:
        rest = np.sort(np.concatenate(too_large))
        pairs += _greedy_candidates(rows[rest], cols[rest], weight[rest], shape[1], labels)
    return sorted(pairs)


def match_boxes(
    a: np.ndarray, b: np.ndarray, threshold: float, tie_cost: TieCost | None = None, labels: Labels | None = None
) -> list[WeightedPair]:
    """Match boxes (N, 4) to boxes (M, 4) with IoU at or above ``threshold``, as ``(row, column, IoU)`` in row order.

    Past ``MAX_BOX_PAIRS`` pairs of boxes, overlapping or not, the matching is greedy.
    """
    if len(a) * len(b) > MAX_BOX_PAIRS:
        return match_boxes_greedily(a, b, threshold, labels)
    return match_candidates(box_candidates(a, b, threshold), (len(a), len(b)), tie_cost, labels)


def match_boxes_greedily(
    a: np.ndarray, b: np.ndarray, threshold: float, labels: Labels | None = None
) -> list[WeightedPair]:
    """``greedy_matching`` of boxes with IoU at or above ``threshold``, in bounded memory."""
    return greedy_matching(range(len(a)), len(b), _OpenBoxes(a, b, threshold).of, labels)


def greedy_matching(
    rows: Sequence[int],
    column_count: int,
    candidates_of: Callable[[int, np.ndarray], tuple[np.ndarray, np.ndarray]],
    labels: Labels | None = None,
) -> list[WeightedPair]:
    """Items with equal labels first, in order; then each row in turn takes its heaviest free column.

    ``candidates_of(row, free)`` gives columns allowed for a row and their weights; it may leave out columns that the
    mask ``free`` (M,) excludes. Rows are asked in the order of ``rows``. Between equal weights the first column is
    taken. At least half as many pairs as the largest matching.
    """
    free = np.ones(column_count, dtype=bool)
    pairs = []
    if labels is not None:
        waiting: dict[Hashable, list[int]] = {}
        for row in reversed(rows):
            waiting.setdefault(labels[0][row], []).append(row)
        for col, label in enumerate(labels[1]):
            if waiting.get(label):
                pairs.append((waiting[label].pop(), col, 1.0))
                free[col] = False
    taken = {row for row, _, _ in pairs}
    for row in rows:
        if row in taken:
            continue
        cols, weight = candidates_of(row, free)
        open_cols = free[cols]
        if open_cols.any():
            best = int(np.argmax(np.where(open_cols, weight, -1.0)))
            col = int(cols[best])
            pairs.append((row, col, float(weight[best])))
            free[col] = False
    return sorted(pairs)


class _OpenBoxes:
    """Candidates of one box after the other, computed in blocks of rows against the columns still free."""

    def __init__(self, a: np.ndarray, b: np.ndarray, threshold: float):
        self._a, self._b, self._areas = a, b, _areas(b)
        self._floor = threshold - THRESHOLD_SLACK
        self._start = self._stop = 0
        self._cols = self._iou = np.zeros(0)

    def of(self, row: int, free: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if not self._start <= row < self._stop:
            self._start, self._stop = row, row + max(1, CHUNK_CELLS // max(1, len(self._b)))
            block = self._a[self._start : self._stop]
            self._cols = np.flatnonzero(free & ~self._hopeless(block))
            self._iou = box_iou_matrix(block, self._b[self._cols])
        iou = self._iou[row - self._start]
        near = np.flatnonzero(iou >= self._floor)
        return self._cols[near], iou[near]

    def _hopeless(self, block: np.ndarray) -> np.ndarray:
        """Columns apart from all rows of the block, or too small or too large for them (M,)."""
        b, areas, ratio = self._b, self._areas, self._floor * (1 - 1e-6)
        own = _areas(block)
        apart = (b[:, 0] > block[:, 2].max()) | (b[:, 2] < block[:, 0].min())
        apart |= (b[:, 1] > block[:, 3].max()) | (b[:, 3] < block[:, 1].min())
        return apart | (areas < own.min() * ratio) | (areas * ratio > own.max())


def _areas(boxes: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def _components(rows: np.ndarray, cols: np.ndarray, shape: tuple[int, int]) -> list[np.ndarray]:
    """Indices of the candidates of each connected component, small components first."""
    if not len(rows):
        return []
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    size = shape[0] + shape[1]
    graph = coo_array((np.ones(len(rows), dtype=np.int8), (rows, cols + shape[0])), shape=(size, size))
    _, label = connected_components(graph, directed=False)
    order = np.argsort(label[rows], kind="stable")
    members = np.split(order, np.flatnonzero(np.diff(label[rows][order])) + 1)
    return sorted(members, key=len)


def _greedy_candidates(
    rows: np.ndarray, cols: np.ndarray, weight: np.ndarray, column_count: int, labels: Labels | None
) -> list[WeightedPair]:
    used_rows, starts = np.unique(rows, return_index=True)
    parts = dict(zip(used_rows.tolist(), zip(starts, np.append(starts[1:], len(rows))), strict=True))

    def candidates_of(row: int, _free: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        part = slice(*parts[row])
        return cols[part], weight[part]

    return greedy_matching(used_rows.tolist(), column_count, candidates_of, labels)


def _solve(weight: np.ndarray, allowed: np.ndarray, tie_cost: np.ndarray | None) -> list[Pair]:
    if weight.shape[0] > weight.shape[1]:
        swapped = _solve(weight.T, allowed.T, None if tie_cost is None else tie_cost.T)
        return [(row, col) for col, row in swapped]
    from scipy.optimize import linear_sum_assignment

    scaled = np.rint(weight / max(1.0, float(weight.max())) * _UNITS)
    cost = np.where(allowed, -scaled - _UNITS * (len(weight) + 1), 0.0)
    row, col = linear_sum_assignment(cost)
    if tie_cost is not None and tie_cost[row, col][allowed[row, col]].any():
        col = _least_tie_cost(cost, col, np.where(allowed, tie_cost, 0.0))
    return [(int(r), int(c)) for r, c in zip(row, col, strict=True) if allowed[r, c]]


def _least_tie_cost(cost: np.ndarray, col: np.ndarray, tie_cost: np.ndarray) -> np.ndarray:
    """Columns of an assignment of least tie cost among those that cost as little as the assignment ``col``."""
    from scipy.optimize import linear_sum_assignment

    own = cost[np.arange(len(col)), col]
    exchange = cost - own[:, None]
    price = np.zeros(cost.shape[1])
    for _ in range(len(col) + 1):
        lower = np.minimum(price, (price[col][:, None] + exchange).min(axis=0))
        if np.array_equal(lower, price):
            break
        price = lower
    reduced = exchange + price[col][:, None] - price
    # A priced column has to stay covered: the bonus outweighs any sum of tie costs.
    bonus = (tie_cost.max() * len(col) + 1.0) * (price < -_TIE_SLACK)
    return linear_sum_assignment(np.where(reduced <= _TIE_SLACK, tie_cost - bonus, np.inf))[1]
