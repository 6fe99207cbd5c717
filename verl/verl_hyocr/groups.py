"""Samples of one prompt stay together: on one rank, and in one micro-batch, where their image is encoded once.

Pure functions on lengths and group names. Which sample meets which in a micro-batch changes no gradient: the loss is
normalised over the whole mini-batch.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def by_group(names: Sequence[Hashable]) -> list[list[int]]:
    """Indices of each group, groups in order of their first member."""
    found: dict[Hashable, list[int]] = {}
    for index, name in enumerate(names):
        found.setdefault(name, []).append(index)
    return list(found.values())


def count_bins(lengths: Sequence[int], capacity: int) -> int:
    """Bins that consecutive filling needs.

    Raises:
        ValueError: an item is longer than ``capacity``.
    """
    bins, room = 0, 0
    for length in lengths:
        if length > capacity:
            raise ValueError(f"a sample of {length} tokens is longer than the budget of {capacity}")
        if length > room:
            bins, room = bins + 1, capacity
        room -= length
    return bins


def split_evenly(lengths: Sequence[int], bins: int, capacity: int) -> list[range]:
    """Cut a sequence into exactly ``bins`` non-empty runs with the smallest largest sum that is at most ``capacity``.

    Args:
        lengths: tokens per item, at least ``bins`` of them.
        bins: number of runs; at least ``count_bins(lengths, capacity)``.

    Returns:
        The runs, as ranges of indices in order.

    Raises:
        ValueError: there are fewer items than bins, or they do not fit.
    """
    if not 0 < bins <= len(lengths):
        raise ValueError(f"{len(lengths)} samples cannot fill {bins} micro-batches")
    if count_bins(lengths, capacity) > bins:
        raise ValueError(f"{sum(lengths)} tokens do not fit into {bins} micro-batches of {capacity}")
    low, high = max(max(lengths), -(-sum(lengths) // bins)), capacity
    while low < high:
        middle = (low + high) // 2
        if count_bins(lengths, middle) <= bins:
            high = middle
        else:
            low = middle + 1
    cuts = [0]
    room = low
    for index, length in enumerate(lengths):
        if length > room:
            cuts.append(index)
            room = low
        room -= length
    runs = [range(start, stop) for start, stop in zip(cuts, [*cuts[1:], len(lengths)], strict=True)]
    while len(runs) < bins:
        longest = max((run for run in runs if len(run) > 1), key=lambda run: sum(lengths[index] for index in run))
        where, middle = runs.index(longest), longest.start + len(longest) // 2
        runs[where : where + 1] = [range(longest.start, middle), range(middle, longest.stop)]
    return runs


def spread_over_ranks(lengths: Sequence[int], names: Sequence[Hashable], ranks: int) -> list[list[int]]:
    """Share samples out to ranks, as many to each, whole groups where they fit, with similar numbers of tokens.

    Args:
        lengths: tokens per sample; their number is a multiple of ``ranks``.
        names: group of each sample.

    Returns:
        Indices per rank, groups together.

    Raises:
        ValueError: the samples cannot be shared out in equal numbers.
    """
    if len(lengths) % ranks:
        raise ValueError(f"{len(lengths)} samples cannot be shared out equally to {ranks} ranks")
    room = [len(lengths) // ranks] * ranks
    load = [0] * ranks
    found: list[list[int]] = [[] for _ in range(ranks)]
    groups = sorted(by_group(names), key=lambda group: -sum(lengths[index] for index in group))
    for group in groups:
        rest = list(group)
        while rest:
            whole = [rank for rank in range(ranks) if room[rank] >= len(rest)]
            # Without a rank that can take the whole rest, the roomiest takes what it can.
            rank = min(whole, key=lambda rank: load[rank]) if whole else max(range(ranks), key=lambda rank: room[rank])
            part, rest = rest[: room[rank]], rest[room[rank] :]
            found[rank] += part
            room[rank] -= len(part)
            load[rank] += sum(lengths[index] for index in part)
    return found
