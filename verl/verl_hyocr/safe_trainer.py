"""E2, in the trainer: checkpoints that are whole or not there, repeatable data order, and a stop on request.

Upstream writes ``global_step_N`` in place, prunes before it saves and trusts the tracker file. Here the save goes to a work
folder first (:mod:`verl_hyocr.checkpoint`); upstream's own code does the writing and the loading.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf, open_dict
from verl.trainer.ppo.checkpoint_callback import CheckpointCallback
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils as tu

from verl_hyocr import checkpoint, stop
from verl_hyocr.stop import Stopped, StopRequested

# Below verl's own logger, which the trainer process shields from libraries that silence the root logger.
logger = logging.getLogger("verl.hyocr")


@contextmanager
def settings(config: DictConfig, **values: Any) -> Iterator[None]:
    """``config`` with other values inside the block."""
    before = {name: config.get(name) for name in values}
    with open_dict(config):
        config.update(values)
    try:
        yield
    finally:
        with open_dict(config):
            config.update(before)


class _FixedState:
    """Stands in for a dataloader whose state of an earlier moment is to be saved."""

    def __init__(self, state: dict):
        self._state = state

    def state_dict(self) -> dict:
        return self._state


class SafeTrainerSync(PPOTrainerSync):
    """Upstream's synchronous trainer with safe checkpoints."""

    def __init__(self, config: DictConfig):
        super().__init__(config)
        self._trained_step = 0
        self._saved_step: int | None = None
        self._in_training_loop = False
        self._data_before_step: dict | None = None
        self._fetched_prompts = 0

    # --------------------------------------------------------------------------------------------- save and resume

    def _checkpoint_root(self) -> str:
        return os.path.abspath(self.config.trainer.default_local_dir)

    def _save_checkpoint(self):
        trainer, actor = self.config.trainer, self.config.actor_rollout_ref.actor
        root, step = self._checkpoint_root(), self.global_steps
        contents = list(OmegaConf.select(actor, "checkpoint.save_contents"))
        work = checkpoint.work_folder(root)
        keep = 1 if trainer.get("remove_previous_ckpt_in_save", False) else trainer.get("max_actor_ckpt_to_keep", None)
        callback, self.checkpoint_callback = self.checkpoint_callback, CheckpointCallback()
        try:
            needed = checkpoint.expected_bytes(root, self.config.actor_rollout_ref.model.path, contents)
            checkpoint.require_space(root, needed)
            with settings(
                trainer,
                default_local_dir=str(work),
                max_actor_ckpt_to_keep=None,
                max_critic_ckpt_to_keep=None,
                remove_previous_ckpt_in_save=False,
            ):
                super()._save_checkpoint()
            saved = checkpoint.publish(root, step, contents)
        except BaseException:
            # What was written so far is worth nothing, and on a full disk it stands in the way of the logs.
            shutil.rmtree(work, ignore_errors=True)
            raise
        finally:
            self.checkpoint_callback = callback
        self._saved_step = step
        logger.info("checkpoint %s is complete (%.2f GB)", saved.path, saved.size / 1e9)
        for gone in checkpoint.prune(root, keep):
            logger.info("deleted %s: %d checkpoints are kept", gone, keep)
        callback.on_save(trainer=self, global_step=step, checkpoint_dir=str(saved.path), async_save=False)

    def _load_checkpoint(self):
        trainer, ranks = self.config.trainer, self.actor_rollout_wg.world_size
        chosen = None
        if trainer.resume_mode == "auto":
            chosen, remarks = checkpoint.find_resumable(self._checkpoint_root())
            for remark in remarks:
                logger.warning("%s", remark)
            if chosen is not None:
                chosen = checkpoint.require(chosen.path, ranks)
        elif trainer.resume_mode == "resume_path":
            chosen = checkpoint.require(os.path.abspath(trainer.resume_from_path), ranks)
        if chosen is None:
            with settings(trainer, resume_mode="disable"):
                super()._load_checkpoint()
            return
        self._require_same_loader(chosen)
        with settings(trainer, resume_mode="resume_path", resume_from_path=str(chosen.path)):
            super()._load_checkpoint()
        self._trained_step = self._saved_step = self.global_steps
        if self.global_steps >= self.total_training_steps:
            logger.warning(
                "%s is step %d of %d: there is nothing left to train. More steps: TOTAL_STEPS or TOTAL_EPOCHS.",
                *(chosen.path, self.global_steps, self.total_training_steps),
            )

    def _require_same_loader(self, chosen: checkpoint.Checkpoint) -> None:
        """The loader's state fits as many workers only; its own error names neither number."""
        state = torch.load(chosen.path / "data.pt", weights_only=False)
        saved = state.get("_snapshot", {}).get("_main_snapshot", {}).get("_num_workers", 0)
        if state and saved != self.train_dataloader.num_workers:
            raise checkpoint.CheckpointError(
                f"{chosen.path} was written with {saved} data loader processes, and this run has "
                f"{self.train_dataloader.num_workers}: its place in the data cannot be found. Set DATALOADER_WORKERS={saved}."
            )

    # ------------------------------------------------------------------------------------------------ data and order

    def _fetch_one_gen_batch(self):
        batch = super()._fetch_one_gen_batch()
        # Upstream's random ids would put the prompts of a step in another order in every run.
        first = self._fetched_prompts
        self._fetched_prompts += len(batch)
        uids = [f"{self.global_steps:09d}-{number:06d}" for number in range(first, self._fetched_prompts)]
        tu.assign_non_tensor_stack(batch, "uid", uids)
        return batch

    # -------------------------------------------------------------------------------------------------- stop on request

    def fit(self, agent_loop_manager):
        stop.announce_training()
        try:
            super().fit(agent_loop_manager)
        except StopRequested:
            self._free_rollout()
            raise self._save_and_stop() from None
        finally:
            self._close_dataloaders()

    def _free_rollout(self) -> None:
        """Give up answers in flight and the rollout's device memory, which the save may need."""
        try:
            self.checkpoint_manager.abort_replicas()
            self.checkpoint_manager.sleep_replicas()
        except Exception as error:
            logger.warning("the rollout could not be put to sleep, saving all the same: %r", error)

    def on_step_begin(self):
        stop.check()
        self._in_training_loop = True
        self._fetched_prompts = 0
        self._data_before_step = self.train_dataloader.state_dict()
        super().on_step_begin()

    def on_step_end(self):
        self._trained_step, self._data_before_step = self.global_steps, None
        super().on_step_end()

    def _validate(self) -> dict[str, float]:
        try:
            stop.check()
            return super()._validate()
        except StopRequested:
            if not self._in_training_loop:
                raise
            # The step before it is logged first; the next one does not begin.
            logger.warning("validation after step %d is skipped: the run was asked to stop", self.global_steps)
            return {}

    def _save_and_stop(self) -> Stopped:
        """Save the state after the last finished step, unless that is on disk already."""
        step, current = self._trained_step, self.global_steps
        if step == 0:
            return Stopped("stopped on request before the first step was finished: nothing to save")
        if step == self._saved_step:
            return Stopped(f"stopped on request after step {step}, which is saved already")
        dataloader = self.train_dataloader
        try:
            self.global_steps = step
            if self._data_before_step is not None:
                self.train_dataloader = _FixedState(self._data_before_step)
            self._save_checkpoint()
        finally:
            self.global_steps, self.train_dataloader = current, dataloader
        return Stopped(f"stopped on request; step {step} is saved in {self._checkpoint_root()}/global_step_{step}")

    def _close_dataloaders(self) -> None:
        # Workers that outlive the loop are killed with the process, and torch reports each as a crash.
        self.train_dataloader_it = None
        for loader in (self.train_dataloader, self.val_dataloader):
            iterator = getattr(loader, "_iterator", None)
            if hasattr(iterator, "_shutdown_workers"):
                iterator._shutdown_workers()
