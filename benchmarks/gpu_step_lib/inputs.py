"""The model and the pages of a run, made with the demo's builders; what is already there is reused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from gpu_step_lib.floor import ROOT
from gpu_step_lib.plan import Plan

MOST_BATCHES = 8
"""Pages for this many steps; longer runs see them again in another order."""


class InputError(RuntimeError):
    """A builder failed; the message ends with its output."""


def page_count(plan: Plan) -> int:
    """Pages to render, with some to spare for the validation share that data preparation splits off."""
    return plan.prompts * min(plan.steps, MOST_BATCHES) * 11 // 10 + 8


def _run(*command: str) -> None:
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise InputError(
            f"{' '.join(command)} ended with exit code {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}"
        )


def shorten_references(raw: Path) -> None:
    """Make every row Parsing with the reference ``0``: the benchmark's reward reads none, and the launcher's preflight
    refuses references that the answers' length cannot reach."""
    rows = [json.loads(line) for line in raw.read_text(encoding="utf-8").splitlines()]
    for row in rows:
        row.update(task_type="Parsing", ref_answer="0")
    temporary = raw.with_name(f".{raw.name}.{os.getpid()}")
    temporary.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    os.replace(temporary, raw)


def prepare_pages(plan: Plan, folder: Path) -> tuple[Path, Path]:
    """Training and validation parquet of the plan's pages below ``folder``.

    Raises:
        InputError: a builder failed.
    """
    width, height = plan.page
    count = page_count(plan)
    pages = folder / f"pages-{width}x{height}-{count}"
    train, val = pages / "train.parquet", pages / "val.parquet"
    if not (train.exists() and val.exists()):
        lines = max(1, min(40, height // 25))
        size = ("--width", str(width), "--height", str(height), "--lines", str(lines))
        _run("-m", "utils.demo.make_data", str(pages), "--count", str(count), *size)
        shorten_references(pages / "raw.jsonl")
        outputs = ("--output_train", str(train), "--output_val", str(val), "--val_ratio", "0.02")
        _run("data/prepare_data.py", "--inputs", str(pages / "raw.jsonl"), *outputs, "--no-check-references")
    return train, val


def prepare(plan: Plan, folder: Path, dtype: str) -> dict[str, str]:
    """Build what is missing below ``folder``; returns the launcher's path settings.

    Args:
        dtype: ``"bfloat16"`` or ``"float32"``, of the checkpoint.

    Raises:
        InputError: a builder failed.
    """
    model = folder / f"model-{plan.size}-{dtype}"
    _run("-m", "utils.demo.build_model", str(model), "--size", plan.size, "--dtype", dtype)
    train, val = prepare_pages(plan, folder)
    return {"MODEL_PATH": str(model), "TRAIN_FILES": str(train), "VAL_FILES": str(val)}
