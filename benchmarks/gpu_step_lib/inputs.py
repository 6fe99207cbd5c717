"""The model and the pages of a run, made with the demo's builders; what is already there is reused."""

from __future__ import annotations

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


def prepare(plan: Plan, folder: Path, dtype: str) -> dict[str, str]:
    """Build what is missing below ``folder``; returns the launcher's path settings.

    Args:
        dtype: ``"bfloat16"`` or ``"float32"``, of the checkpoint.

    Raises:
        InputError: a builder failed.
    """
    width, height = plan.page
    count = page_count(plan)
    model = folder / f"model-{plan.size}-{dtype}"
    pages = folder / f"pages-{width}x{height}-{count}"
    _run("-m", "utils.demo.build_model", str(model), "--size", plan.size, "--dtype", dtype)
    train, val = pages / "train.parquet", pages / "val.parquet"
    if not (train.exists() and val.exists()):
        lines = max(1, min(40, height // 25))
        size = ("--width", str(width), "--height", str(height), "--lines", str(lines))
        _run("-m", "utils.demo.make_data", str(pages), "--count", str(count), *size)
        outputs = ("--output_train", str(train), "--output_val", str(val), "--val_ratio", "0.02")
        _run("data/prepare_data.py", "--inputs", str(pages / "raw.jsonl"), *outputs, "--no-check-references")
    return {"MODEL_PATH": str(model), "TRAIN_FILES": str(train), "VAL_FILES": str(val)}
