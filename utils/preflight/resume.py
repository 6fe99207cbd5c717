"""Where will the run start: from the model, or from a checkpoint that fits?"""

from __future__ import annotations

import re
from pathlib import Path

from utils.preflight.context import Context
from utils.preflight.disk import latest_step
from utils.preflight.results import NotChecked, Result, failed, passed, some, warned

SHARD = re.compile(r"(model|optim|extra_state)_world_size_(\d+)_rank_(\d+)\.pt")


def check(context: Context) -> list[Result]:
    check_name, settings = "resume.checkpoint", context.settings
    if settings.resume_mode == "disable":
        return [passed(check_name, "starts from MODEL_PATH (RESUME_MODE=disable)")]
    if settings.resume_mode == "auto":
        step = latest_step(settings.checkpoints)
        folder = settings.checkpoints / f"global_step_{step}"
        if not step:
            return [passed(check_name, "starts from MODEL_PATH: there is no checkpoint yet")]
        if not folder.is_dir():
            found = f"latest_checkpointed_iteration.txt names step {step}, but {folder} is missing: the run would start again"
            remedy = "restore the folder, or write the step of a complete one into latest_checkpointed_iteration.txt"
            return [failed(check_name, found, remedy)]
    else:
        folder = Path(settings.resume_mode)
        named = re.fullmatch(r"global_step_(\d+)", folder.name)
        if not folder.is_dir() or not named:
            found = f"RESUME_MODE={settings.resume_mode} is no global_step_N folder"
            return [failed(check_name, found, "set RESUME_MODE=auto, or to an existing folder")]
        step = int(named.group(1))
    problem = shard_problem(folder / "actor", settings.world)
    if problem:
        return [failed(check_name, f"{folder}: {problem[0]}", problem[1])]
    try:
        total = context.total_steps
    except NotChecked:
        total = 0
    if total and step >= total:
        found = f"resumes after step {step}, the run ends at step {total}: nothing is left to train"
        return [
            warned(
                check_name,
                found,
                f"set TOTAL_STEPS={step + settings.save_freq if settings.save_freq > 0 else step + 1}",
            )
        ]
    return [passed(check_name, f"resumes after step {step}" + (f" of {total}" if total else ""))]


def shard_problem(actor: Path, world: int) -> tuple[str, str] | None:
    """(what keeps ``world`` workers from loading the shards in ``actor``, remedy), or None."""
    shards: dict[int, set[tuple[str, int]]] = {}
    for file in actor.glob("*.pt"):
        found = SHARD.fullmatch(file.name)
        if found:
            shards.setdefault(int(found.group(2)), set()).add((found.group(1), int(found.group(3))))
    older = "resume from another checkpoint: RESUME_MODE=<global_step_N folder>"
    if not shards:
        return "it holds no shards", older
    if world not in shards:
        sizes = some(sorted(shards))
        merge = "merge it (utils/ckpt/merge_fsdp_ckpt_to_hf.sh) and start from that"
        remedy = f"set NNODES x NGPUS_PER_NODE to {sizes}, or {merge}"
        return f"it was saved by {sizes} worker(s), this run has {world}", remedy
    missing = [
        f"{kind}_world_size_{world}_rank_{rank}.pt"
        for kind in ("model", "optim", "extra_state")
        for rank in range(world)
        if (kind, rank) not in shards[world]
    ]
    return (f"it lacks {some(missing)}", older) if missing else None
