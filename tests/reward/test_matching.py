"""One-to-one matching: exact on small inputs, bounded and sensible on large ones."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reward.task_scorers.matching import (
    MAX_BOX_PAIRS,
    MAX_CANDIDATES,
    MAX_EXACT_CELLS,
    greedy_matching,
    match_boxes,
    match_candidates,
    max_matching_then_weight,
)


def _best_by_trying_all(weight, allowed, tie_cost):
    """(pairs, summed weight, -summed tie cost) of the best matching, in exact arithmetic."""
    best = (0, Fraction(0), Fraction(0))

    def extend(row, used, value):
        nonlocal best
        if row == len(weight):
            best = max(best, value)
            return
        extend(row + 1, used, value)
        for col in range(len(weight[0])):
            if allowed[row][col] and col not in used:
                pairs, total, cost = value
                extend(row + 1, used | {col}, (pairs + 1, total + weight[row][col], cost - tie_cost[row][col]))

    extend(0, frozenset(), best)
    return best


@st.composite
def _problems(draw):
    rows, cols = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    denominator = draw(st.sampled_from([2, 3, 7, 10, 12, 1000]))
    seed = draw(st.integers(0, 2**32 - 1))
    density = draw(st.sampled_from([0.3, 0.7, 1.0]))
    rng = np.random.default_rng(seed)
    weight = [
        [Fraction(int(rng.integers(denominator // 2, denominator + 1)), denominator) for _ in range(cols)]
        for _ in range(rows)
    ]
    tie_cost = [[Fraction(int(rng.integers(0, 5)), 4) for _ in range(cols)] for _ in range(rows)]
    return weight, rng.random((rows, cols)) < density, tie_cost


def _as_array(values):
    return np.array([[float(value) for value in row] for row in values])


@settings(max_examples=400, deadline=None)
@given(_problems())
def test_number_then_weight_then_tie_cost_equal_trying_all_matchings(problem):
    weight, allowed, tie_cost = problem
    pairs = max_matching_then_weight(_as_array(weight), allowed, _as_array(tie_cost))
    assert all(allowed[row][col] for row, col in pairs)
    assert len({row for row, _ in pairs}) == len({col for _, col in pairs}) == len(pairs)
    value = (
        len(pairs),
        sum((weight[row][col] for row, col in pairs), Fraction(0)),
        -sum((tie_cost[row][col] for row, col in pairs), Fraction(0)),
    )
    assert value == _best_by_trying_all(weight, allowed, tie_cost)


def test_one_more_pair_beats_any_weight():
    weight = np.array([[1.0, 0.5], [0.5, 0.0]])
    assert max_matching_then_weight(weight, weight >= 0.5) == [(0, 1), (1, 0)]


def test_a_billionth_of_weight_beats_any_tie_cost():
    weight = np.array([[0.6, 0.6], [0.6, 0.6 + 2e-7]])
    tie_cost = np.array([[1.0, 0.0], [0.0, 1.0]])
    assert max_matching_then_weight(weight, weight > 0, tie_cost) == [(0, 0), (1, 1)]


def test_equal_sums_of_decimals_are_a_tie():
    # 0.6 + 0.8 and 0.7 + 0.7 differ in binary; the tie cost has to decide.
    weight = np.array([[0.6, 0.7], [0.7, 0.8]])
    straight, crossed = [(0, 0), (1, 1)], [(0, 1), (1, 0)]
    assert max_matching_then_weight(weight, weight > 0, np.array([[0.0, 1.0], [1.0, 0.0]])) == straight
    assert max_matching_then_weight(weight, weight > 0, np.array([[1.0, 0.0], [0.0, 1.0]])) == crossed


def test_tie_cost_does_not_uncover_a_column_that_the_weight_needs():
    # Column 2 has the heavy pairs; leaving it for the free column 1 would be cheaper in ties.
    weight = np.array([[0.9, 0.5, 0.9], [0.5, 0.5, 0.9]])
    tie_cost = np.array([[0.9, 0.0, 0.9], [0.0, 0.0, 0.9]])
    assert max_matching_then_weight(weight, weight > 0, tie_cost) == [(0, 0), (1, 2)]


def test_weights_above_one_and_no_pairs():
    weight = np.array([[1.9, 1.2], [1.8, 0.1]])
    assert max_matching_then_weight(weight, np.ones((2, 2), bool)) == [(0, 1), (1, 0)]
    assert max_matching_then_weight(weight, np.zeros((2, 2), bool)) == []
    assert max_matching_then_weight(np.zeros((0, 3)), np.zeros((0, 3), bool)) == []
    assert max_matching_then_weight(np.zeros((2, 2)), np.ones((2, 2), bool)) in ([(0, 0), (1, 1)], [(0, 1), (1, 0)])


def test_components_are_independent():
    rng = np.random.default_rng(0)
    blocks = [rng.random((3, 4)) for _ in range(5)]
    weight = np.zeros((15, 20))
    allowed = np.zeros((15, 20), dtype=bool)
    expected = []
    for index, block in enumerate(blocks):
        weight[3 * index : 3 * index + 3, 4 * index : 4 * index + 4] = block
        allowed[3 * index : 3 * index + 3, 4 * index : 4 * index + 4] = True
        expected += [
            (row + 3 * index, col + 4 * index) for row, col in max_matching_then_weight(block, np.ones((3, 4), bool))
        ]
    assert max_matching_then_weight(weight, allowed) == expected


def test_500_by_500_is_exact():
    rng = np.random.default_rng(1)
    order = rng.permutation(500)
    weight = 0.5 + rng.random((500, 500)) / 4
    weight[np.arange(500), order] = 0.9
    assert max_matching_then_weight(weight, np.ones((500, 500), bool)) == list(enumerate(order.tolist()))
    tie_cost = np.ones((500, 500))
    tie_cost[np.arange(500), order] = 0.0
    same = np.full((500, 500), 0.75)
    assert max_matching_then_weight(same, same > 0, tie_cost) == list(enumerate(order.tolist()))


def _boxes_in_a_grid(count):
    index = np.arange(count)
    left, top = index % 50 * 20.0, index // 50 * 20.0
    return np.stack([left, top, left + 15, top + 10], axis=1)


@pytest.mark.parametrize("count", [40, 700, 1100])
def test_boxes_apart_from_each_other_match_exactly_at_any_size(count):
    boxes = _boxes_in_a_grid(count)
    order = np.random.default_rng(2).permutation(count)
    pairs = match_boxes(boxes, boxes[order] + 1.0, 0.5)
    assert [(row, int(order[col])) for row, col, _ in pairs] == [(index, index) for index in range(count)]
    assert all(0.5 <= iou < 1 for _, _, iou in pairs)


@pytest.mark.parametrize("count", [int(MAX_EXACT_CELLS**0.5) + 10, int(MAX_BOX_PAIRS**0.5) + 10])
def test_past_the_exact_size_equal_labels_pair_first_and_nothing_is_lost(count):
    boxes = np.tile([0.0, 0.0, 10.0, 10.0], (count, 1))
    names = [str(index) for index in range(count)]
    order = np.random.default_rng(3).permutation(count)
    pairs = match_boxes(boxes, boxes, 0.5, labels=(names, [names[index] for index in order]))
    assert [(row, int(order[col])) for row, col, _ in pairs] == [(index, index) for index in range(count)]
    assert len(match_boxes(boxes, boxes, 0.5)) == count


def test_past_the_number_of_candidates_the_matching_is_greedy_by_weight():
    count = int(MAX_CANDIDATES**0.5) + 10
    rows, cols = (axis.ravel() for axis in np.indices((count, count)))
    pairs = match_candidates((rows, cols, 0.5 + (rows + cols == count - 1) / 4), (count, count))
    assert pairs == [(row, count - 1 - row, 0.75) for row in range(count)]


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 7), st.integers(1, 7))
def test_losing_an_item_never_raises_the_number_of_greedy_pairs(seed, rows, cols):
    rng = np.random.default_rng(seed)
    weight = rng.random((rows, cols)) * (rng.random((rows, cols)) < 0.6)

    def pairs_of(kept_rows, kept_cols):
        def candidates_of(row, _free):
            near = np.flatnonzero(weight[row, kept_cols])
            return near, weight[row, kept_cols][near]

        return len(greedy_matching(kept_rows, len(kept_cols), candidates_of))

    all_rows, all_cols = list(range(rows)), list(range(cols))
    number = pairs_of(all_rows, all_cols)
    exact = len(max_matching_then_weight(weight, weight > 0))
    assert exact / 2 <= number <= exact
    for row in all_rows:
        assert pairs_of([other for other in all_rows if other != row], all_cols) <= number
    for col in all_cols:
        assert pairs_of(all_rows, [other for other in all_cols if other != col]) <= number
