"""Judge metrics of a step, and the guard that stops a run whose judge keeps failing. Both read ``analysis`` records.

The records are what :class:`reward.utils.judge_types.JudgeOutcome` carries; the dispatcher hands them on as a sample's
``analysis``.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterable
from typing import Any

import numpy as np

from reward.utils.judge_config import JudgeConfig
from reward.utils.judge_types import SCORED, UNAVAILABLE, UNPARSED

PREFIX = "hyocr/judge"

# Reported in every step, so that a curve exists before the first failure.
FAILURE_KINDS = (
    "connection",
    "timeout",
    "http_5xx",
    "rate_limited",
    "auth",
    "not_found",
    "model_not_found",
    "bad_request",
    "context_length",
    "malformed",
    "unparsed",
    "truncated",
    "deadline",
    "config",
)


class JudgeFailureError(RuntimeError):
    """The judge failed too often for training to go on."""


def read_record(analysis: str) -> dict[str, Any] | None:
    """The ``judge`` record of one sample's analysis; None when the sample was not judged (or the text was cut)."""
    try:
        record = json.loads(analysis)["judge"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return record if isinstance(record, dict) and "decision" in record else None


def summarise(analyses: Iterable[str]) -> dict[str, float]:
    """Metrics over the judge samples of a step.

    Args:
        analyses: ``analysis`` of every sample; those without a judge record are passed over.

    Returns:
        Empty without judge samples, else under ``hyocr/judge/``: ``judgements``; ``calls`` and ``retries`` (chat
        requests sent, and those beyond a judgement's first); ``failures/<kind>`` (failed calls by kind, and judgements
        that ran into their deadline); ``dropped/<decision>`` and ``failure_rate`` (judgements without a score, count
        and share); ``latency_p50`` and ``latency_p95`` (seconds, without cached ones); ``cached_share``;
        ``server_share/<host:port>`` (share of the scored, uncached judgements that this server scored).
    """
    records = [record for analysis in analyses if (record := read_record(analysis)) is not None]
    if not records:
        return {}
    asked = [record for record in records if not record["cached"]]
    dropped = Counter(record["decision"] for record in records if record["decision"] != SCORED)
    failures: Counter[str] = Counter(dict.fromkeys(FAILURE_KINDS, 0))
    for record in records:
        failures.update(record["failures"])
    metrics = {
        "judgements": len(records),
        "calls": sum(record["calls"] for record in records),
        "retries": sum(record["retries"] for record in records),
        "failure_rate": sum(dropped.values()) / len(records),
        "cached_share": 1.0 - len(asked) / len(records),
        **{f"failures/{kind}": count for kind, count in failures.items()},
        **{f"dropped/{decision}": dropped[decision] for decision in (UNAVAILABLE, UNPARSED)},
    }
    if asked:
        p50, p95 = np.percentile([record["latency_s"] for record in asked], [50, 95])
        metrics |= {"latency_p50": p50, "latency_p95": p95}
    servers = Counter(record["server"] for record in asked if record["decision"] == SCORED and record["server"])
    metrics |= {f"server_share/{name}": count / servers.total() for name, count in sorted(servers.items())}
    return {f"{PREFIX}/{name}": float(value) for name, value in metrics.items()}


class JudgeFailureGuard:
    """Watches the share of judgements that end without a score, over the latest ``window`` of them.

    Args:
        threshold: share in [0, 1]; the guard speaks when the share of a full window is above it. 1 switches it off.
        window: number of judgements, at least 1.
    """

    def __init__(self, threshold: float, window: int):
        if not 0.0 <= threshold <= 1.0 or window < 1:
            raise ValueError(f"threshold {threshold} must be in [0, 1] and window {window} at least 1")
        self._threshold = threshold
        self._latest: deque[str | None] = deque(maxlen=window)
        self._last_error = ""

    @classmethod
    def from_env(cls) -> JudgeFailureGuard:
        """With JUDGE_MAX_FAILURE_RATE and JUDGE_FAILURE_WINDOW."""
        config = JudgeConfig.from_env()
        return cls(config.max_failure_rate, config.failure_window)

    @property
    def failure_rate(self) -> float:
        """Share of failed judgements in the window so far; 0 before the first."""
        failed = sum(reason is not None for reason in self._latest)
        return failed / len(self._latest) if self._latest else 0.0

    def update(self, analyses: Iterable[str]) -> str | None:
        """Take in the samples of a step (those that were not judged are passed over).

        Returns:
            Why the run should stop, or None.
        """
        for analysis in analyses:
            if (record := read_record(analysis)) is None:
                continue
            failed = record["decision"] != SCORED
            self._latest.append(record["decision"] if failed else None)
            if failed and record.get("error"):
                self._last_error = record["error"]
        if len(self._latest) < self._latest.maxlen or self.failure_rate <= self._threshold:
            return None
        reasons = Counter(reason for reason in self._latest if reason is not None)
        counts = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        return (
            f"the judge failed in {self.failure_rate:.1%} of the last {len(self._latest)} judgements ({counts}), more "
            f"than JUDGE_MAX_FAILURE_RATE={self._threshold:g} allows; last error: {self._last_error or 'unknown'}. "
            "Check the servers with `python -m reward judge-check`, then resume from the last checkpoint; "
            "JUDGE_MAX_FAILURE_RATE and JUDGE_FAILURE_WINDOW change the limit."
        )

    def check(self, analyses: Iterable[str]) -> None:
        """As :meth:`update`, raising JudgeFailureError with the reason."""
        if message := self.update(analyses):
            raise JudgeFailureError(message)
