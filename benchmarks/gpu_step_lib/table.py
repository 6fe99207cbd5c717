"""A run's figures as text. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpu_step_lib import parse
from gpu_step_lib.result import GROWTH

PHASE_ROWS = {**parse.PHASES, parse.REST: parse.REST, "step": "step"}
MISSING = "-"


def layout(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest cell: the first to the left, the others to the right."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]
        return "  ".join(cells).rstrip()

    return "\n".join([line(head), "  ".join("-" * width for width in widths), *map(line, rows)])


def number(value: float | None, digits: int = 2) -> str:
    return MISSING if value is None else f"{value:,.{digits}f}"


def percent(value: float | None) -> str:
    return MISSING if value is None else f"{100 * value:.1f}%"


def size(value: float | None) -> str:
    """Bytes in a readable unit, powers of 1000."""
    if value is None:
        return MISSING
    for unit in ("B", "kB", "MB"):
        if abs(value) < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:,.2f} GB"


def title(result: Mapping[str, Any]) -> str:
    plan, machine = result["plan"], result["machine"]
    summary = result["summary"]
    width, height = plan["page"]
    lines = [
        f"{plan['size']} dimensions, random weights · {plan['prompts']} prompts x {plan['group_size']} answers · "
        f"page {width}x{height} · {summary['tokens']:,.0f} tokens a step · {plan['steps']} steps"
        + (" · plain" if plan["plain"] else ""),
        f"{machine['device']} x {plan['gpus']} · rollout TP {plan['rollout_tp']} · update budget "
        f"{result['settings']['MAX_TOKENS_PER_GPU']} tokens, log-prob {result['settings']['LOGPROB_MAX_TOKENS_PER_GPU']}",
    ]
    changed = [f"{name}={value}" for name, value in plan["settings"].items()] + list(plan["overrides"])
    if changed:
        lines.append("changed: " + " ".join(changed))
    return "\n".join(lines)


def startup(result: Mapping[str, Any]) -> str:
    rows = [[name, number(value, 1)] for name, value in result["startup"].items()]
    return layout(["start-up", "seconds"], rows)


def phases(result: Mapping[str, Any]) -> str:
    summary = result["summary"]
    median = summary["median"]
    rows = []
    for phase, name in PHASE_ROWS.items():
        inside = phase == "reward" and median[phase] is None
        rows.append(
            [
                name,
                "in rollout" if inside else number(summary["first"][phase]),
                "in rollout" if inside else number(median[phase]),
                MISSING if not median[phase] else percent(median[phase] / median["step"]),
                number(summary["floor"].get(phase), 3),
                number(summary["ratio"].get(phase), 1),
                percent(summary["mfu"].get(phase)),
                number(summary["floor_shared"].get(phase), 3),
            ]
        )
    count = summary["steps_in_median"]
    head = ["phase, seconds", "first step", f"median of {count}", "share", "floor", "ratio", "MFU", "floor, shared"]
    return layout(head, rows)


def rates(result: Mapping[str, Any]) -> str:
    summary, peaks = result["summary"], result["peaks"]
    gpus = result["plan"]["gpus"]
    rows = [
        ["tokens/s", number(summary["tokens_per_second"], 0)],
        ["tokens/s per GPU", number(summary["tokens_per_second"] / gpus, 0)],
        ["samples/s", number(summary["samples_per_second"])],
        ["MFU of the update, as logged", percent(summary["mfu_logged"])],
        ["GPU memory, whole card (GB)", " ".join(number(value, 1) for value in peaks["gpu_gb"]) or MISSING],
        ["GPU memory, actor allocated (GB)", number(peaks["max_memory_allocated_gb"], 1)],
        ["GPU memory, actor reserved (GB)", number(peaks["max_memory_reserved_gb"], 1)],
        ["host memory, this run (GB, PSS)", number(peaks["run_gb"], 1)],
        ["host memory, machine (GB)", number(peaks["host_gb"], 1)],
        ["host memory, machine before (GB)", number(peaks["host_before_gb"], 1)],
        ["object store, created a step", size(summary["object_store_bytes"])],
    ]
    moved = summary["transfer_queue_bytes"]
    for name, words in (("put", "TransferQueue, put a step"), ("get", "TransferQueue, got a step")):
        rows.append([words, size(moved.get(name))])
        roles = sorted((key for key in moved if key.startswith(name + " ")), key=lambda key: -moved[key])
        rows += [[f"  {key.removeprefix(name + ' ')}", size(moved[key])] for key in roles]
    rows += [[name, f"{value:.6g}"] for name, value in summary["agreement"].items() if value is not None]
    return layout(["", "value"], rows)


def growth(result: Mapping[str, Any]) -> str:
    rows = [
        [
            GROWTH[name],
            number(found["first"]),
            number(found["last"]),
            f"{found['gb_per_step']:+.4f}",
            f"{found['error']:.4f}",
        ]
        for name, found in result["growth"].items()
    ]
    return layout(["memory, GB", "step 2", "last step", "per step", "standard error"], rows)


def cold(result: Mapping[str, Any]) -> str:
    """The run with empty compile caches beside this one."""
    first = result["cold"]
    rows = [
        ["start-up", number(first["startup"]["total"], 1), number(result["startup"]["total"], 1)],
        ["first step", number(first["first_step"]), number(result["summary"]["first"]["step"])],
    ]
    return layout(["compile caches, seconds", "empty", "warm"], rows)


def render(result: Mapping[str, Any]) -> str:
    """The whole report."""
    parts = [title(result), startup(result), phases(result), rates(result)]
    if result.get("cold"):
        parts.append(cold(result))
    if result["growth"] and result["plan"]["long_run"]:
        parts.append(growth(result))
    notes = [
        "Start-up counts from the launcher's start to the first step; the first step still starts the agent loops."
    ]
    if not result["summary"]["floor"]:
        notes.append("No floors: the card's peak is unknown. Give it with --peak-tflops.")
    return "\n\n".join([*parts, "\n".join(notes)]) + "\n"
