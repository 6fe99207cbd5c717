"""Where will the run start: from the model, or from a checkpoint that is whole and fits?"""

from __future__ import annotations

from pathlib import Path

from utils.preflight.context import Context
from utils.preflight.results import NotChecked, Result, failed, passed, some, warned


def start_step(context: Context) -> int:
    """The step after which the run resumes; 0 when it starts from the model, or cannot resume."""
    from verl_hyocr import checkpoint

    if not context.settings.checkpoints.is_dir():
        return 0
    try:
        chosen, _ = checkpoint.find_resumable(context.settings.checkpoints)
    except checkpoint.CheckpointError:
        return 0
    return chosen.step if chosen and context.settings.resume_mode == "auto" else 0


def check(context: Context) -> list[Result]:
    """What ``verl_hyocr.checkpoint`` will say when the trainer asks it."""
    from verl_hyocr import checkpoint

    name, settings, remarks = "resume.checkpoint", context.settings, []
    if settings.resume_mode == "disable":
        return [passed(name, "starts from MODEL_PATH (RESUME_MODE=disable)")]
    try:
        if settings.resume_mode == "auto":
            chosen = None
            if settings.checkpoints.is_dir():
                chosen, remarks = checkpoint.find_resumable(settings.checkpoints)
            if chosen is None:
                return [passed(name, "starts from MODEL_PATH: there is no checkpoint yet")]
            folder = chosen.path
        else:
            folder = Path(settings.resume_mode)
        step = checkpoint.require(folder, settings.world).step
    except checkpoint.CheckpointError as error:
        found, _, remedy = str(error).partition(". ")
        return [failed(name, found, remedy or "set RESUME_MODE=auto, or to a global_step_N folder")]
    try:
        total = context.total_steps
    except NotChecked:
        total = 0
    results = []
    if remarks:
        found = f"resumes after step {step}: {some(remarks)}"
        remedy = (
            f"look at the folders (python -m verl_hyocr.checkpoint {settings.checkpoints}), or set RESUME_MODE to one"
        )
        results.append(warned(name, found, remedy))
    if total and step >= total:
        more = step + settings.save_freq if settings.save_freq > 0 else step + 1
        found = f"resumes after step {step}, the run ends at step {total}: nothing is left to train"
        results.append(warned(name, found, f"set TOTAL_STEPS={more}"))
    return results or [passed(name, f"resumes after step {step}" + (f" of {total}" if total else ""))]
