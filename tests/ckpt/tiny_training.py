"""A small training on one rank with the fork's saving and loading: verl's FSDP shards, its data loader, no Ray and no vLLM.

    python tests/ckpt/tiny_training.py MODEL RUN --steps 4 [--pause MOMENT:STEP] [--keep K]

Every step saves to RUN/ckpt; a start resumes; RUN/losses.jsonl gets a line a step. --pause prints PAUSED at the moment and
waits to be killed: rollout (batch fetched), update (before the optimizer), save (half of the optimizer's file is written),
publish (the folder is renamed, the tracker is not written).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("VERL_PLATFORM", "cpu")
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")

import numpy as np
import torch
import torch.distributed as dist
from omegaconf import OmegaConf
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torchdata.stateful_dataloader import StatefulDataLoader
from transformers import AutoModelForImageTextToText, AutoProcessor
from verl.trainer.ppo.checkpoint_callback import CheckpointCallback
from verl.trainer.ppo.utils import create_rl_sampler
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager
from verl_hyocr import checkpoint
from verl_hyocr.safe_trainer import SafeTrainerSync


class Workers:
    """The part of a worker group that saving and loading use, in this process."""

    world_size = 1

    def __init__(self, manager: FSDPCheckpointManager):
        self._manager = manager

    def save_checkpoint(self, path, remote, step, max_ckpt_to_keep):
        self._manager.save_checkpoint(path, remote, step, max_ckpt_to_keep)

    def load_checkpoint(self, local_path, del_local_after_load):
        self._manager.load_checkpoint(local_path, del_local_after_load=del_local_after_load)


def pause() -> None:
    print("PAUSED", flush=True)
    sys.stdin.read()


def pause_while_saving() -> None:
    """From now on ``torch.save`` writes half of the optimizer's file and waits."""
    original = torch.save

    def save(value, path, *args, **kwargs):
        original(value, path, *args, **kwargs)
        if "/optim_" in str(path):
            os.truncate(path, os.path.getsize(path) // 2)
            pause()

    torch.save = save


def pause_before_tracker() -> None:
    original = checkpoint._write

    def write(path, text):
        if path.name == checkpoint.TRACKER:
            pause()
        original(path, text)

    checkpoint._write = write


def build(model_path: Path, run: Path, keep: int | None) -> tuple:
    dist.init_process_group("gloo", init_method=f"file://{run}/rendezvous", rank=0, world_size=1)
    torch.manual_seed(0)
    np.random.seed(0)
    model = AutoModelForImageTextToText.from_pretrained(model_path, dtype=torch.float32)
    fully_shard(model, mesh=init_device_mesh("cpu", (1,), mesh_dim_names=("fsdp",)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    contents = ["model", "optimizer", "extra"]
    manager = FSDPCheckpointManager(
        model,
        optimizer,
        lr_scheduler=schedule,
        processing_class=AutoProcessor.from_pretrained(model_path, backend="pil"),
        checkpoint_config=OmegaConf.create({"save_contents": contents, "load_contents": contents}),
    )
    config = OmegaConf.create(
        {
            "trainer": {
                "default_local_dir": str(run / "ckpt"),
                "default_hdfs_dir": None,
                "max_actor_ckpt_to_keep": keep,
                "resume_mode": "auto",
                "resume_from_path": None,
                "del_local_ckpt_after_load": False,
            },
            "data": {"shuffle": True, "seed": 1, "train_batch_size": 2},
            "actor_rollout_ref": {
                "model": {"path": str(model_path)},
                "actor": {"checkpoint": {"save_contents": contents}},
            },
        }
    )
    trainer = object.__new__(SafeTrainerSync)
    trainer.config, trainer.trainer_mode, trainer.use_critic = config, "sync", False
    trainer.checkpoint_callback, trainer.actor_rollout_wg = CheckpointCallback(), Workers(manager)
    trainer.total_training_steps = 100
    dataset = list(range(6))
    trainer.train_dataloader = StatefulDataLoader(
        dataset, batch_size=2, drop_last=True, sampler=create_rl_sampler(config.data, dataset)
    )
    trainer.train_dataloader_it = None
    trainer._trained_step, trainer._saved_step = 0, None
    trainer._load_checkpoint()
    return trainer, model, optimizer, schedule


def next_batch(trainer) -> torch.Tensor:
    for _ in range(2):
        if trainer.train_dataloader_it is None:
            trainer.train_dataloader_it = iter(trainer.train_dataloader)
        for batch in trainer.train_dataloader_it:
            return batch
        trainer.train_dataloader_it = None
    raise AssertionError("an epoch without batches")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--pause", default=":0", help="MOMENT:STEP")
    parser.add_argument("--keep", type=int)
    args = parser.parse_args()
    moment, pause_step = args.pause.split(":")
    args.run.mkdir(parents=True, exist_ok=True)
    (args.run / "rendezvous").unlink(missing_ok=True)
    trainer, model, optimizer, schedule = build(args.model, args.run, args.keep)
    for step in range(trainer.global_steps + 1, args.steps + 1):
        trainer.global_steps = step
        moment_now = moment if step == int(pause_step) else ""
        batch = next_batch(trainer)
        if moment_now == "rollout":
            pause()
        # The tokens come from the data and from the process's random state: both must be restored. (Not torch's: the
        # loader draws from it, and in verl it lives in another process.)
        noise = torch.from_numpy(np.random.randint(0, 50, (2, 8)))
        tokens = 100 + (batch[:, None] * 17 + torch.arange(8)[None] * 3 + noise) % 200
        logits = model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        if moment_now == "update":
            pause()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        with open(args.run / "losses.jsonl", "a") as file:
            file.write(json.dumps({"step": step, "loss": loss.item(), "data": batch.tolist()}) + "\n")
        if moment_now == "save":
            pause_while_saving()
        if moment_now == "publish":
            pause_before_tracker()
        trainer._save_checkpoint()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
