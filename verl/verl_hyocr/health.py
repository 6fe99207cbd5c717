"""Health of a training step: what was sampled and computed -> metrics, warnings and stop reasons. Without verl or Ray.

The trainer (:mod:`verl_hyocr.trainer`) calls :func:`sample_metrics` and :func:`reward_metrics` on what the step left in
the transfer queue and :meth:`HealthWatch.update` on the step's metrics. docs/health.md has the table of symptoms and
remedies.
"""

from __future__ import annotations

import json
import math
import os
import statistics
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

PREFIX = "hyocr/health"
ENABLE_ENV = "HYOCR_HEALTH"
STOP_ENV = "HYOCR_HEALTH_STOP"
WINDOW_ENV = "HYOCR_HEALTH_WINDOW"

MAX_PERIOD = 256
"""Longest repeated unit that counts as a loop, in tokens."""
MIN_REPEATS = 3
MIN_LOOP = 64
"""A loop is at least this many tokens and at least :data:`MIN_REPEATS` units long."""
SPREAD = 1e-6
"""Groups whose rewards differ by less than this have no signal: GRPO divides by the deviation plus 1e-6."""

NONFINITE = "nonfinite"
NONFINITE_STEPS = 3
FINITE = (
    "actor/entropy",
    "actor/loss",
    "actor/pg_loss",
    "actor/kl_loss",
    "actor/ppo_kl",
    "actor/grad_norm",
    "rollout_corr/log_ppl_abs_diff",
)
"""Metrics that are NaN or infinite only when the computation is broken."""
POLICY = "actor/entropy"
"""Computed with the weights that the step began with, before its update."""
GAP = "rollout_corr/log_ppl_abs_diff"


@dataclass(frozen=True)
class Condition:
    """One thing that is watched.

    Attributes:
        name: as in ``HYOCR_HEALTH_STOP`` and docs/health.md.
        metric: watched metric, below ``hyocr/health/``.
        variable: environment variable with the limit.
        limit: its default.
        above: whether values above the limit are bad; else those below it.
        highest: largest limit that makes sense.
        says: what it means and what to do first.
    """

    name: str
    metric: str
    variable: str
    limit: float
    above: bool
    highest: float
    says: str

    def is_bad(self, value: float, limit: float) -> bool:
        return value > limit if self.above else value < limit


CONDITIONS = (
    Condition(
        "logprob_gap",
        "logprob_gap",
        "HYOCR_HEALTH_MAX_LOGPROB_GAP",
        0.02,
        True,
        math.inf,
        "actor and rollout disagree about the same tokens: different weights, inputs or numerics. Look for HYOCR_DISABLE "
        "and for warnings of the weight sync",
    ),
    Condition(
        "entropy",
        "entropy_ratio",
        "HYOCR_HEALTH_MIN_ENTROPY_RATIO",
        0.2,
        False,
        1.0,
        "the policy's entropy collapsed: groups will hold equal answers. Lower ACTOR_LR, raise KL_LOSS_COEF, ENTROPY_COEFF or "
        "CLIP_RATIO_HIGH, and go back to a checkpoint before the fall",
    ),
    Condition(
        "truncated",
        "truncated_share",
        "HYOCR_HEALTH_MAX_TRUNCATED",
        0.3,
        True,
        1.0,
        "answers are cut off before their end and scored as they are. Raise MAX_RESPONSE_LENGTH, or look for loops",
    ),
    Condition(
        "repetition",
        "repetition_share",
        "HYOCR_HEALTH_MAX_REPETITION",
        0.1,
        True,
        1.0,
        "answers end in a loop. Look at them in rl_logging_board, lower ACTOR_LR, check the references of the task",
    ),
    Condition(
        "zero_variance",
        "zero_variance_share",
        "HYOCR_HEALTH_MAX_ZERO_VARIANCE",
        0.8,
        True,
        1.0,
        "most groups have equal rewards and train nothing. solved_share near it: the data is too easy; near 0: too hard, or "
        "the reward is broken (python -m reward audit)",
    ),
    Condition(
        "reward_time",
        "reward_time_share",
        "HYOCR_HEALTH_MAX_REWARD_TIME",
        0.3,
        True,
        1.0,
        "training waits for scores. Raise REWARD_WORKERS, add judge replicas, or look for slow samples",
    ),
)
NAMES = (NONFINITE, *(condition.name for condition in CONDITIONS))


# ------------------------------------------------------------------------------------------------ what was sampled


def loops(answers: Sequence[np.ndarray], eos: int | None = None) -> np.ndarray:
    """Which answers end in a loop.

    An answer does when its last ``max(MIN_LOOP, MIN_REPEATS * p)`` tokens repeat with a period of ``p`` tokens, for some
    ``p`` up to :data:`MAX_PERIOD`; a closing ``eos`` is taken off first. It is the sign of degeneration of Holtzman et
    al., "The Curious Case of Neural Text Degeneration" (2020), a phrase repeated at the end, with a minimal length:
    text that goes on after a repetition, such as the closing tags after a table's empty cells, does not count.

    Args:
        answers: token ids, (tokens,) each.

    Returns:
        (answers,) bool. At most ``MAX_PERIOD * MAX_PERIOD * MIN_REPEATS`` comparisons per answer.
    """
    width = max(MIN_LOOP, MIN_REPEATS * MAX_PERIOD)
    # Below every token id and different from its neighbours: what lies before an answer repeats nothing.
    tails = np.tile(-1 - np.arange(width, dtype=np.int64), (len(answers), 1))
    for tail, answer in zip(tails, answers, strict=True):
        tokens = answer[:-1] if eos is not None and len(answer) and answer[-1] == eos else answer
        tokens = tokens[-width:]
        if len(tokens):
            tail[-len(tokens) :] = tokens
    found = np.zeros(len(answers), dtype=bool)
    for period in range(1, MAX_PERIOD + 1):
        # A glance at the end first: nearly every pair of answer and period is ruled out by it.
        glance = 8
        maybe = np.flatnonzero(~found & (tails[:, -glance:] == tails[:, -glance - period : width - period]).all(axis=1))
        if len(maybe):
            length = max(MIN_LOOP, MIN_REPEATS * period)
            end = tails[maybe, -length:]
            found[maybe] = (end[:, period:] == end[:, :-period]).all(axis=1)
    return found


def truncated(lengths: Sequence[int], limits: Sequence[int], last_tokens: Sequence[int], eos: int | None) -> np.ndarray:
    """Which answers have all the tokens they were allowed and no ``eos`` at the end; all arguments are (answers,)."""
    at_limit = np.asarray(lengths) >= np.asarray(limits)
    return at_limit & (np.asarray(last_tokens) != (-1 if eos is None else eos))


def zero_variance(scores: Mapping[str, Sequence[float]]) -> tuple[float, float]:
    """Share of the groups with equal rewards, and of the groups in which every reward is 1.

    Args:
        scores: group -> rewards of its answers. Groups of one are passed over: they have no variance to lose.

    Returns:
        Two shares in [0, 1]; NaN without a group of two.
    """
    groups = [values for values in scores.values() if len(values) > 1]
    if not groups:
        return math.nan, math.nan
    equal = sum(max(values) - min(values) < SPREAD for values in groups)
    solved = sum(min(values) > 1.0 - SPREAD for values in groups)
    return equal / len(groups), solved / len(groups)


def sample_metrics(
    answers: Sequence[np.ndarray],
    limits: Sequence[int],
    groups: Sequence[str],
    scores: Sequence[float],
    eos: int | None,
) -> dict[str, float]:
    """Metrics of the answers that are trained on.

    Args:
        answers: token ids, (tokens,) each, without padding.
        limits: most tokens that each answer was allowed.
        groups: prompt of each answer.
        scores: reward of each answer.
        eos: token that ends an answer; None when there is none.

    Returns:
        ``truncated_share``, ``repetition_share``, ``zero_variance_share``, ``solved_share``, each in [0, 1]; those that
        cannot be computed are left out.
    """
    if not answers:
        return {}
    lengths = [len(answer) for answer in answers]
    last = [int(answer[-1]) if len(answer) else -1 for answer in answers]
    by_group: dict[str, list[float]] = defaultdict(list)
    for group, score in zip(groups, scores, strict=True):
        by_group[group].append(score)
    equal, solved = zero_variance(by_group)
    values = {
        "truncated_share": truncated(lengths, limits, last, eos).mean(),
        "repetition_share": loops(answers, eos).mean(),
        "zero_variance_share": equal,
        "solved_share": solved,
    }
    return {f"{PREFIX}/{name}": float(value) for name, value in values.items() if not math.isnan(value)}


def reward_metrics(timings: Iterable[Mapping[str, float]], phases: Mapping[str, float]) -> dict[str, float]:
    """How long the step waited for scores.

    Answers are scored while others are still generated, so the sum of all scoring times says little. What counts is how
    much earlier the last answer was there than the last score; all answers of a step start together.

    Args:
        timings: seconds of every answer, dropped ones included (they were waited for too): ``generate_sequences``,
            ``tool_calls``, ``compute_score``.
        phases: seconds of the step's phases so far; ``reward`` is scoring after the rollout.

    Returns:
        ``reward_seconds_mean`` and ``reward_seconds_max`` of an answer, and ``reward_time_share`` of the sum of the
        phases, in [0, 1]; empty without timings.
    """
    rows = [
        (float(row.get("generate_sequences", 0.0)) + float(row.get("tool_calls", 0.0)), float(row["compute_score"]))
        for row in timings
        if "compute_score" in row
    ]
    total = sum(phases.values())
    if not rows or total <= 0:
        return {}
    waited = max(made + scored for made, scored in rows) - max(made for made, _ in rows) + phases.get("reward", 0.0)
    seconds = [scored for _, scored in rows]
    values = {
        "reward_seconds_mean": statistics.fmean(seconds),
        "reward_seconds_max": max(seconds),
        "reward_time_share": min(1.0, waited / total),
    }
    return {f"{PREFIX}/{name}": value for name, value in values.items()}


# ------------------------------------------------------------------------------------------------------- the watch


def first_entropies(path: str | None, count: int) -> list[float]:
    """The first ``count`` values of ``actor/entropy`` in a run's metrics.jsonl; fewer when the run is younger.

    A resumed run is compared with its own start, not with the step that it resumed from.
    """
    found: list[float] = []
    if not path or not Path(path).is_file():
        return found
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            if len(found) == count:
                break
            try:
                value = json.loads(line)["data"].get(POLICY)
            except (ValueError, KeyError, TypeError, AttributeError):
                # A line that a killed run left half written.
                continue
            if isinstance(value, int | float) and math.isfinite(value):
                found.append(float(value))
    return found


@dataclass
class HealthWatch:
    """Watches the metrics of every step.

    A condition is an alarm when its metric is beyond the limit in each of the latest ``window`` steps that have it. An
    alarm is a warning, and for the conditions in ``stops`` the end of the run. NaN and infinite values
    (:data:`FINITE`) warn at once and stop the run after :data:`NONFINITE_STEPS` steps in a row (verl leaves an update with
    such gradients out), or at once when the weights themselves compute NaN.

    Args:
        limits: condition name -> limit; missing ones have their default.
        stops: names of the conditions that end the run.
        window: steps, at least 1.
        entropies: entropies of the run's first steps, as far as they are known.
        enabled: whether anything is watched.

    Attributes:
        warnings: what to log for the latest step; a lasting alarm is repeated once per window.
        stop_reason: why the run should end; empty while it may go on.
        broken: the latest step's weights compute NaN: they must not be saved.

    Raises:
        ValueError: for an unknown condition, a limit or window out of range.
    """

    limits: Mapping[str, float] = field(default_factory=dict)
    stops: frozenset[str] = frozenset({NONFINITE})
    window: int = 5
    entropies: Iterable[float] = ()
    enabled: bool = True
    warnings: list[str] = field(default_factory=list, init=False)
    stop_reason: str = field(default="", init=False)
    broken: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"{WINDOW_ENV}={self.window} must be 1 or more")
        if unknown := sorted(self.stops - set(NAMES)):
            raise ValueError(f"{STOP_ENV} names {', '.join(unknown)}; use none, all, or some of: {', '.join(NAMES)}")
        for condition in CONDITIONS:
            limit = self.limits.get(condition.name, condition.limit)
            if not 0.0 <= limit <= condition.highest:
                most = "0 or more" if math.isinf(condition.highest) else f"between 0 and {condition.highest:g}"
                raise ValueError(f"{condition.variable}={limit:g} must be {most}")
        self._entropies = list(self.entropies)[: self.window]
        self._latest = {condition.name: deque(maxlen=self.window) for condition in CONDITIONS}
        self._lasting = dict.fromkeys(NAMES, 0)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> HealthWatch:
        """With the ``HYOCR_HEALTH…`` variables; unset or empty ones have their default.

        The start of a resumed run is read from ``VERL_FILE_LOGGER_PATH``.
        """
        environ = os.environ if environ is None else environ

        def read(variable: str, default: float, kind: type) -> float:
            text = environ.get(variable, "").strip()
            try:
                return kind(text) if text else default
            except ValueError:
                what = "a number" if kind is float else "a whole number"
                raise ValueError(f"{variable}={text!r} is not {what}") from None

        switch = environ.get(ENABLE_ENV, "").strip() or "1"
        if switch not in ("0", "1"):
            raise ValueError(f"{ENABLE_ENV}={switch!r} must be 0 or 1")
        words = {word.strip() for word in environ.get(STOP_ENV, "").split(",") if word.strip()} or {NONFINITE}
        stops = set(NAMES) if words == {"all"} else set() if words == {"none"} else words
        window = read(WINDOW_ENV, 5, int)
        limits = {one.name: read(one.variable, one.limit, float) for one in CONDITIONS}
        history = first_entropies(environ.get("VERL_FILE_LOGGER_PATH"), max(window, 0))
        return cls(limits, frozenset(stops), window, history, switch == "1")

    def update(self, metrics: Mapping[str, float], padding: float = 0.0) -> dict[str, float]:
        """Take in a step.

        Args:
            metrics: all metrics of the step so far, those of this module included.
            padding: share of the batch that is padding rows, in [0, 1). verl's gap is a mean over rows, of which
                padding has none.

        Returns:
            ``logprob_gap``, ``entropy``, ``entropy_ratio`` (to the median of the run's first ``window`` steps, once these
            are known), ``nonfinite`` (number of broken metrics) and ``alarms`` (number of alarms).
        """
        self.warnings, self.stop_reason, self.broken = [], "", False
        values: dict[str, float] = {}
        if GAP in metrics:
            values["logprob_gap"] = metrics[GAP] / (1.0 - padding)
        if POLICY in metrics:
            values |= self._entropy(metrics[POLICY])
        reasons, alarms = [], 0
        broken = [name for name in FINITE if not math.isfinite(metrics.get(name, 0.0))]
        if broken:
            alarms += 1
            reasons.append(self._nonfinite(broken, metrics))
        else:
            self._lasting[NONFINITE] = 0
        for condition in CONDITIONS:
            value = values.get(condition.metric, metrics.get(f"{PREFIX}/{condition.metric}"))
            if value is not None and math.isfinite(value):
                is_alarm, reason = self._judge(condition, value)
                alarms += is_alarm
                reasons.append(reason)
        self.stop_reason = " Also: ".join(reason for reason in reasons if reason)
        values |= {"nonfinite": len(broken), "alarms": alarms}
        return {f"{PREFIX}/{name}": float(value) for name, value in values.items()}

    def _entropy(self, entropy: float) -> dict[str, float]:
        if not math.isfinite(entropy):
            return {"entropy": entropy}
        if len(self._entropies) < self.window:
            self._entropies.append(entropy)
            return {"entropy": entropy}
        return {"entropy": entropy, "entropy_ratio": entropy / max(statistics.median(self._entropies), 1e-9)}

    def _nonfinite(self, broken: list[str], metrics: Mapping[str, float]) -> str:
        self._lasting[NONFINITE] += 1
        self.broken = POLICY in broken
        shown = ", ".join(f"{name}={metrics[name]}" for name in broken)
        steps = self._lasting[NONFINITE]
        if self.broken:
            message = (
                f"the weights compute NaN ({shown}): this step is not saved, and no later one can recover. Resume from a "
                "checkpoint before the fault (RESUME_MODE=<run>/ckpt/global_step_N) with a lower ACTOR_LR"
            )
        else:
            message = (
                f"not finite for {steps} step(s): {shown}. Such an update is left out. Lower ACTOR_LR, and look at the "
                "step's answers and rewards"
            )
        self.warnings.append(f"{NONFINITE}: {message} (docs/health.md)")
        stops = NONFINITE in self.stops and (self.broken or steps >= NONFINITE_STEPS)
        return f"{message}. {STOP_ENV}=none goes on all the same." if stops else ""

    def _judge(self, condition: Condition, value: float) -> tuple[bool, str]:
        latest = self._latest[condition.name]
        latest.append(value)
        limit = self.limits.get(condition.name, condition.limit)
        if len(latest) < self.window or not all(condition.is_bad(one, limit) for one in latest):
            self._lasting[condition.name] = 0
            return False, ""
        shown = ", ".join(f"{one:.3g}" for one in latest)
        message = (
            f"{condition.name}: {PREFIX}/{condition.metric} was {shown} in the last {self.window} step(s), "
            f"{'above' if condition.above else 'below'} {condition.variable}={limit:g}: {condition.says}"
        )
        if self._lasting[condition.name] % self.window == 0:
            self.warnings.append(f"{message} (docs/health.md)")
        self._lasting[condition.name] += 1
        if condition.name not in self.stops:
            return True, ""
        return True, f"{message}. {condition.variable} and {STOP_ENV} change this."
