"""IoU of boxes and polygons."""

import numpy as np
import pytest
import shapely
from hypothesis import given, settings
from hypothesis import strategies as st

from reward.task_scorers.geometry import box_candidates, box_iou_matrix
from reward.task_scorers.polygons import convex_intersection_areas, polygon_candidates, polygon_iou


def box_iou(a, b):
    return float(box_iou_matrix([a], [b])[0, 0])


@pytest.mark.parametrize(
    ("a", "b", "iou"),
    [
        ((0, 0, 10, 10), (0, 0, 10, 10), 1.0),
        ((0, 0, 10, 10), (0, 0, 10, 5), 0.5),
        ((0, 0, 10, 10), (10, 0, 20, 10), 0.0),
        ((0, 0, 10, 10), (20, 20, 30, 30), 0.0),
        ((-5, -5, 5, 5), (0, 0, 5, 5), 0.25),
        # iou-01: coordinates are not truncated to integers.
        ((0.9, 0.9, 1.9, 1.9), (0, 0, 1, 1), 0.01 / 1.99),
        # iou-03: the whole picture is not a good answer.
        ((0, 0, 643, 476), (29.12, 56.09, 270.74, 473.53), 0.32954),
    ],
)
def test_box_iou(a, b, iou):
    assert box_iou(a, b) == pytest.approx(iou, abs=1e-6)
    assert box_iou(b, a) == box_iou(a, b)


@pytest.mark.parametrize(
    ("a", "b", "iou"),
    [
        ((5, 5, 5, 5), (5, 5, 5, 5), 1.0),
        ((0, 5, 9, 5), (0, 5, 9, 5), 1.0),
        ((0, 5, 9, 5), (0, 5, 8, 5), 0.0),
        ((5, 5, 5, 5), (0, 0, 9, 9), 0.0),
        ((0, 5, 9, 5), (5, 0, 5, 9), 0.0),
    ],
)
def test_boxes_without_area_match_identical_ones_only(a, b, iou):
    assert box_iou(a, b) == iou


@pytest.mark.parametrize("size", [1e-200, 1e-20, 1e20, 1e200, 1e308])
def test_box_iou_over_the_range_of_doubles(size):
    assert box_iou((0, 0, size, size), (0, 0, size, size)) == 1.0
    assert box_iou((0, 0, size, size), (0, 0, size, size / 2)) == pytest.approx(0.5)
    assert box_iou((-size, -size, size, size), (-size, -size, size, size)) == 1.0
    assert 0 <= box_iou((0, 0, size, size), (0, 0, 1, 1)) <= 1


def test_threshold_is_inclusive_and_not_missed_by_rounding():
    rows, cols, iou = box_candidates(
        [(0, 0, 10, 10), (0.1, 0.1, 0.4, 0.3)], [(0, 0, 10, 5), (0.1, 0.1, 0.4, 0.2), (0, 0, 10, 4.99)], 0.5
    )
    assert list(zip(rows.tolist(), cols.tolist(), strict=True)) == [(0, 0), (1, 1)]
    assert iou == pytest.approx([0.5, 0.5])


def test_candidates_of_many_boxes_equal_the_matrix():
    rng = np.random.default_rng(0)
    corners = rng.integers(0, 60, (400, 2))
    boxes = np.concatenate([corners, corners + rng.integers(0, 40, (400, 2))], axis=1).astype(float)
    rows, cols, iou = box_candidates(boxes, boxes[:300], 0.5)
    matrix = box_iou_matrix(boxes, boxes[:300])
    assert np.array_equal(np.argwhere(matrix >= 0.5), np.stack([rows, cols], axis=1))
    assert np.array_equal(iou, matrix[rows, cols])


def _region(points):
    if len(points) == 2:
        (x0, y0), (x1, y1) = points
        points = [(x0, y0), (x1, y0), (x1, y1), (x0, y1)]
    polygon = shapely.Polygon(points)
    return polygon if polygon.is_valid else shapely.MultiPoint(points).convex_hull


@st.composite
def _polygons(draw):
    size = draw(st.sampled_from([2, 5, 20, 1000]))
    point = st.tuples(st.integers(0, size), st.integers(0, size))
    return draw(
        st.lists(point, min_size=2, max_size=7).filter(lambda points: len(points) != 2 or points[0] <= points[1])
    )


@settings(max_examples=300, deadline=None)
@given(_polygons(), _polygons())
def test_polygon_iou_is_intersection_over_union(a, b):
    first, second = _region(a), _region(b)
    if first.area and second.area:
        expected = first.intersection(second).area / first.union(second).area
    else:
        expected = float(first.area == second.area == 0 and first.equals(second))
    assert polygon_iou(a, b) == pytest.approx(expected, abs=1e-9)
    assert 0 <= polygon_iou(a, b) <= 1
    rows, _, _ = polygon_candidates([a], [b], 0.5)
    assert len(rows) == (expected >= 0.5 - 1e-9)


@settings(max_examples=100, deadline=None)
@given(_polygons(), st.integers(0, 6), st.booleans())
def test_a_polygon_has_iou_1_with_itself_however_its_ring_is_written(polygon, shift, reverse):
    shift %= len(polygon)
    other = polygon[shift:] + polygon[:shift]
    if reverse:
        other.reverse()
    if len(polygon) == 2:
        other = polygon
    elif shapely.Polygon(polygon).is_valid:
        other = [*other, other[0]]
    assert polygon_iou(polygon, other) == pytest.approx(1.0)


DIAMOND = [(50, 0), (100, 50), (50, 100), (0, 50)]
SQUARE = [(0, 0), (100, 0), (100, 100), (0, 100)]


def test_a_tilted_polygon_is_not_its_bounding_box():
    assert polygon_iou(DIAMOND, SQUARE) == pytest.approx(0.5)
    assert polygon_iou(SQUARE, [(0, 0), (100, 100)]) == 1.0


def test_iou_never_exceeds_1_for_crossed_corners():
    # A ring that crosses itself has half its hull's signed area: dividing by it gave values above 1.
    crossed = [(0, 0), (100, 0), (0, 100), (100, 100)]
    assert polygon_iou(crossed, SQUARE) == 1.0
    assert polygon_iou(crossed, crossed) == 1.0


def test_a_concave_polygon_keeps_its_shape():
    arrow = [(0, 0), (100, 0), (50, 50), (100, 100), (0, 100)]
    assert polygon_iou(arrow, SQUARE) == pytest.approx(0.75)
    assert polygon_iou(arrow, arrow) == 1.0


def test_groups_do_not_meet():
    rows, cols, _ = polygon_candidates([SQUARE, SQUARE], [SQUARE, SQUARE], 0.5, ["a", "b"], ["b", "c"])
    assert (rows.tolist(), cols.tolist()) == ([1], [0])


def test_huge_coordinates_count_as_bounding_boxes():
    far = [(0, 0), (1e300, 0), (1e300, 1e300), (5, 1e300)]
    assert polygon_iou(far, far) == 1.0
    assert polygon_iou(far, SQUARE) == 0.0


def test_a_polygon_of_many_vertices_counts_as_its_smallest_rectangle():
    for teeth, expected in ((20, 0.75), (80, 1.0)):
        edge = [(100 * tooth / teeth, 50 * (tooth % 2)) for tooth in range(teeth + 1)]
        assert polygon_iou([*edge, (100, 100), (0, 100)], SQUARE) == pytest.approx(expected)


def test_past_the_limits_general_polygons_count_as_rectangles_then_as_boxes():
    arrow = [(0, 0), (100, 0), (50, 50), (100, 100), (0, 100)]
    for count, expected in ((20, 0.75), (40, 1.0)):
        rows, _, iou = polygon_candidates([arrow] * count, [SQUARE] * count, 0.5)
        assert len(rows) == count * count
        assert iou == pytest.approx(expected)
    for count, expected in ((100, 0.5), (180, 1.0)):
        _, _, iou = polygon_candidates([DIAMOND] * count, [SQUARE] * count, 0.5)
        assert iou == pytest.approx(expected)


def test_clipping_away_everything_leaves_no_area():
    a = np.array([[(0, 0), (1, 0), (1, 1), (0, 1)]], dtype=float)
    assert convex_intersection_areas(a, a + 5.0).tolist() == [0.0]
    assert convex_intersection_areas(a, a + 0.5) == pytest.approx([0.25])
