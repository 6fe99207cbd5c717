"""Writes real FSDP2 checkpoints with verl's own manager: one process a rank, gloo, no GPU.

torchrun --nproc-per-node 2 tests/ckpt/save_checkpoint.py MODEL CKPT_ROOT --steps 1 2 [--export] [--hsdp]
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ.setdefault("VERL_PLATFORM", "cpu")

import torch
import torch.distributed as dist
from omegaconf import OmegaConf
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForImageTextToText, AutoProcessor
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager
from verl_hyocr.adapt.hf_export import restore_released_config


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("root", type=Path)
    parser.add_argument("--steps", type=int, nargs="+", default=[1])
    parser.add_argument("--export", action="store_true", help="also the HuggingFace export of training")
    parser.add_argument("--hsdp", action="store_true", help="two replicas of shards")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    shape, names = ((2, ranks // 2), ("ddp", "fsdp")) if args.hsdp else ((ranks,), ("fsdp",))
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)

    model = AutoModelForImageTextToText.from_pretrained(args.model, dtype=torch.float32)
    processor = AutoProcessor.from_pretrained(args.model, backend="pil")
    for layer in (*model.model.language_model.layers, *model.model.vision_tower.layers):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    contents = ["model", "optimizer", "extra", *(["hf_model"] if args.export else [])]
    manager = FSDPCheckpointManager(
        model,
        optimizer,
        lr_scheduler=torch.optim.lr_scheduler.ConstantLR(optimizer),
        processing_class=processor,
        checkpoint_config=OmegaConf.create({"save_contents": contents, "load_contents": contents}),
    )
    for step in args.steps:
        # Other values at every step, the same on every rank layout.
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.0 + 0.001 * step)
        actor = args.root / f"global_step_{step}/actor"
        manager.save_checkpoint(str(actor), global_step=step)
        if dist.get_rank() == 0:
            restore_released_config(args.model, actor / "huggingface")
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
