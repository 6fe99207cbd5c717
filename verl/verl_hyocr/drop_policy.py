"""Which samples of a step are trained on: decisions over what the reward function returned, without verl or Ray.

A reward function that returns the key ``valid`` says with 0 that it could not score the sample. Such a sample carries no
signal: it is dropped, and so is what is left of a group that keeps fewer than two samples, because one sample has no
group mean. Results without the key are never touched.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PREFIX = "hyocr/dropped"
LONE = "group_too_small"
"""Reason of a valid sample that is dropped because its group kept fewer than two."""
MIN_GROUP = 2

MAX_RATE_ENV = "HYOCR_MAX_DROP_RATE"
WINDOW_ENV = "HYOCR_DROP_WINDOW"


class TrainingStopped(RuntimeError):
    """Training was ended on purpose; the message says why and what to do."""


@dataclass(frozen=True)
class Dropped:
    """One sample that is left out.

    Attributes:
        uid: its prompt.
        session: its number within the group.
        keys: its rows in the transfer queue; the last one is the answer that was scored.
        task: what the reward function calls the task, "unknown" when it does not say.
        reason: the reward function's ``decision`` ("invalid" when it does not say), or :data:`LONE`.
    """

    uid: str
    session: str
    keys: tuple[str, ...]
    task: str
    reason: str


@dataclass(frozen=True)
class DropPlan:
    """What is left out of a step, and why.

    Attributes:
        dropped: the samples left out.
        lost_groups: prompts of which no sample is trained on.
        samples: number of samples looked at.
        declares_valid: whether any result had the key ``valid``; without it nothing is reported.
        analyses: ``analysis`` of the samples that a judge was asked about, dropped ones included.
    """

    dropped: tuple[Dropped, ...] = ()
    lost_groups: frozenset[str] = frozenset()
    samples: int = 0
    declares_valid: bool = False
    analyses: tuple[str, ...] = ()

    def __add__(self, other: DropPlan) -> DropPlan:
        return DropPlan(
            self.dropped + other.dropped,
            self.lost_groups | other.lost_groups,
            self.samples + other.samples,
            self.declares_valid or other.declares_valid,
            self.analyses + other.analyses,
        )

    @property
    def rate(self) -> float:
        """Share of the samples that is dropped, in [0, 1]."""
        return len(self.dropped) / self.samples if self.samples else 0.0

    @property
    def dropped_keys(self) -> set[str]:
        return {key for sample in self.dropped for key in sample.keys}

    def reasons(self) -> Counter[str]:
        """Dropped samples by ``task/reason``."""
        return Counter(f"{sample.task}/{sample.reason}" for sample in self.dropped)

    def describe(self) -> str:
        """The most frequent reasons, for a message."""
        return describe(self.reasons())

    def metrics(self) -> dict[str, float]:
        """``hyocr/dropped/`` ``total``, ``rate``, ``groups`` and one count per ``<task>/<reason>`` that occurred."""
        if not self.declares_valid:
            return {}
        values = {"total": len(self.dropped), "rate": self.rate, "groups": len(self.lost_groups), **self.reasons()}
        return {f"{PREFIX}/{name}": float(value) for name, value in values.items()}


def describe(reasons: Counter[str]) -> str:
    """``12 VQA/judge_unavailable, 3 IE/bad_reference``: the five most frequent ones."""
    return ", ".join(f"{count} {name}" for name, count in reasons.most_common(5))


def says_invalid(info: Mapping[str, Any]) -> bool:
    """Whether a reward result says ``valid = 0``; a value that is no number says nothing."""
    try:
        return float(info["valid"]) == 0.0
    except (KeyError, TypeError, ValueError):
        return False


def split_key(key: str) -> tuple[str, str, int]:
    """``(uid, session, index)`` of a row key ``{uid}_{session}_{index}``."""
    uid, session, index = key.rsplit("_", 2)
    return uid, session, int(index)


def plan(infos: Mapping[str, Mapping[str, Any]]) -> DropPlan:
    """Decide over whole groups.

    Args:
        infos: row key -> what the reward function returned for it (empty when it returned a bare number). A session of
            several rows is judged by its last one, which is the one that was scored.
    """
    sessions: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    for key in infos:
        uid, session, index = split_key(key)
        sessions[uid, session].append((index, key))
    rows = {name: tuple(key for _, key in sorted(found)) for name, found in sessions.items()}
    final = {name: infos[keys[-1]] for name, keys in rows.items()}
    invalid = {name for name, info in final.items() if says_invalid(info)}

    kept = Counter(uid for uid, session in final if (uid, session) not in invalid)
    shrunk = {uid for uid, _ in invalid}
    lost = frozenset(uid for uid in shrunk if kept[uid] < MIN_GROUP)
    dropped = tuple(
        Dropped(*name, rows[name], _label(info.get("task"), "unknown"), _reason(info, name in invalid))
        for name, info in final.items()
        if name in invalid or name[0] in lost
    )
    return DropPlan(
        dropped=dropped,
        lost_groups=lost,
        samples=len(final),
        declares_valid=any("valid" in info for info in final.values()),
        analyses=tuple(info["analysis"] for info in final.values() if _was_judged(info)),
    )


def hide_invalid(columns: Mapping[str, list[Any]]) -> tuple[dict[str, list[Any]], list[int]]:
    """Take the values of invalid samples out of a table of reward results.

    Args:
        columns: name -> one value per sample.

    Returns:
        The table with None, which verl's validation metrics pass over, in every column but ``valid`` of invalid
        samples; and the numbers of these samples.
    """
    valid = columns.get("valid", [])
    invalid = [number for number, value in enumerate(valid) if says_invalid({"valid": value})]
    table = {name: list(values) for name, values in columns.items()}
    for name, values in table.items():
        if name != "valid":
            for number in invalid:
                values[number] = None
    return table, invalid


def _reason(info: Mapping[str, Any], invalid: bool) -> str:
    return _label(info.get("decision"), "invalid") if invalid else LONE


def _label(value: Any, default: str) -> str:
    """A part of a metric's name: loggers read slashes as folders, and some refuse blanks and colons."""
    return re.sub(r"[^\w.+-]+", "_", str(value or ""))[:64].strip("_") or default


def _was_judged(info: Mapping[str, Any]) -> bool:
    # Only a result with all of the kit's keys can hold a judge record.
    return {"valid", "task", "decision"} <= info.keys() and '"judge"' in str(info.get("analysis", ""))


@dataclass
class DropGuard:
    """Stops a run whose drop rate stays too high.

    Args:
        max_rate: share in [0, 1] that every one of the latest ``window`` steps must exceed; 1 switches the guard off.
        window: number of steps, at least 1.

    Raises:
        ValueError: for values outside these ranges.
    """

    max_rate: float = 0.5
    window: int = 5
    _latest: deque[tuple[float, Counter[str]]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0.0 <= self.max_rate <= 1.0:
            raise ValueError(f"{MAX_RATE_ENV}={self.max_rate:g} must be a share between 0 and 1")
        if self.window < 1:
            raise ValueError(f"{WINDOW_ENV}={self.window} must be 1 or more")
        self._latest = deque(maxlen=self.window)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> DropGuard:
        """With ``HYOCR_MAX_DROP_RATE`` and ``HYOCR_DROP_WINDOW``; unset or empty ones take the default."""
        environ = os.environ if environ is None else environ
        values = {}
        for name, variable, read in (("max_rate", MAX_RATE_ENV, float), ("window", WINDOW_ENV, int)):
            text = environ.get(variable, "").strip()
            if not text:
                continue
            try:
                values[name] = read(text)
            except ValueError:
                kind = "a number" if read is float else "a whole number"
                raise ValueError(f"{variable}={text!r} is not {kind}") from None
        return cls(**values)

    def update(self, step: DropPlan) -> str | None:
        """Take in a step; returns why the run should stop, or None."""
        self._latest.append((step.rate, step.reasons()))
        if len(self._latest) < self.window or any(rate <= self.max_rate for rate, _ in self._latest):
            return None
        rates = ", ".join(f"{rate:.0%}" for rate, _ in self._latest)
        most = describe(sum((counts for _, counts in self._latest), Counter()))
        return (
            f"too many samples have no score: {rates} of the samples of the last {self.window} step(s) were dropped, every "
            f"time more than {MAX_RATE_ENV}={self.max_rate:g} allows (most frequent: {most}). Repair the data or the "
            f"judge that these reasons name, then start the same command again: it resumes from the last checkpoint. "
            f"{MAX_RATE_ENV} and {WINDOW_ENV} change the limit."
        )


def spread_padding(is_padding: Sequence[bool], ranks: int, mini_batches: int) -> list[int]:
    """An order in which every mini-batch of every rank holds its share of padding rows.

    Rows of a rank are contiguous and cut into ``mini_batches`` equal parts. Upstream appends padding at the end, so that
    the last optimizer step of a batch could hang on a handful of samples.

    Args:
        is_padding: one flag per row; the length is a multiple of ``ranks * mini_batches``.

    Returns:
        Indices into ``is_padding``; every rank keeps its rows.
    """
    size = len(is_padding) // ranks
    order: list[int] = []
    for start in range(0, len(is_padding), size):
        rows = range(start, start + size)
        real = [row for row in rows if not is_padding[row]]
        padding = [row for row in rows if is_padding[row]]
        for part in range(mini_batches):
            order += _every(real, part, mini_batches) + _every(padding, mini_batches - 1 - part, mini_batches)
    return order


def _every(rows: Iterable[int], first: int, step: int) -> list[int]:
    return list(rows)[first::step]
