"""All figures of a run as one JSON-able dictionary. Pure: everything is passed in."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_step_lib import floor, parse
from gpu_step_lib.plan import Plan

FORMAT = 1
AGREEMENT = ("rollout_corr/log_ppl_abs_diff", "training/rollout_actor_probs_pearson_corr", "actor/grad_norm")
GROWTH = {
    "run_gb": "host memory of the run (PSS)",
    "host_gb": "host memory of the machine",
    "gpu_gb": "GPU memory, fullest card",
    "actor/perf/max_memory_allocated_gb": "GPU memory, allocated peak since the start",
}


class NoSteps(ValueError):
    """The run logged no training step."""


def build(
    plan: Plan,
    machine: Mapping[str, Any],
    peak: Mapping[str, float | None],
    lines: Sequence[tuple[float, str]],
    records: Sequence[Mapping[str, Any]],
    samples: Sequence[Mapping[str, Any]],
    transfers: Sequence[Mapping[str, Any]],
    started: float,
    seconds: float,
) -> dict[str, Any]:
    """Figures of a run.

    Args:
        peak: ``tflops`` and ``terabytes`` of one card; None where unknown.
        lines, records, samples, transfers: of the run's log, metrics, memory samples and transfer counts.
        started, seconds: epoch seconds of the launcher's start, and how long it ran.

    Raises:
        NoSteps: there is no training step in ``records``.
    """
    steps = parse.training_steps(records)
    if not steps:
        raise NoSteps("the run logged no training step")
    ends = parse.step_ends(lines)
    windows = parse.step_windows(ends, {step: data["timing_s/step"] for step, data in steps.items()})
    bytes_moved = parse.transfers_per_step(transfers, windows) if transfers else {}
    created = parse.created_per_step(samples, windows)
    memory = parse.memory_per_step(samples, windows)
    first = min(steps)
    rows = []
    for step, data in sorted(steps.items()):
        moved = bytes_moved.get(step, {})
        rows.append(
            {
                "step": step,
                "seconds": parse.phase_seconds(data),
                "tokens": data["perf/total_num_tokens"],
                "prompt_tokens": data["prompt_length/mean"],
                "response_tokens": data["response_length/mean"],
                "mfu": data.get("perf/mfu/actor"),
                "transfer_queue_bytes": moved,
                "object_store_bytes": created.get(step),
                "memory": {
                    **memory.get(step, {}),
                    **{name: data[name] for name in data if name.startswith("actor/perf/")},
                },
                "agreement": {name: data[name] for name in AGREEMENT if name in data},
            }
        )
    return {
        "format": FORMAT,
        "plan": plan.to_json(),
        "settings": plan.launcher_settings(),
        "hydra": plan.hydra(),
        "machine": dict(machine),
        "peak": dict(peak),
        "seconds": seconds,
        "startup": parse.startup(lines, started, steps[first]["timing_s/step"]),
        "steps": rows,
        "summary": summarise(plan, rows, peak),
        "peaks": peaks(samples, steps),
        "growth": growth(rows) if len(rows) > 3 else {},
    }


def summarise(plan: Plan, rows: Sequence[Mapping[str, Any]], peak: Mapping[str, float | None]) -> dict[str, Any]:
    """First step and medians of the others: seconds, rates, floors, utilisation, bytes."""
    phases = [*parse.PHASES, parse.REST, "step"]
    median = {phase: parse.steady([row["seconds"][phase] for row in rows]) for phase in phases}
    work = plan.work(*(parse.steady([row[name] for row in rows]) for name in ("prompt_tokens", "response_tokens")))
    shape = floor.model_shape(plan.size)
    tflops, terabytes = peak.get("tflops"), peak.get("terabytes")
    floors = floor.floors(shape, work, tflops, terabytes)
    operations = floor.phase_flops(shape, work)
    samples = plan.prompts * plan.group_size
    tokens = parse.steady([row["tokens"] for row in rows])
    utilisation = {
        phase: count / (median[phase] * tflops * 1e12 * plan.gpus)
        for phase, count in operations.items()
        if tflops and median.get(phase)
    }
    steady_rows = rows[1:] or rows
    moved = [row["transfer_queue_bytes"] for row in steady_rows if row["transfer_queue_bytes"]]
    names = sorted({name for row in moved for name in row})
    created = [row["object_store_bytes"] for row in steady_rows if row["object_store_bytes"] is not None]
    return {
        "steps_in_median": len(steady_rows),
        "first": dict(rows[0]["seconds"]),
        "median": median,
        "floor": floors,
        "floor_shared": floor.floors(shape, work, tflops, terabytes, shared=True),
        "ratio": {phase: median[phase] / value for phase, value in floors.items() if median.get(phase) and value},
        "operations": operations,
        "mfu": utilisation,
        "mfu_logged": parse.steady([row["mfu"] for row in rows]),
        "tokens": tokens,
        "tokens_per_second": tokens / median["step"],
        "samples": samples,
        "samples_per_second": samples / median["step"],
        "transfer_queue_bytes": {name: statistics.median(row.get(name, 0) for row in moved) for name in names},
        "object_store_bytes": statistics.median(created) if created else None,
        "agreement": {
            name: parse.steady([row["agreement"].get(name) for row in rows])
            for name in AGREEMENT
            if all(name in row["agreement"] for row in rows)
        },
    }


def peaks(samples: Sequence[Mapping[str, Any]], steps: Mapping[int, Mapping[str, float]]) -> dict[str, Any]:
    """Largest figures of the whole run, and what the machine used before it."""
    gpus = [sample["gpu_gb"] for sample in samples if sample.get("gpu_gb")]
    found: dict[str, Any] = {
        "gpu_gb": [max(values) for values in zip(*gpus)],
        "gpu_before_gb": gpus[0] if gpus else [],
    }
    for name in ("host_gb", "run_gb"):
        values = [sample[name] for sample in samples if sample.get(name) is not None]
        found[name] = max(values, default=None)
    found["host_before_gb"] = samples[0].get("host_gb") if samples else None
    for name in ("max_memory_allocated_gb", "max_memory_reserved_gb", "cpu_memory_used_gb"):
        values = [data[f"actor/perf/{name}"] for data in steps.values() if f"actor/perf/{name}" in data]
        found[name] = max(values, default=None)
    return found


def growth(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """GB per step from the second step on, with the slope's standard error, first and last value."""
    found = {}
    for name in GROWTH:
        points = [(row["step"], row["memory"][name]) for row in rows[1:] if name in row["memory"]]
        fitted = parse.slope(points)
        if fitted is not None:
            found[name] = {
                "gb_per_step": fitted[0],
                "error": fitted[1],
                "first": points[0][1],
                "last": points[-1][1],
                "steps": len(points),
            }
    return found
