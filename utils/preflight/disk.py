"""Is there room for the checkpoints to come, and can the run write where it must?"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from utils.preflight.context import Context, readable
from utils.preflight.results import Result, failed, gib, passed, warned
from utils.preflight.resume import start_step

SHARD_BYTES = 12
"""fp32 weight and two Adam moments of one parameter."""


def saves(total_steps: int, save_freq: int) -> int:
    """Checkpoints that a run of ``total_steps`` writes: every ``save_freq`` steps and the last; none with -1."""
    if save_freq <= 0:
        return 0
    return total_steps // save_freq + (total_steps % save_freq > 0)


def check_checkpoints(context: Context) -> list[Result]:
    check, settings = "disk.checkpoints", context.settings
    size = readable(lambda: context.model.parameters) * SHARD_BYTES
    if settings.save_hf_model:
        size += context.model.weight_bytes
    done = start_step(context)
    count = saves(context.total_steps, settings.save_freq) - saves(done, settings.save_freq)
    if settings.save_freq <= 0:
        remedy = "set SAVE_FREQ=25"
        return [warned(check, "SAVE_FREQ=-1: nothing is saved, a killed run starts again", remedy)]
    # The oldest is deleted only when the newest is complete.
    at_once = min(count, settings.max_ckpt_to_keep + 1) if settings.max_ckpt_to_keep else count
    folder = existing(settings.checkpoints)
    free = shutil.disk_usage(folder).free
    plan = f"{count} checkpoint(s) of {gib(size)} to come"
    if at_once < count:
        plan += f", {at_once} at once"
    if at_once * size <= free:
        return [passed(check, f"{plan}, {gib(free)} free in {folder}")]
    fit = int(free // size)
    found = f"{plan} take {gib(at_once * size)}, {folder} has {gib(free)} free"
    if fit >= 2:
        full = f": full at step {min(context.total_steps, done + (fit + 1) * settings.save_freq)}"
        return [warned(check, found + full, f"set MAX_CKPT_TO_KEEP={fit - 1}, or OUTPUT_DIR to a larger disk")]
    return [failed(check, found, f"free {gib(min(2, at_once) * size)}, or set OUTPUT_DIR to a larger disk")]


def existing(path: Path) -> Path:
    """``path`` or its nearest parent that exists."""
    return next(parent for parent in (path, *path.parents) if parent.exists())


def check_writable(context: Context) -> list[Result]:
    check, results = "disk.writable", []
    for name, path in (("OUTPUT_DIR", context.settings.checkpoints), ("TMPDIR", Path(tempfile.gettempdir()))):
        folder = existing(path.absolute())
        try:
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            found = f"{folder} cannot be written: {error.strerror}"
            results.append(failed(check, found, f"set {name} to a folder that this user may write to"))
    return results or [passed(check, f"{existing(context.settings.checkpoints)}, {tempfile.gettempdir()}")]
