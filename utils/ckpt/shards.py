"""The sharded FSDP checkpoints of a run: which steps there are, whether one is whole, and its merged state dict."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class CheckpointError(ValueError):
    """The checkpoint cannot be merged; the message names the file and the reason."""


def find_steps(root: Path) -> list[int]:
    """Numbers N of the folders global_step_N below ``root``, ascending."""
    matches = (re.fullmatch(r"global_step_(\d+)", path.name) for path in root.iterdir() if path.is_dir())
    return sorted(int(match.group(1)) for match in matches if match)


def world_size(actor: Path) -> int:
    """Number of ranks that wrote ``actor`` (a global_step_N/actor folder).

    Raises:
        CheckpointError: no or a damaged fsdp_config.json, or a rank's file is missing or cut short.
    """
    config = actor / "fsdp_config.json"
    try:
        ranks = int(json.loads(config.read_text())["world_size"])
    except FileNotFoundError:
        raise CheckpointError(f"{config} is missing: interrupted save, or no FSDP checkpoint") from None
    except (ValueError, KeyError, TypeError):
        raise CheckpointError(f"{config} is damaged") from None
    for rank in range(ranks):
        path = shard_path(actor, ranks, rank)
        if not path.is_file():
            raise CheckpointError(f"{path.name} is missing: interrupted save, or the file stayed on another node")
        if not zipfile.is_zipfile(path):
            raise CheckpointError(f"{path.name} is cut short ({path.stat().st_size} bytes)")
    return ranks


def shard_path(actor: Path, ranks: int, rank: int) -> Path:
    return actor / f"model_world_size_{ranks}_rank_{rank}.pt"


def merge_shards(actor: Path, dtype: torch.dtype | None = None) -> dict[str, torch.Tensor]:
    """The full state dict of ``actor`` under transformers' names, in the order of rank 0's file, on the CPU.

    The shards are memory-mapped, so about one copy of the model is resident.

    Args:
        dtype: type of the floating-point tensors; None keeps the checkpoint's.

    Raises:
        CheckpointError: a file is damaged, or the placements are not those of FSDP or HSDP.
    """
    import torch
    from torch.distributed.tensor import DTensor
    from verl.model_merger.fsdp_model_merger import merge_non_dtensor_shards

    ranks = world_size(actor)

    def load(rank: int) -> dict[str, torch.Tensor]:
        path = shard_path(actor, ranks, rank)
        try:
            # DTensors and their mesh are refused by the restricted loader; the files are the run's own.
            return torch.load(path, map_location="cpu", mmap=True, weights_only=False)
        except Exception as error:
            raise CheckpointError(f"{path.name} does not load: {type(error).__name__}: {error}") from None

    first = load(0)
    if lora := [name for name in first if "lora_" in name]:
        raise CheckpointError(f"LoRA weights ({lora[0]}, ...): merge them with python -m verl.model_merger")
    meshes = {tuple(t.device_mesh.mesh_dim_names or ()) for t in first.values() if isinstance(t, DTensor)}
    if unknown := meshes - {("fsdp",), ("ddp", "fsdp")}:
        raise CheckpointError(f"device mesh {sorted(unknown)[0]} is neither FSDP nor HSDP")
    # With HSDP the first row of the mesh is a whole copy of the model.
    shards = max((t.device_mesh.mesh.shape[-1] for t in first.values() if isinstance(t, DTensor)), default=1)
    states = [first, *(load(rank) for rank in range(1, shards))]
    for rank, state in enumerate(states):
        if state.keys() != first.keys():
            raise CheckpointError(f"rank {rank} holds other tensors than rank 0: mixed checkpoints in one folder")

    merged = {}
    for name in list(first):
        parts = [state.pop(name) for state in states]
        merged[name] = _join(name, parts, merge_non_dtensor_shards)
        if dtype is not None and merged[name].is_floating_point():
            merged[name] = merged[name].to(dtype)
    return merged


def _join(name: str, parts: list, merge_replicas) -> torch.Tensor:
    import torch
    from torch.distributed.tensor import DTensor

    if not isinstance(parts[0], DTensor):
        try:
            return merge_replicas(name, parts).clone()
        except ValueError as error:
            raise CheckpointError(str(error)) from None
    placement = parts[0].placements[-1]
    locals_ = [part.to_local() for part in parts]
    if placement.is_replicate():
        return locals_[0].clone()
    if not placement.is_shard():
        raise CheckpointError(f"tensor {name} has placement {placement}")
    whole = torch.cat(locals_, dim=placement.dim)
    if whole.shape != parts[0].shape:
        raise CheckpointError(
            f"tensor {name}: the shards give {list(whole.shape)}, the model has {list(parts[0].shape)}"
        )
    return whole
