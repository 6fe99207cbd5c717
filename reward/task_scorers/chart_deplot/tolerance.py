"""The three tolerances at which two charts are compared, and the score made of the middle one.

The scheme is the structuring-chart-oriented metric (SCRM) of StructChart (Xia et al., 2023, arXiv:2309.11268):
a similarity per sample, averaged over ten thresholds as mean average precision does with IoU.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Tolerance:
    """How far two parts of a chart may differ and still agree.

    Attributes:
        name: "strict", "slight" or "high".
        words: largest summed edit distance of a table triple's texts, in code points.
        percent: largest deviation of a number, in percent of the reference number.
        floor: least similarity, in [0, 1], that a pair of list items, nodes or edges must have to count.
    """

    name: str
    words: int
    percent: int
    floor: Fraction


STRICT = Tolerance("strict", 0, 0, Fraction(1))
SLIGHT = Tolerance("slight", 2, 5, Fraction(85, 100))
HIGH = Tolerance("high", 5, 10, Fraction(60, 100))
TOLERANCES = (STRICT, SLIGHT, HIGH)

THRESHOLDS = tuple(Fraction(percent, 100) for percent in range(50, 100, 5))

Similarities = dict[str, Fraction]
"""Similarity in [0, 1] by tolerance name."""


def threshold_score(similarity: Fraction) -> float:
    """Mean over the thresholds 0.50, 0.55 … 0.95 of [similarity >= threshold]; in [0, 1].

    The comparison is exact: 0.55 = 11/20 passes the threshold 0.55, which binary fractions do not promise.

    >>> threshold_score(Fraction(1)), threshold_score(Fraction(11, 20)), threshold_score(Fraction(49, 100))
    (1.0, 0.2, 0.0)
    """
    return sum(similarity >= threshold for threshold in THRESHOLDS) / len(THRESHOLDS)
