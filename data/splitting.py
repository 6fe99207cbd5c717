"""Train and validation split: whole image groups, stratified by task, decided by content and seed alone."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby

# One row as the split sees it: (group key, task, row key).
SplitRow = tuple[bytes, str, bytes]


class ImageGroups:
    """Which images belong together because some row shows them side by side.

    Only images of rows with several images are held, so memory grows with those and not with the number of rows.
    """

    def __init__(self) -> None:
        self._parent: dict[bytes, bytes] = {}

    def join(self, images: Iterable[bytes]) -> None:
        """Note that one row shows all these images."""
        roots = sorted({self._root(image) for image in images})
        for root in roots[1:]:
            self._parent[root] = roots[0]

    def group(self, image: bytes) -> bytes:
        """The smallest image of the group; the image itself when no row joins it to another."""
        return self._root(image) if image in self._parent else image

    def _root(self, image: bytes) -> bytes:
        parents = self._parent
        root = parents.setdefault(image, image)
        while parents[root] != root:
            root = parents[root]
        while parents[image] != root:
            parents[image], image = root, parents[image]
        return root


def seeded(key: bytes, seed: int) -> bytes:
    """16 bytes that order keys like a shuffle with this seed."""
    return hashlib.blake2b(key, digest_size=16, key=str(seed).encode()).digest()


def validation_targets(rows_per_task: Counter[str], val_ratio: float) -> dict[str, int]:
    """Validation rows to aim at for each task: the rounded share, at least one of two or more rows, never all."""
    if val_ratio <= 0:
        return dict.fromkeys(rows_per_task, 0)
    return {task: min(rows - 1, max(1, round(rows * val_ratio))) for task, rows in rows_per_task.items()}


def choose_validation(rows: Iterable[SplitRow], targets: dict[str, int]) -> Iterator[bytes]:
    """Yield the row keys of the validation set.

    Walks the groups in the order of `rows`, which has to be sorted by group key, and takes a group when that brings the
    counts closer to the targets, summed over the tasks.
    """
    taken: Counter[str] = Counter()
    for _, members in groupby(rows, key=lambda row: row[0]):
        group = [(task, key) for _, task, key in members]
        counts = Counter(task for task, _ in group)
        before = sum(abs(targets[task] - taken[task]) for task in counts)
        after = sum(abs(targets[task] - taken[task] - count) for task, count in counts.items())
        if after < before:
            taken.update(counts)
            yield from (key for _, key in group)
