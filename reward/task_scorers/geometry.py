"""Intersection over union (IoU) of axis-aligned boxes, vectorised over many pairs.

Boxes are ``(xmin, ymin, xmax, ymax)`` with ordered corners in any unit. Boxes of zero area follow one rule: identical
ones have IoU 1, any other pair with one of them has IoU 0. Polygons are in ``polygons``.

Candidate functions return ``(rows, cols, iou)``: the index pairs whose IoU reaches a threshold, in row-major order. A
threshold is met within 1e-9, so that decimal coordinates do not miss it by rounding.
"""

from collections.abc import Sequence

import numpy as np

THRESHOLD_SLACK = 1e-9
CHUNK_CELLS = 1 << 15
_SAFE_SIDE = 1e150

Point = tuple[float, float]
Candidates = tuple[np.ndarray, np.ndarray, np.ndarray]


def as_boxes(boxes: Sequence[Sequence[float]]) -> np.ndarray:
    """Boxes as a float array (N, 4), also for an empty sequence."""
    return np.asarray(boxes, dtype=np.float64).reshape(-1, 4)


def bounding_box(points: Sequence[Point]) -> tuple[float, float, float, float]:
    """Axis-aligned ``(xmin, ymin, xmax, ymax)`` of at least one point."""
    xs, ys = zip(*points, strict=True)
    return min(xs), min(ys), max(xs), max(ys)


def box_iou_matrix(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """IoU of every box of ``a`` (N, 4) with every box of ``b`` (M, 4) as an array (N, M) with values in [0, 1].

    Coordinates may be any finite numbers: sides whose products would leave the range of a double are compared through
    the ratios of their lengths instead of through areas.
    """
    # Halving is exact and keeps the side of a box over the full range of a double finite.
    a, b = as_boxes(a) * 0.5, as_boxes(b) * 0.5
    sides_a, sides_b = a[:, 2:] - a[:, :2], b[:, 2:] - b[:, :2]
    flat_a, flat_b = (sides_a <= 0).any(axis=1), (sides_b <= 0).any(axis=1)
    width, height = _overlap(a, b, 0), _overlap(a, b, 1)
    sides = np.concatenate([sides_a[~flat_a], sides_b[~flat_b]])
    with np.errstate(all="ignore"):
        if not sides.size or (sides.max() < _SAFE_SIDE and sides.min() > 1 / _SAFE_SIDE):
            iou = np.multiply(width, height, out=width)
            union = np.add(sides_a.prod(axis=1)[:, None], sides_b.prod(axis=1), out=height)
            union -= iou
            iou /= union
        else:
            share_a = (width / sides_a[:, :1]) * (height / sides_a[:, 1:])
            share_b = (width / sides_b[:, 0]) * (height / sides_b[:, 1])
            iou = 1.0 / (1.0 / share_a + 1.0 / share_b - 1.0)
    iou[flat_a] = 0.0
    iou[:, flat_b] = 0.0
    if flat_a.any() and flat_b.any():
        rows, cols = np.flatnonzero(flat_a), np.flatnonzero(flat_b)
        iou[np.ix_(rows, cols)] = (a[rows][:, None, :] == b[cols]).all(axis=2)
    return np.minimum(iou, 1.0, out=iou)


def _overlap(a: np.ndarray, b: np.ndarray, axis: int) -> np.ndarray:
    """Lengths (N, M) of the common parts along one axis, at least 0."""
    length = np.minimum(a[:, None, 2 + axis], b[:, 2 + axis])
    length -= np.maximum(a[:, None, axis], b[:, axis])
    return np.maximum(length, 0.0, out=length)


def box_candidates(a: np.ndarray, b: np.ndarray, threshold: float) -> Candidates:
    """Pairs of boxes with IoU at or above ``threshold``; memory stays bounded by the number of such pairs."""
    a, b = as_boxes(a), as_boxes(b)
    parts = []
    step = max(1, CHUNK_CELLS // max(1, len(b)))
    for start in range(0, len(a), step):
        iou = box_iou_matrix(a[start : start + step], b)
        rows, cols = np.nonzero(iou >= threshold - THRESHOLD_SLACK)
        parts.append((rows + start, cols, iou[rows, cols]))
    return joined(parts)


def joined(parts: list[Candidates]) -> Candidates:
    """Candidates of several blocks as one."""
    if not parts:
        empty = np.zeros(0, dtype=np.int64)
        return empty, empty, np.zeros(0)
    rows, cols, iou = (np.concatenate(column) for column in zip(*parts, strict=True))
    return rows, cols, iou
