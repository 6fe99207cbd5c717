"""Optimal one-to-one assignment of items by similarity, with a floor under which a pair counts nothing.

Exact up to MAX_WORK (the pairwise similarities) and MAX_ASSIGNMENT_WORK (the assignment, cubic in the largest group of
items that are linked by pairs above the floor). Past MAX_WORK equal items are paired first and the rest is sorted and
compared block by block; past MAX_ASSIGNMENT_WORK a group is paired greedily. Neither depends on the order of items.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from rapidfuzz.distance import Indel
from rapidfuzz.process import cdist
from scipy.optimize import linear_sum_assignment
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from reward.task_scorers.chart_deplot.tolerance import HIGH, TOLERANCES

MAX_WORK = 4_000_000
CHARS_PER_WORK = 1_024
"""Products of text lengths that cost about as much as one pair."""
MAX_ASSIGNMENT_WORK = 100_000_000
MAX_LINKS = 1_000_000
"""With more pairs above the floor all items are taken as one group."""
SMALL_ASSIGNMENT_WORK = 1_000_000
"""Below it the assignment is solved without looking for groups."""

CUTOFF_MARGIN = 0.01
"""rapidfuzz reports 0 for some pairs that lie right on its cutoff; the floor is applied to what it reports above one."""

_EPSILON = 1e-12  # Ratios of texts of up to 10^5 characters differ from a floor by more, or not at all.

Item = TypeVar("Item")


class Measure(NamedTuple, Generic[Item]):
    """How two items compare.

    Attributes:
        matrix: similarities of two sequences, float64, shape (len(first), len(second)); values under the lowest floor
            may be reported as 0.
        exact: similarity of one pair in [0, 1].
        work: cost of ``matrix``, in pairs of short texts.
    """

    matrix: Callable[[Sequence[Item], Sequence[Item]], np.ndarray]
    exact: Callable[[Item, Item], Fraction]
    work: Callable[[Sequence[Item], Sequence[Item]], int]


def text_ratio(first: str, second: str) -> Fraction:
    """1 − insert/delete distance / summed length; 1 for two empty texts.

    >>> text_ratio("abcd", "abed"), text_ratio("", "")
    (Fraction(3, 4), Fraction(1, 1))
    """
    return Fraction(*common_characters(first, second))


def common_characters(first: str, second: str) -> tuple[int, int]:
    """Numerator and denominator of ``text_ratio``; (1, 1) for two empty texts."""
    total = len(first) + len(second)
    return (total - Indel.distance(first, second), total) if total else (1, 1)


def ratio_matrix(first: Sequence[str], second: Sequence[str], cutoff: float = 0.0) -> np.ndarray:
    """``text_ratio`` of all pairs, float64; those under ``cutoff`` are 0."""
    return cdist(first, second, scorer=Indel.normalized_similarity, score_cutoff=cutoff, dtype=np.float64)


TEXT = Measure[str](
    matrix=lambda first, second: ratio_matrix(first, second, float(HIGH.floor) - CUTOFF_MARGIN),
    exact=text_ratio,
    work=lambda first, second: (
        len(first) * len(second) + sum(map(len, first)) * sum(map(len, second)) // CHARS_PER_WORK
    ),
)

Pairs = list[tuple[Item, Item]]


def assign(response: Sequence[Item], reference: Sequence[Item], measure: Measure[Item]) -> dict[str, Pairs[Item]]:
    """One-to-one pairs of greatest summed similarity by tolerance name; only pairs at or above the floor are listed.

    Pairs under the floor count 0 before the assignment, so they never keep an item from a better partner.
    Items must be hashable and sortable.
    """
    ours, theirs = sorted(response), sorted(reference)
    result: dict[str, Pairs[Item]] = {tolerance.name: [] for tolerance in TOLERANCES}
    equal = Counter(ours) & Counter(theirs)
    result["strict"] = [(item, item) for item in sorted(equal.elements())]
    blocks = _blocks(ours, theirs, measure, result)
    for first, second in blocks:
        similarity = measure.matrix(first, second)
        for tolerance in TOLERANCES[1:]:
            allowed = similarity >= float(tolerance.floor) - _EPSILON
            for i, j in _assign_block(np.where(allowed, similarity, 0.0), allowed, MAX_ASSIGNMENT_WORK // len(blocks)):
                result[tolerance.name].append((first[i], second[j]))
    return result


def summed_similarity(pairs: Iterable[tuple[Item, Item]], measure: Measure[Item]) -> Fraction:
    """Exact sum of the similarities of ``pairs``."""
    numerators: dict[int, int] = defaultdict(int)
    for first, second in pairs:
        similarity = Fraction(1) if first == second else measure.exact(first, second)
        numerators[similarity.denominator] += similarity.numerator
    return sum((Fraction(top, bottom) for bottom, top in sorted(numerators.items())), Fraction(0))


def _blocks(
    ours: list[Item], theirs: list[Item], measure: Measure[Item], result: dict[str, Pairs[Item]]
) -> list[tuple[list[Item], list[Item]]]:
    """Sorted items in blocks that can be compared in full: one, or several after the equal items went to ``result``."""
    if not ours or not theirs:
        return []
    if measure.work(ours, theirs) <= MAX_WORK:
        return [(ours, theirs)]
    equal = Counter(ours) & Counter(theirs)
    for tolerance in TOLERANCES[1:]:
        result[tolerance.name].extend((item, item) for item in sorted(equal.elements()))
    ours, theirs = (sorted((Counter(side) - equal).elements()) for side in (ours, theirs))
    count = min(-(-measure.work(ours, theirs) // MAX_WORK), max(len(ours), len(theirs)))
    blocks = []
    for index in range(count):
        first, second = (side[index * len(side) // count : (index + 1) * len(side) // count] for side in (ours, theirs))
        if first and second:
            blocks.append((first, second))
    return blocks


def _assign_block(similarity: np.ndarray, allowed: np.ndarray, budget: int) -> list[tuple[int, int]]:
    """Assignment of greatest sum over the allowed pairs, solved for each connected group of items on its own."""
    pairs: list[tuple[int, int]] = []
    groups = [(np.arange(similarity.shape[0]), np.arange(similarity.shape[1]))]
    if _assignment_work(groups[0]) > SMALL_ASSIGNMENT_WORK and np.count_nonzero(allowed) <= MAX_LINKS:
        groups = _connected_groups(allowed)
    works = [_assignment_work(group) for group in groups]
    # One limit for all groups, so that groups of equal size are treated alike.
    limit = budget if sum(works) <= budget else budget // len(groups)
    for (first, second), work in zip(groups, works):
        if len(first) == 1 and len(second) == 1:
            pairs.append((int(first[0]), int(second[0])))
            continue
        part = similarity[np.ix_(first, second)]
        chosen = zip(*linear_sum_assignment(part, maximize=True)) if work <= limit else _greedy(part)
        pairs.extend((int(first[i]), int(second[j])) for i, j in chosen)
    return [(i, j) for i, j in pairs if allowed[i, j]]


def _assignment_work(group: tuple[np.ndarray, np.ndarray]) -> int:
    shorter, longer = sorted(map(len, group))
    return shorter * shorter * longer


def _connected_groups(allowed: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows and columns of each connected component of the graph of allowed pairs that has both."""
    rows, columns = allowed.shape
    i, j = np.nonzero(allowed)
    graph = coo_matrix((np.ones(len(i), dtype=np.uint8), (i, j + rows)), shape=(rows + columns, rows + columns))
    count, label = connected_components(graph, directed=False)
    members = np.split(np.argsort(label, kind="stable"), np.cumsum(np.bincount(label, minlength=count))[:-1])
    cuts = [int(np.searchsorted(group, rows)) for group in members]
    return [(group[:cut], group[cut:] - rows) for group, cut in zip(members, cuts) if 0 < cut < len(group)]


def _greedy(similarity: np.ndarray) -> list[tuple[int, int]]:
    """Each row takes its best column that is still free, rows with the best partner first."""
    similarity = similarity.copy()
    pairs = []
    for i in np.argsort(-similarity.max(axis=1), kind="stable"):
        j = int(np.argmax(similarity[i]))
        if similarity[i, j] > 0:
            pairs.append((int(i), j))
            similarity[:, j] = 0
    return pairs
