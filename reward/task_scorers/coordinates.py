"""Coordinates in answers: ``(x,y),(x,y)`` chains in text, numbers and lists in JSON. Linear time, finite values only."""

import math
import re
from typing import Any

from reward.task_scorers.geometry import Point

# Possessive quantifiers: no position is ever tried twice.
NUMBER = r"[+-]?(?:[0-9]++(?:\.[0-9]*+)?+|\.[0-9]++)"
POINT = rf"\(\s*+({NUMBER})\s*+,\s*+({NUMBER})\s*+\)"

_POINT = re.compile(POINT)
_JOINT = re.compile(r"\s*+,\s*+")


def parse_points(text: str) -> list[Point] | None:
    """Points of a chain ``(x1,y1),(x2,y2)…`` that makes up the whole text, or None for anything else.

    Integers or decimals, blanks anywhere; a number beyond the range of a double makes the chain unreadable.

    >>> parse_points("(1,2),(3.5,4)"), parse_points("(1,2) or (3,4)")
    ([(1.0, 2.0), (3.5, 4.0)], None)
    """
    text = text.strip()
    points = []
    position = 0
    while match := _POINT.match(text, position):
        point = finite_point(match[1], match[2])
        if point is None:
            return None
        points.append(point)
        joint = _JOINT.match(text, match.end())
        if joint is None:
            return points if match.end() == len(text) else None
        position = joint.end()
    return None


def finite_point(x: str, y: str) -> Point | None:
    """Two number literals as a point, or None when one is not finite."""
    point = float(x), float(y)
    return point if math.isfinite(point[0]) and math.isfinite(point[1]) else None


def finite_number(value: Any) -> float | None:
    """A JSON number as a finite float; None for booleans, strings, anything else, NaN, and values beyond a double."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def finite_numbers(value: Any) -> list[float] | None:
    """A JSON list of finite numbers as floats, or None."""
    if not isinstance(value, list):
        return None
    numbers = [finite_number(item) for item in value]
    return None if None in numbers else numbers
