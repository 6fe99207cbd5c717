"""Two results side by side. Pure but for :func:`load`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_step_lib.result import FORMAT
from gpu_step_lib.table import MISSING, PHASE_ROWS, layout, number, size

SAME_WORK = ("size", "prompts", "group_size", "page", "response_tokens")


class NotAResult(ValueError):
    """A file is no result of this benchmark; the message names it."""


def load(path: Path) -> dict[str, Any]:
    """Read a ``result.json``.

    Raises:
        NotAResult: it cannot be read, is no JSON, or is of another format.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise NotAResult(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise NotAResult(f"{path} is not JSON: {error}") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise NotAResult(f"{path} is no result.json of this benchmark (format {FORMAT})")
    return found


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """``NAME: a -> b`` for every launcher setting and hydra override that differs."""
    found = []
    names = sorted({*before["settings"], *after["settings"]})
    for name in names:
        a, b = before["settings"].get(name, "(default)"), after["settings"].get(name, "(default)")
        if a != b:
            found.append(f"{name}: {a} -> {b}")
    if before["hydra"] != after["hydra"]:
        found.append(f"hydra: {' '.join(before['hydra'])} -> {' '.join(after['hydra'])}")
    if before["machine"]["device"] != after["machine"]["device"]:
        found.append(f"device: {before['machine']['device']} -> {after['machine']['device']}")
    return found


def ratio(a: float | None, b: float | None) -> str:
    return MISSING if not a or not b else f"{a / b:.2f}x"


def scaling_efficiency(before: Mapping[str, Any], after: Mapping[str, Any]) -> float | None:
    """Samples/s per GPU of ``after`` over that of ``before``; None when both have as many GPUs."""
    gpus = before["plan"]["gpus"], after["plan"]["gpus"]
    if gpus[0] == gpus[1]:
        return None
    rates = before["summary"]["samples_per_second"] / gpus[0], after["summary"]["samples_per_second"] / gpus[1]
    return rates[1] / rates[0]


def render(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Medians of both, and how many times faster (or smaller) the second is."""
    first, second = before["summary"], after["summary"]
    rows = [
        [name, number(a), number(b), ratio(a, b)]
        for name, a, b in (
            (name, first["median"][phase], second["median"][phase]) for phase, name in PHASE_ROWS.items()
        )
        if a is not None or b is not None
    ]
    a, b = before["startup"]["total"], after["startup"]["total"]
    rows.append(["start-up", number(a, 1), number(b, 1), ratio(a, b)])
    a, b = first["first"]["step"], second["first"]["step"]
    rows.append(["first step", number(a), number(b), ratio(a, b)])
    speed = [
        [name, number(first[key], digits), number(second[key], digits), ratio(second[key], first[key])]
        for name, key, digits in (("tokens/s", "tokens_per_second", 0), ("samples/s", "samples_per_second", 2))
    ]
    speed += [
        [f"MFU {name} (%)", *(number(value and 100 * value, 1) for value in pair), ratio(pair[1], pair[0])]
        for name, pair in (
            (PHASE_ROWS[phase], (first["mfu"].get(phase), second["mfu"].get(phase)))
            for phase in ("old_log_prob", "ref", "update_actor")
        )
        if any(pair)
    ]
    use = []
    gpu = [max(found["peaks"]["gpu_gb"], default=None) for found in (before, after)]
    use.append(["GPU memory, fullest card (GB)", number(gpu[0], 1), number(gpu[1], 1), ratio(*gpu)])
    for name, key in (
        ("GPU memory, actor allocated (GB)", "max_memory_allocated_gb"),
        ("host memory, this run (GB)", "run_gb"),
    ):
        a, b = before["peaks"][key], after["peaks"][key]
        use.append([name, number(a, 1), number(b, 1), ratio(a, b)])
    for name, key in (("TransferQueue, put a step", "put"), ("TransferQueue, got a step", "get")):
        a, b = first["transfer_queue_bytes"].get(key), second["transfer_queue_bytes"].get(key)
        use.append([name, size(a), size(b), ratio(a, b)])
    a, b = first["object_store_bytes"], second["object_store_bytes"]
    use.append(["object store, created a step", size(a), size(b), ratio(a, b)])
    parts = [
        layout(["median seconds", "before", "after", "faster"], rows),
        layout(["speed", "before", "after", "higher"], speed),
        layout(["memory and bytes", "before", "after", "less"], use),
    ]
    efficiency = scaling_efficiency(before, after)
    if efficiency is not None:
        gpus = before["plan"]["gpus"], after["plan"]["gpus"]
        parts.append(f"scaling efficiency {gpus[0]} -> {gpus[1]} GPUs: {100 * efficiency:.0f}%")
    other = [name for name in SAME_WORK if before["plan"][name] != after["plan"][name]]
    if other:
        parts.append(
            f"WARNING: not the same work ({', '.join(other)} differ): ratios of seconds say nothing about speed"
        )
    changed = differences(before, after)
    parts.append("settings that differ:\n  " + "\n  ".join(changed) if changed else "settings that differ: none")
    return "\n\n".join(parts) + "\n"
