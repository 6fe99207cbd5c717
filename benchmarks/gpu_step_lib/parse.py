"""Figures from what a run leaves behind: its log with arrival times, metrics.jsonl, memory samples, transfer counts. Pure."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

PHASES = {
    "gen": "rollout",
    "reward": "reward",
    "old_log_prob": "old log-prob",
    "ref": "reference",
    "adv": "advantage",
    "update_actor": "update",
    "update_weights": "weight sync",
}
"""verl's timers that make up a step, and the table's names. What is in none of them is :data:`REST`."""
REST = "everything else"

MILESTONES = (
    ("preflight", r"^preflight: \d+ PASS"),
    ("Ray", r"\[ray\] head is up"),
    ("cluster check", r"\[train_grpo\] run folder:"),
    ("trainer process and data", r"train and validate dataloader initialized"),
    ("worker group", r"create worker group"),
    ("workers, actor, reference", r"actor and ref model engine initialized"),
    ("reward workers", r"reward loop manager initialized"),
    ("rollout engines", r"checkpoint engine manager initialized"),
    ("first weight sync", r"Training Progress:\s+0%"),
)
"""Stretches of the start-up, each with the line that ends it. A line that is missing adds its stretch to the next."""
BEFORE_FIRST_STEP = "until the first step"
STEP_LINE = re.compile(r"(?<!\w)step:(\d+) - ")
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def log_lines(text: str) -> list[tuple[float, str]]:
    """``(epoch seconds, line)`` of a recorded log; lines without an arrival time are left out."""
    found = []
    for raw in text.splitlines():
        stamp, tab, line = raw.partition("\t")
        try:
            found.append((float(stamp), ANSI.sub("", line))) if tab else None
        except ValueError:
            continue
    return found


def step_ends(lines: Iterable[tuple[float, str]]) -> dict[int, float]:
    """Step -> arrival of its console line, which verl prints right after the step."""
    ends: dict[int, float] = {}
    for when, line in lines:
        if match := STEP_LINE.search(line):
            ends.setdefault(int(match[1]), when)
    return ends


def startup(lines: Sequence[tuple[float, str]], started: float, first_step_seconds: float | None) -> dict[str, float]:
    """Seconds of each stretch from the launcher's start to the first step, in order, and their ``total``.

    Args:
        lines: from :func:`log_lines`.
        started: epoch seconds when the launcher was started.
        first_step_seconds: ``timing_s/step`` of step 1; None when the run did not get there.
    """
    found: dict[str, float] = {}
    previous, position = started, 0
    for name, pattern in MILESTONES:
        expression = re.compile(pattern)
        for index in range(position, len(lines)):
            when, line = lines[index]
            if expression.search(line):
                found[name] = max(0.0, when - previous)
                previous, position = max(previous, when), index + 1
                break
    first_end = min(step_ends(lines).items(), default=None)
    if first_end is not None and first_step_seconds is not None:
        found[BEFORE_FIRST_STEP] = max(0.0, first_end[1] - first_step_seconds - previous)
    found["total"] = sum(found.values())
    return found


def read_jsonl(text: str) -> list[dict[str, Any]]:
    """Records of a JSON-lines text; a torn last line is left out.

    Raises:
        ValueError: another line is not JSON.
    """
    lines = text.splitlines()
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append(json.loads(line))
        except ValueError:
            if number == len(lines) and not text.endswith("\n"):
                break
            raise ValueError(f"line {number} is not JSON: {line[:80]!r}") from None
    return found


def training_steps(records: Iterable[Mapping[str, Any]]) -> dict[int, dict[str, float]]:
    """Step -> metrics of the training steps of a ``metrics.jsonl``; validations are left out."""
    return {record["step"]: record["data"] for record in records if "training/global_step" in record["data"]}


def phase_seconds(data: Mapping[str, float]) -> dict[str, float | None]:
    """Seconds of each phase of a step, :data:`REST` and ``step``. A phase without a timer of its own is None."""
    timed: dict[str, float | None] = {name: data.get(f"timing_s/{name}") for name in PHASES}
    step = data["timing_s/step"]
    timed[REST] = step - sum(value for value in timed.values() if value is not None)
    timed["step"] = step
    return timed


def steady(values: Sequence[float | None]) -> float | None:
    """Median of all but the first step; the first when it is the only one; None when a step lacks the value."""
    kept = values[1:] or values
    return None if not kept or any(value is None for value in kept) else statistics.median(kept)


def step_windows(ends: Mapping[int, float], seconds: Mapping[int, float]) -> dict[int, tuple[float, float]]:
    """Step -> (begin, end) in epoch seconds, from the ends and the steps' lengths."""
    return {step: (end - seconds[step], end) for step, end in sorted(ends.items()) if step in seconds}


def transfers_per_step(
    transfers: Iterable[Mapping[str, Any]], windows: Mapping[int, tuple[float, float]]
) -> dict[int, dict[str, int]]:
    """Step -> bytes ``put`` and ``get``, and per role (``get WorkerDict``); what is outside all windows is left out."""
    found: dict[int, dict[str, int]] = {step: {"put": 0, "get": 0} for step in windows}
    for record in transfers:
        for step, (begin, end) in windows.items():
            if begin <= record["t"] <= end:
                row = found[step]
                row[record["op"]] += record["bytes"]
                role = f"{record['op']} {record['role']}"
                row[role] = row.get(role, 0) + record["bytes"]
                break
    return found


def within(samples: Sequence[Mapping[str, Any]], window: tuple[float, float]) -> list[Mapping[str, Any]]:
    return [sample for sample in samples if window[0] <= sample["t"] <= window[1]]


def memory_per_step(
    samples: Sequence[Mapping[str, Any]], windows: Mapping[int, tuple[float, float]]
) -> dict[int, dict[str, float]]:
    """Step -> peaks of the samples in its window: ``gpu_gb`` (fullest card), ``host_gb`` (machine), ``run_gb`` (the run).

    A sample may lack a figure; so may a step without samples.
    """
    found = {}
    for step, window in windows.items():
        inside = within(samples, window)
        row = {}
        gpus = [max(sample["gpu_gb"]) for sample in inside if sample.get("gpu_gb")]
        if gpus:
            row["gpu_gb"] = max(gpus)
        for name in ("host_gb", "run_gb"):
            values = [sample[name] for sample in inside if sample.get(name) is not None]
            if values:
                row[name] = max(values)
        found[step] = row
    return found


def created_per_step(
    samples: Sequence[Mapping[str, Any]], windows: Mapping[int, tuple[float, float]]
) -> dict[int, float]:
    """Step -> bytes created in Ray's object store, from the running total at its begin and end."""
    totals = [
        (sample["t"], sample["object_store_bytes"])
        for sample in samples
        if sample.get("object_store_bytes") is not None
    ]
    found = {}
    for step, (begin, end) in windows.items():
        before = [value for when, value in totals if when <= begin]
        upto = [value for when, value in totals if when <= end]
        if upto:
            found[step] = upto[-1] - (before[-1] if before else 0)
    return found


def slope(points: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """Least-squares slope and its standard error; None for fewer than three points."""
    count = len(points)
    if count < 3:
        return None
    mean_x = sum(x for x, _ in points) / count
    mean_y = sum(y for _, y in points) / count
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    rise = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    rest = sum((y - mean_y - rise * (x - mean_x)) ** 2 for x, y in points)
    return rise, math.sqrt(rest / (count - 2) / spread)
