"""What goes into a judgement and what comes out of it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

SCORED = "scored"
UNAVAILABLE = "judge_unavailable"
UNPARSED = "judge_unparsed"

DROPPED_REWARD = -1.0
_REPLY_TAIL_CHARS = 400
_ERROR_CHARS = 400


@dataclass(frozen=True)
class JudgeRequest:
    """One answer to be judged against its reference. ``task`` is a key of :data:`reward.utils.prompt.JUDGE_PROMPTS`."""

    task: str
    response: str
    reference: str
    question: str = ""
    source_lang_text: str = ""
    target_lang: str = ""


@dataclass(frozen=True)
class JudgeOutcome:
    """``reward`` is in [0, 1] when ``decision`` is "scored" and -1.0 (drop the sample) otherwise.

    ``analysis`` is JSON text: ``{"judge": {"decision", "calls", "retries", "failures": {kind: count}, "latency_s",
    "server", "cached", "error"?}, "verdict": number or null, "reply_tail": str}``; ``latency_s`` is in seconds, from
    the request to the outcome, waiting for a free server included.
    """

    reward: float
    decision: str
    analysis: str


@dataclass
class JudgeTrace:
    """What happened on the way to one outcome; :meth:`outcome` turns it into the record that metrics are made of."""

    calls: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    server: str = ""
    reply: str = ""
    error: str = ""

    def outcome(
        self, decision: str, *, latency_s: float, reward: float = DROPPED_REWARD, verdict: float | None = None
    ) -> JudgeOutcome:
        record = {
            "decision": decision,
            "calls": self.calls,
            "retries": max(0, self.calls - 1),
            "failures": dict(sorted(self.failures.items())),
            "latency_s": round(latency_s, 4),
            "server": self.server,
            "cached": False,
        }
        if self.error:
            record["error"] = _encodable(self.error[:_ERROR_CHARS])
        tail = _encodable(self.reply[-_REPLY_TAIL_CHARS:])
        return JudgeOutcome(reward, decision, _dump({"judge": record, "verdict": verdict, "reply_tail": tail}))


def as_repeat(outcome: JudgeOutcome, *, latency_s: float, cached: bool) -> JudgeOutcome:
    """The outcome of a judgement that rode on another one: no calls and no failures of its own."""
    analysis = json.loads(outcome.analysis)
    analysis["judge"].update(calls=0, retries=0, failures={}, latency_s=round(latency_s, 4), cached=cached)
    return JudgeOutcome(outcome.reward, outcome.decision, _dump(analysis))


def _dump(analysis: dict[str, Any]) -> str:
    return json.dumps(analysis, ensure_ascii=False)


def _encodable(text: str) -> str:
    """Lone surrogates become question marks, so that every log and file can hold the text."""
    return text.encode("utf-8", "replace").decode("utf-8")
