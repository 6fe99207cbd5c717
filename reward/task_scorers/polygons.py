"""Intersection over union (IoU) of polygons, vectorised over many pairs.

A polygon is a sequence of at least two points in any unit; two points are the corners of an axis-aligned box. One that
is not valid (self-crossing, or a ring that touches itself) is replaced by its convex hull. Polygons of zero area follow
the rule for boxes: identical ones have IoU 1, any other pair with one of them has IoU 0.

IoU is exact within rounding, except under these limits, which only hostile input reaches:

- a polygon of more than 64 vertices counts as its smallest rotated rectangle;
- one with a coordinate beyond 1e30, and whatever it is compared with, counts as its bounding box;
- pairs with a polygon other than a convex quadrilateral or a triangle, when they have more than 20,000 products of
  vertices in all, count as their smallest rotated rectangles;
- past 30,000 pairs of tilted quadrilaterals that may reach the threshold these count as their bounding boxes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from reward.task_scorers.geometry import (
    CHUNK_CELLS,
    THRESHOLD_SLACK,
    Candidates,
    Point,
    as_boxes,
    bounding_box,
    box_iou_matrix,
    joined,
)

_HUGE_COORDINATE = 1e30
_MAX_VERTICES = 64
_MAX_CLIPPED_PAIRS = 30_000
_MAX_OVERLAY_WORK = 20_000

_FLAT, _BOX, _QUAD, _GENERAL, _HUGE = range(5)


def polygon_iou(a: Sequence[Point], b: Sequence[Point]) -> float:
    """IoU of two polygons, in [0, 1].

    >>> polygon_iou([(0, 0), (2, 0), (2, 2), (0, 2)], [(0, 0), (2, 0), (2, 1), (0, 1)])
    0.5
    """
    _, _, iou = polygon_candidates([a], [b], threshold=0.0)
    return float(iou[0])


def polygon_candidates(
    a: Sequence[Sequence[Point]],
    b: Sequence[Sequence[Point]],
    threshold: float,
    groups_a: Sequence[str] | None = None,
    groups_b: Sequence[str] | None = None,
) -> Candidates:
    """``(rows, cols, iou)`` of the pairs of one group (default: a single group) with IoU at or above ``threshold``."""
    shapes_a, shapes_b = _Shapes(a), _Shapes(b)
    labels_a, labels_b = _labels(groups_a or [""] * len(a), groups_b or [""] * len(b))
    rows, cols, iou = _plausible_pairs(shapes_a, shapes_b, labels_a, labels_b, threshold)
    kinds_a, kinds_b = shapes_a.kinds[rows], shapes_b.kinds[cols]
    flat = (kinds_a == _FLAT) | (kinds_b == _FLAT)
    for pair in np.flatnonzero(flat):
        iou[pair] = shapes_a.flat_key(rows[pair]) == shapes_b.flat_key(cols[pair])
    boxes = (kinds_a == _HUGE) | (kinds_b == _HUGE) | ((kinds_a == _BOX) & (kinds_b == _BOX))
    general = ((kinds_a == _GENERAL) | (kinds_b == _GENERAL)) & ~flat & ~boxes
    tilted = ~flat & ~boxes & ~general
    if general.any():
        overlaid = _overlay_iou(shapes_a, shapes_b, rows[general], cols[general])
        if overlaid is None:
            tilted |= general
        else:
            iou[general] = overlaid
    if 0 < tilted.sum() <= _MAX_CLIPPED_PAIRS:
        iou[tilted] = _quad_iou(shapes_a, shapes_b, rows[tilted], cols[tilted])
    kept = iou >= threshold - THRESHOLD_SLACK
    return rows[kept], cols[kept], iou[kept]


class _Shape(NamedTuple):
    """One polygon prepared for comparison.

    ``quad`` is a ring of four vertices and positive orientation (a triangle repeats its last one; for a general polygon
    its smallest rotated rectangle), ``geometry`` the shapely polygon of a general one, ``flat_key`` tells polygons
    without area apart.
    """

    kind: int
    area: float
    quad: list[Point]
    geometry: object = None
    flat_key: bytes = b""


class _Shapes:
    """The polygons of one side as arrays: ``kinds`` and ``areas`` (N,), ``boxes`` (N, 4), ``quads`` (N, 4, 2)."""

    def __init__(self, polygons: Sequence[Sequence[Point]]):
        boxes = [bounding_box(points) for points in polygons]
        shapes = [_shape(points, box) for points, box in zip(polygons, boxes)]
        self._shapes = shapes
        self.boxes = as_boxes(boxes)
        self.kinds = np.array([shape.kind for shape in shapes], dtype=np.int64)
        self.areas = np.array([shape.area for shape in shapes], dtype=np.float64)
        self.quads = np.array([shape.quad for shape in shapes], dtype=np.float64).reshape(-1, 4, 2)

    def flat_key(self, index: int) -> bytes:
        return self._shapes[index].flat_key

    def geometries(self, used: np.ndarray) -> np.ndarray:
        """Shapely polygons (N,), None where ``used`` (indices) does not name them."""
        import shapely

        made = np.full(len(self._shapes), None, dtype=object)
        for index in np.unique(used):
            made[index] = self._shapes[index].geometry or shapely.Polygon(self._shapes[index].quad)
        return made


def _corners(box: tuple[float, float, float, float]) -> list[Point]:
    xmin, ymin, xmax, ymax = box
    return [(xmin, ymin), (xmax, ymin), (xmax, ymax), (xmin, ymax)]


def _shape(points: Sequence[Point], box: tuple[float, float, float, float]) -> _Shape:
    if len(points) > 3 and points[0] == points[-1]:
        points = points[:-1]
    corners = _corners(box)
    if max(map(abs, box)) > _HUGE_COORDINATE:
        return _Shape(_HUGE, 0.0, corners)
    if (len(points) == 2 or _is_rectangle(points)) and (area := _ring_area(corners)) > 0:
        return _Shape(_BOX, area, corners)
    if len(points) in (3, 4) and (quad := _convex_quad(points)):
        return _Shape(_QUAD, _ring_area(quad), quad)
    return _irregular_shape(points if len(points) > 2 else corners, corners)


def _irregular_shape(points: Sequence[Point], corners: list[Point]) -> _Shape:
    import shapely

    geometry = shapely.Polygon(points)
    if len(points) > _MAX_VERTICES:
        geometry = shapely.oriented_envelope(shapely.MultiPoint(points))
    elif not shapely.is_valid(geometry):
        geometry = shapely.convex_hull(shapely.MultiPoint(points))
    if geometry.geom_type != "Polygon" or geometry.area <= 0:
        return _Shape(_FLAT, 0.0, corners, flat_key=shapely.to_wkb(shapely.normalize(geometry)))
    ring = [(x, y) for x, y in shapely.get_coordinates(geometry)[:-1].tolist()]
    if _is_rectangle(ring):
        return _Shape(_BOX, _ring_area(corners), corners)
    if len(ring) in (3, 4) and (quad := _convex_quad(ring)):
        return _Shape(_QUAD, _ring_area(quad), quad)
    rectangle = shapely.get_coordinates(shapely.oriented_envelope(geometry))[:-1].tolist()
    if _ring_area(rectangle) < 0:
        rectangle.reverse()
    return _Shape(_GENERAL, geometry.area, rectangle, geometry)


def _is_rectangle(ring: Sequence[Point]) -> bool:
    """Whether four points in ring order are the corners of an axis-aligned box."""
    if len(ring) != 4:
        return False
    (x0, y0), (x1, y1), (x2, y2), (x3, y3) = ring
    return (y0 == y1 and x1 == x2 and y2 == y3 and x3 == x0) or (x0 == x1 and y1 == y2 and x2 == x3 and y3 == y0)


def _convex_quad(ring: Sequence[Point]) -> list[Point] | None:
    """Three or four points as a strictly convex ring of positive orientation and four vertices, or None."""
    turns = []
    for index in range(len(ring)):
        (x0, y0), (x1, y1), (x2, y2) = ring[index - 2], ring[index - 1], ring[index]
        turns.append((x1 - x0) * (y2 - y1) - (y1 - y0) * (x2 - x1))
    if min(turns) > 0:
        quad = list(ring)
    elif max(turns) < 0:
        quad = list(ring[::-1])
    else:
        return None
    return quad if len(quad) == 4 else [*quad, quad[-1]]


def _ring_area(ring: Sequence[Point]) -> float:
    """Signed area of a ring by the shoelace formula, around its first vertex to keep precision."""
    x0, y0 = ring[0]
    return 0.5 * sum(
        (ring[index][0] - x0) * (ring[index + 1][1] - y0) - (ring[index + 1][0] - x0) * (ring[index][1] - y0)
        for index in range(1, len(ring) - 1)
    )


def _labels(groups_a: Sequence[str], groups_b: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    numbers = {name: number for number, name in enumerate(dict.fromkeys([*groups_a, *groups_b]))}
    a, b = (np.array([numbers[name] for name in groups], dtype=np.int64) for groups in (groups_a, groups_b))
    return a, b


def _plausible_pairs(
    a: _Shapes, b: _Shapes, labels_a: np.ndarray, labels_b: np.ndarray, threshold: float
) -> Candidates:
    """Pairs of one group that may reach the threshold, with the IoU of their bounding boxes.

    The intersection is at most that of the bounding boxes and at most the smaller area, which bounds the IoU.
    """
    floor = threshold - THRESHOLD_SLACK
    only_boxes = np.isin(a.kinds, (_BOX, _HUGE)).all() and np.isin(b.kinds, (_BOX, _HUGE)).all()
    sizes_b = _box_areas(b.boxes)
    parts = []
    step = max(1, CHUNK_CELLS // max(1, len(b.boxes)))
    for start in range(0, len(a.boxes), step):
        block = slice(start, start + step)
        iou = box_iou_matrix(a.boxes[block], b.boxes)
        plausible = iou >= floor
        if not only_boxes:
            areas = a.areas[block][:, None]
            with np.errstate(all="ignore"):
                shared = iou / (1.0 + iou) * (_box_areas(a.boxes[block])[:, None] + sizes_b)
                shared = np.minimum(shared, np.minimum(areas, b.areas))
                bound = shared / (areas + b.areas - shared)
            huge = (a.kinds[block] == _HUGE)[:, None] | (b.kinds == _HUGE)
            flat = (a.kinds[block] == _FLAT)[:, None] & (b.kinds == _FLAT)
            same_box = (a.boxes[block][:, None, :] == b.boxes).all(axis=2)
            plausible = np.where(huge, iou, bound) >= floor
            plausible |= (flat & same_box) | (floor <= 0)
        plausible &= labels_a[block][:, None] == labels_b
        rows, cols = np.nonzero(plausible)
        parts.append((rows + start, cols, iou[rows, cols]))
    return joined(parts)


def _box_areas(boxes: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def _overlay_iou(a: _Shapes, b: _Shapes, rows: np.ndarray, cols: np.ndarray) -> np.ndarray | None:
    """IoU of pairs of any valid polygons, or None when that would be too much work."""
    import shapely

    geometries_a, geometries_b = a.geometries(rows), b.geometries(cols)
    sizes_a, sizes_b = shapely.get_num_coordinates(geometries_a), shapely.get_num_coordinates(geometries_b)
    if (sizes_a[rows] * sizes_b[cols]).sum() > _MAX_OVERLAY_WORK:
        return None
    intersection = shapely.area(shapely.intersection(geometries_a[rows], geometries_b[cols]))
    return _ratio(intersection, a.areas[rows], b.areas[cols])


def _quad_iou(a: _Shapes, b: _Shapes, rows: np.ndarray, cols: np.ndarray) -> np.ndarray:
    """IoU of pairs of quadrilaterals; general polygons count as their smallest rotated rectangles."""
    intersection = convex_intersection_areas(a.quads[rows], b.quads[cols])
    return _ratio(intersection, _polygon_areas(a.quads)[rows], _polygon_areas(b.quads)[cols])


def _ratio(intersection: np.ndarray, areas_a: np.ndarray, areas_b: np.ndarray) -> np.ndarray:
    intersection = np.minimum(intersection, np.minimum(areas_a, areas_b))
    return np.clip(intersection / (areas_a + areas_b - intersection), 0.0, 1.0)


def convex_intersection_areas(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Areas (P,) of the intersections of convex polygons ``a`` (P, K, 2) and ``b`` (P, L, 2), pair by pair.

    Both have positive orientation; repeated vertices are allowed. Each polygon of ``a`` is cut by the edges of its
    partner (Sutherland and Hodgman, Reentrant Polygon Clipping, 1974), all pairs at once.
    """
    origin = a[:, :1, :]
    subject, clip = a - origin, b - origin
    for edge in range(clip.shape[1]):
        subject = _cut(subject, clip[:, edge - 1, None, :], clip[:, edge, None, :])
    return np.maximum(_polygon_areas(subject), 0.0)


def _cut(subject: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The part of polygons (P, K, 2) left of the lines from ``start`` to ``end`` (P, 1, 2), padded by repeats."""
    x, y = subject[..., 0], subject[..., 1]
    side = (end[..., 0] - start[..., 0]) * (y - start[..., 1]) - (end[..., 1] - start[..., 1]) * (x - start[..., 0])
    inside = side >= 0
    crossing = inside != np.roll(inside, -1, axis=1)
    share = np.zeros_like(side)
    np.divide(side, side - np.roll(side, -1, axis=1), out=share, where=crossing)
    cut = subject + share[..., None] * (np.roll(subject, -1, axis=1) - subject)
    vertices = np.stack([subject, cut], axis=2).reshape(len(subject), -1, 2)
    kept = np.stack([inside, crossing], axis=2).reshape(len(subject), -1)
    position = np.cumsum(kept, axis=1) - 1
    width = int(position[:, -1].max()) + 1
    first = vertices[np.arange(len(subject)), np.argmax(kept, axis=1)]
    result = np.repeat(first[:, None, :], max(1, width), axis=1)
    row, column = np.nonzero(kept)
    result[row, position[row, column]] = vertices[row, column]
    return result


def _polygon_areas(rings: np.ndarray) -> np.ndarray:
    """Signed areas (P,) of rings (P, K, 2)."""
    x, y = rings[..., 0] - rings[..., :1, 0], rings[..., 1] - rings[..., :1, 1]
    return 0.5 * (x * np.roll(y, -1, axis=1) - y * np.roll(x, -1, axis=1)).sum(axis=1)
