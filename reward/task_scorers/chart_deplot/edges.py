"""How two edges of flowcharts compare: the mean of the ratios of their source, target and edge texts."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from reward.task_scorers.chart_deplot.assignment import Measure, common_characters, ratio_matrix
from reward.task_scorers.chart_deplot.mermaid import Edge


def edge_ratio(first: Edge, second: Edge) -> Fraction:
    """Mean of the ratios of source, target and edge text; two empty edge texts have ratio 1.

    >>> edge_ratio(("a", "b", ""), ("a", "b", "yes"))
    Fraction(2, 3)
    """
    top, bottom = 0, 1
    for ours, theirs in zip(first, second):
        same, total = common_characters(ours, theirs)
        top, bottom = top * total + same * bottom, bottom * total
    return Fraction(top, 3 * bottom)


def _edge_matrix(first: Sequence[Edge], second: Sequence[Edge]) -> np.ndarray:
    total = np.zeros((len(first), len(second)))
    for part in range(3):
        ours, our_index = _index([edge[part] for edge in first])
        theirs, their_index = _index([edge[part] for edge in second])
        total += ratio_matrix(ours, theirs)[np.ix_(our_index, their_index)]
    return total / 3


def _index(texts: list[str]) -> tuple[list[str], list[int]]:
    index: dict[str, int] = {}
    positions = [index.setdefault(text, len(index)) for text in texts]
    return list(index), positions


EDGE = Measure[Edge](matrix=_edge_matrix, exact=edge_ratio, work=lambda first, second: 4 * len(first) * len(second))
