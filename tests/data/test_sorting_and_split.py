"""The parts that make the output independent of order and memory: external sort, image groups, stratified choice."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.external_sort import ExternalSorter
from data.splitting import ImageGroups, choose_validation, seeded, validation_targets
from data.stats import Distribution

pairs = st.lists(st.tuples(st.binary(max_size=6), st.binary(max_size=40)), max_size=200)


@settings(max_examples=50, deadline=None)
@given(pairs, st.integers(1, 2000))
def test_the_external_sort_sorts_whatever_the_memory(tmp_path_factory, records, memory):
    sorter = ExternalSorter(str(tmp_path_factory.getbasetemp()), memory)
    for key, payload in records:
        sorter.add(key, payload)
    assert list(sorter) == sorted(records)
    assert list(sorter) == sorted(records), "a second walk gives the same"
    assert len(sorter) == len(records)
    sorter.close()


def test_the_external_sort_merges_more_runs_than_it_keeps_open_and_leaves_no_file(tmp_path):
    sorter = ExternalSorter(str(tmp_path), memory=1)
    numbers = [(n * 7919) % 1009 for n in range(1009)]
    for number in numbers:
        sorter.add(number.to_bytes(4, "big"), b"x" * (number % 50))
    assert [int.from_bytes(key, "big") for key, _ in sorter] == sorted(numbers)
    assert list(tmp_path.iterdir()) == []


def test_a_record_larger_than_a_read_block_survives(tmp_path):
    sorter = ExternalSorter(str(tmp_path), memory=1)
    big = bytes(range(256)) * 4000
    sorter.add(b"b", big)
    sorter.add(b"a", b"")
    assert list(sorter) == [(b"a", b""), (b"b", big)]


edges = st.lists(st.lists(st.sampled_from([bytes([n]) for n in range(12)]), min_size=1, max_size=4), max_size=12)


@settings(max_examples=100, deadline=None)
@given(edges, st.randoms(use_true_random=False))
def test_images_that_a_row_joins_share_a_group_whatever_the_order(rows, shuffle):
    groups, shuffled = ImageGroups(), ImageGroups()
    for row in rows:
        groups.join(row)
    again = list(rows)
    shuffle.shuffle(again)
    for row in again:
        shuffled.join(reversed(row))
    images = [bytes([n]) for n in range(12)]
    assert [groups.group(image) for image in images] == [shuffled.group(image) for image in images]
    assert all(len({groups.group(image) for image in row}) == 1 for row in rows)
    assert all(groups.group(image) <= image for image in images)


@pytest.mark.parametrize(
    ("rows", "ratio", "target"), [(1, 0.5, 0), (2, 0.01, 1), (10, 0.02, 1), (1000, 0.02, 20), (2, 0.99, 1), (9, 0, 0)]
)
def test_targets(rows, ratio, target):
    assert validation_targets(Counter({"VQA": rows}), ratio) == {"VQA": target}


groups_of_rows = st.lists(st.lists(st.sampled_from(["IE", "VQA"]), min_size=1, max_size=5), min_size=2, max_size=40)


@settings(max_examples=100, deadline=None)
@given(groups_of_rows, st.floats(0.01, 0.6))
def test_groups_stay_whole_and_targets_are_never_passed_by_more_than_they_were_missed(groups, ratio):
    rows = [
        (number.to_bytes(2, "big"), task, bytes([number, n]))
        for number, g in enumerate(groups)
        for n, task in enumerate(g)
    ]
    targets = validation_targets(Counter(task for _, task, _ in rows), ratio)
    chosen = set(choose_validation(rows, targets))
    for number, group in enumerate(groups):
        assert len({bytes([number, n]) in chosen for n in range(len(group))}) == 1
    taken = Counter(task for _, task, key in rows if key in chosen)
    largest = max(map(len, groups))
    assert all(taken[task] <= targets[task] + largest for task in targets)


def test_single_row_groups_meet_the_targets_exactly():
    rows = [(n.to_bytes(2, "big"), "IE" if n % 3 else "VQA", n.to_bytes(2, "big")) for n in range(900)]
    targets = validation_targets(Counter(task for _, task, _ in rows), 0.1)
    chosen = set(choose_validation(rows, targets))
    assert Counter(task for _, task, key in rows if key in chosen) == {"IE": 60, "VQA": 30}


def test_the_seed_changes_the_order():
    keys = [bytes([n]) for n in range(100)]
    orders = [sorted(keys, key=lambda key, s=seed: seeded(key, s)) for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=1))
def test_percentiles_are_values_that_occur(values):
    found = Distribution()
    for value in values:
        found.add(value)
    ordered = sorted(values)
    assert found.percentile(100) == ordered[-1]
    assert found.percentile(50) == ordered[(len(values) + 1) // 2 - 1]
    assert found.above(25) == sum(value > 25 for value in values)
    assert Distribution().percentile(50) is None
