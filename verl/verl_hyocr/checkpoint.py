"""E2: checkpoints on disk: which are whole, where a resume starts, how a new one becomes visible, which ones go.

    python -m verl_hyocr.checkpoint CKPT_ROOT [--world-size W] [--resume auto|FOLDER] [--json]

lists the checkpoints of a run and says where a resume would start; exit code 2 when it could not.

A save is written below ``CKPT_ROOT/.incomplete`` and renamed to ``global_step_N`` when every file is there, so that a folder
of that name is whole. The tracker ``latest_checkpointed_iteration.txt`` moves after the rename, old checkpoints go after
that. Nothing here needs torch.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import struct
import sys
import time
import zipfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

WORK = ".incomplete"
"""Folder of saves in progress, and of what is being deleted. Whatever a killed run left in it is worthless."""
MANIFEST = "checkpoint.json"
TRACKER = "latest_checkpointed_iteration.txt"
KINDS = {"model": "model", "optimizer": "optim", "extra": "extra_state"}
"""verl's name in ``checkpoint.save_contents`` -> name of the ranks' files."""
HEADROOM = 1.05
"""Share of the expected size that must be free."""


class CheckpointError(RuntimeError):
    """A checkpoint cannot be used or written; the message names the folder, the reason and the remedy."""


@dataclass(frozen=True)
class Checkpoint:
    """One ``global_step_N`` folder.

    Attributes:
        step: N.
        path: the folder.
        problem: why it is not whole; empty when it is.
        world_size: FSDP ranks that wrote it, None when unknown.
        saved_at: Unix time of the save, 0 when it has no manifest.
        size: bytes of its files.
    """

    step: int
    path: Path
    problem: str
    world_size: int | None
    saved_at: float
    size: int

    @property
    def complete(self) -> bool:
        return not self.problem


# ------------------------------------------------------------------------------------------------------------ reading


def step_of(folder: str | os.PathLike) -> int:
    """N of ``…/global_step_N``.

    Raises:
        CheckpointError: the folder has another name.
    """
    match = re.fullmatch(r"global_step_(\d+)", Path(folder).name)
    if not match:
        raise CheckpointError(f"{folder} is no checkpoint: the folder must be named global_step_N")
    return int(match.group(1))


def inspect(folder: str | os.PathLike) -> Checkpoint:
    """What ``folder`` holds. Reads names, sizes and the ends of files, no tensors."""
    folder = Path(folder)
    manifest = _read_manifest(folder)
    if manifest:
        world_size, problem = manifest["world_size"], _differences(folder, manifest["files"])
    else:
        world_size, problem = _content(folder, KINDS)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return Checkpoint(step_of(folder), folder, problem, world_size, manifest["saved_at"] if manifest else 0.0, size)


def scan(root: str | os.PathLike) -> list[Checkpoint]:
    """Every ``global_step_N`` folder of ``root``, ascending."""
    root = Path(root)
    if not root.is_dir():
        return []
    folders = [path for path in root.iterdir() if path.is_dir() and re.fullmatch(r"global_step_\d+", path.name)]
    return [inspect(folder) for folder in sorted(folders, key=step_of)]


def shard_names(world_size: int, contents: Iterable[str] = KINDS) -> list[str]:
    """Files of ``actor/`` that ``world_size`` ranks write for ``checkpoint.save_contents``."""
    kinds = [KINDS[name] for name in KINDS if name in contents]
    return [f"{kind}_world_size_{world_size}_rank_{rank}.pt" for rank in range(world_size) for kind in kinds]


def _content(folder: Path, contents: Iterable[str]) -> tuple[int | None, str]:
    """(ranks, first problem of the content or "")."""
    actor = folder / "actor"
    try:
        world_size = int(json.loads((actor / "fsdp_config.json").read_text())["world_size"])
    except FileNotFoundError:
        return None, "actor/fsdp_config.json is missing"
    except (ValueError, KeyError, TypeError):
        return None, "actor/fsdp_config.json is damaged"
    for path in [*(actor / name for name in shard_names(world_size, contents)), folder / "data.pt"]:
        name = path.relative_to(folder)
        if not path.is_file():
            return world_size, f"{name} is missing"
        if not zipfile.is_zipfile(path):
            return world_size, f"{name} is cut short ({path.stat().st_size} bytes)"
    if not (actor / "huggingface/config.json").is_file():
        return world_size, "actor/huggingface/config.json is missing"
    return world_size, ""


def _differences(folder: Path, files: dict[str, int]) -> str:
    for name, size in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes, not {size}"
    return ""


def _read_manifest(folder: Path) -> dict | None:
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        return {
            "saved_at": float(manifest["saved_at"]),
            "world_size": int(manifest["world_size"]),
            "files": dict(manifest["files"]),
        }
    except (OSError, ValueError, KeyError, TypeError):
        return None


def find_resumable(root: str | os.PathLike) -> tuple[Checkpoint | None, list[str]]:
    """The checkpoint that ``resume_mode=auto`` continues from, and remarks for the log.

    It is the one that the tracker names, unless a whole one was saved after the tracker was written (the run was killed
    between the two), or the named one is not whole: then the one that was saved last.

    Raises:
        CheckpointError: the tracker names a checkpoint, and no whole one is left.
    """
    root, remarks = Path(root), []
    found = scan(root)
    for item in found:
        if not item.complete:
            remarks.append(f"{item.path} is not whole ({item.problem}): ignored")
    whole = {item.step: item for item in found if item.complete}
    try:
        named = int((root / TRACKER).read_text())
        written = (root / TRACKER).stat().st_mtime
    except FileNotFoundError:
        named, written = None, 0.0
    except ValueError:
        named, written = None, 0.0
        remarks.append(f"{root / TRACKER} is damaged: ignored")
    if not whole:
        if named is not None:
            raise CheckpointError(
                f"{root / TRACKER} names step {named}, but {root} holds no whole checkpoint"
                f"{': ' + '; '.join(remarks) if remarks else ''}. Put the folder global_step_{named} back, or start anew "
                "with another EXPERIMENT_NAME."
            )
        return None, remarks
    newest = max(whole.values(), key=lambda item: (item.saved_at, item.step))
    if named in whole and not newest.saved_at > written:
        return whole[named], remarks
    if named is not None and named != newest.step:
        remarks.append(f"{TRACKER} names step {named}; resuming from {newest.path.name}, the last whole one saved")
    return newest, remarks


def require(folder: str | os.PathLike, world_size: int | None = None) -> Checkpoint:
    """``folder``, if a run of ``world_size`` ranks can resume from it.

    Raises:
        CheckpointError: it is not whole, or other than ``world_size`` ranks wrote it.
    """
    item = inspect(folder)
    if not item.complete:
        raise CheckpointError(
            f"cannot resume from {folder}: {item.problem}. It was interrupted or copied in part; choose another one "
            f"(python -m verl_hyocr.checkpoint {Path(folder).parent} lists them)."
        )
    if world_size is not None and item.world_size != world_size:
        raise CheckpointError(
            f"cannot resume {folder} with {world_size} ranks: {item.world_size} ranks wrote it, and verl's FSDP shards load "
            f"on as many ranks only. Use {item.world_size} GPUs (NNODES x NGPUS_PER_NODE), or start a new run from its "
            f"weights: merge them (STEPS={item.step} CKPT_ROOT={Path(folder).parent} bash "
            "utils/ckpt/merge_fsdp_ckpt_to_hf.sh) and set MODEL_PATH to "
            f"{Path(folder) / 'actor/huggingface'} and a new EXPERIMENT_NAME. Optimizer state and step count start anew then."
        )
    return item


# ------------------------------------------------------------------------------------------------------------ writing


def work_folder(root: str | os.PathLike) -> Path:
    """``root/.incomplete``, emptied: what an interrupted save or deletion left there goes."""
    work = Path(root) / WORK
    if work.exists():
        shutil.rmtree(work)
    work.mkdir(parents=True)
    return work


def publish(root: str | os.PathLike, step: int, contents: Iterable[str] = KINDS) -> Checkpoint:
    """Turn ``root/.incomplete/global_step_N`` into the latest checkpoint of ``root``.

    Args:
        contents: verl's ``checkpoint.save_contents``.

    Raises:
        CheckpointError: a file is missing or cut short; nothing was changed.
    """
    root = Path(root)
    work = root / WORK
    source, target = work / f"global_step_{step}", root / f"global_step_{step}"
    world_size, problem = _content(source, contents)
    if problem:
        raise CheckpointError(
            f"the save of step {step} is not whole: {problem}. Is {root} on a file system that all nodes share?"
        )
    files = {
        str(path.relative_to(source)): path.stat().st_size
        for path in sorted(source.rglob("*"))
        # The merge tool may write weights into huggingface/ later.
        if path.is_file() and "huggingface" not in path.relative_to(source).parts
    }
    manifest = {"format": 1, "step": step, "world_size": world_size, "saved_at": time.time(), "files": files}
    _write(source / MANIFEST, json.dumps(manifest, indent=1))
    for path in source.rglob("*"):
        _flush(path)
    _flush(source)
    if target.exists():
        # A run that went back to an earlier step comes by here again.
        os.rename(target, work / f"replaced_{step}")
    os.rename(source, target)
    _flush(root)
    _write(root / TRACKER, str(step))
    _flush(root)
    shutil.rmtree(work)
    return inspect(target)


def prune(root: str | os.PathLike, keep: int | None) -> list[Path]:
    """Delete whole checkpoints but the ``keep`` (at least 1) that were saved last; returns the deleted folders.

    Folders that are not whole stay: what they are is not known. A deletion that is interrupted leaves no half folder.
    """
    root = Path(root)
    if not keep:
        return []
    whole = [item for item in scan(root) if item.complete]
    whole.sort(key=lambda item: (item.saved_at, item.step))
    gone = []
    for item in whole[: -max(keep, 1)]:
        (root / WORK).mkdir(exist_ok=True)
        doomed = root / WORK / f"pruned_{item.step}"
        os.rename(item.path, doomed)
        shutil.rmtree(doomed)
        gone.append(item.path)
    if gone:
        shutil.rmtree(root / WORK)
    return gone


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with open(temporary, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --------------------------------------------------------------------------------------------------------- disk space


def expected_bytes(root: str | os.PathLike, model: str | os.PathLike, contents: Iterable[str]) -> int:
    """Bytes of the next checkpoint: those of the largest whole one, else an estimate from the model's parameters.

    The estimate takes verl's default, 32-bit weights (4 bytes a parameter) with two Adam moments (8 bytes), and the
    weights once more for ``hf_model``. Returns 0 for a model without safetensors files.
    """
    sizes = [item.size for item in scan(root) if item.complete]
    if sizes:
        return max(sizes)
    per_parameter = 4 * ("model" in contents) + 8 * ("optimizer" in contents) + 4 * ("hf_model" in contents)
    return per_parameter * parameters(model)


def parameters(model: str | os.PathLike) -> int:
    """Number of parameters in the safetensors files of ``model``, read from their headers."""
    total = 0
    for path in Path(model).glob("*.safetensors"):
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
        total += sum(math.prod(info["shape"]) for name, info in header.items() if name != "__metadata__")
    return total


def require_space(root: str | os.PathLike, needed: int) -> None:
    """Refuse a save that would not fit.

    Raises:
        CheckpointError: fewer than ``needed`` bytes (with headroom) are free where ``root`` lies.
    """
    free = shutil.disk_usage(root).free
    if free >= needed * HEADROOM:
        return
    newest = max((item for item in scan(root) if item.complete), key=lambda i: (i.saved_at, i.step), default=None)
    raise CheckpointError(
        f"not enough disk space for the next checkpoint: it needs about {_gigabytes(needed * HEADROOM)}, {root} has "
        f"{_gigabytes(free)} free. Nothing was written; "
        f"{f'{newest.path.name} is kept' if newest else 'there is no earlier checkpoint'}. Free space, set "
        "MAX_CKPT_TO_KEEP (one more than that must fit, while the new one is written) or SAVE_HF_MODEL=0, and start the "
        "same command again: it resumes."
    )


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e7 else f"{size / 1e6:.2f} MB"


# ------------------------------------------------------------------------------------------------------- command line


def main(argv: list[str] | None = None) -> int:
    """The command line of the module; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_argument_group("what to look at")
    what.add_argument("root", type=Path, metavar="CKPT_ROOT", help="folder with the global_step_N folders")
    what.add_argument("--world-size", type=int, help="ranks of the run that wants to resume")
    what.add_argument("--resume", default="auto", help="auto (default), or the global_step_N folder to resume from")
    parser.add_argument_group("output").add_argument("--json", action="store_true", help="JSON on stdout")
    args = parser.parse_args(argv)
    found, remarks, chosen, error = scan(args.root), [], None, ""
    try:
        if args.resume == "auto":
            chosen, remarks = find_resumable(args.root)
        if args.resume != "auto" or chosen is not None:
            chosen = require(args.resume if args.resume != "auto" else chosen.path, args.world_size)
    except CheckpointError as refusal:
        chosen, error = None, str(refusal)
    if args.json:
        rows = [{**asdict(item), "path": str(item.path), "complete": item.complete} for item in found]
        print(
            json.dumps(
                {
                    "checkpoints": rows,
                    "resume": str(chosen.path) if chosen else None,
                    "remarks": remarks,
                    "error": error,
                }
            )
        )
    else:
        for item in found:
            state = "complete" if item.complete else f"NOT WHOLE: {item.problem}"
            ranks = f"{item.world_size} ranks" if item.world_size else "?"
            print(f"{item.step:>8}  {ranks:>10}  {_gigabytes(item.size):>12}  {state}")
        for remark in remarks:
            print(f"note: {remark}", file=sys.stderr)
        if error:
            print(f"error: {error}", file=sys.stderr)
        else:
            print(f"resume: {chosen.path if chosen else 'none, training starts from MODEL_PATH'}")
    return 2 if error else 0


if __name__ == "__main__":
    sys.exit(main())
