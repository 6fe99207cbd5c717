"""verl's synchronous trainer with dropped samples: ``trainer.v1.trainer_mode=hyocr_sync``.

Adds to upstream: an update without samples is skipped, drops, judge failures and the step's health are metrics, and a run
in which one of them stays bad stops with the reason. Which samples are dropped is decided in :mod:`verl_hyocr.sampler`,
what is healthy in :mod:`verl_hyocr.health`.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from types import ModuleType
from typing import Any

import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf, open_dict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.utils.debug import marked_timer

from verl_hyocr import drop_policy, groups, health, pixels
from verl_hyocr.board_source import RolloutBoard
from verl_hyocr.drop_policy import DropGuard, DropPlan, TrainingStopped
from verl_hyocr.health import HealthWatch
from verl_hyocr.registry import is_disabled
from verl_hyocr.safe_trainer import SafeTrainerSync
from verl_hyocr.sampler import HyocrReplayBuffer
from verl_hyocr.stop import Stopped

# Below verl's own logger, which the trainer process shields from libraries that silence the root logger.
logger = logging.getLogger("verl.hyocr")

TRAINER_MODE = "hyocr_sync"
GROUP_IMBALANCE = 1.1
"""Groups stay whole while the fullest rank gets at most this many times the tokens of a balance without groups."""
SKIPPED = f"{drop_policy.PREFIX}/skipped_update"


class _NothingToTrain(Exception):
    """Leaves upstream's step after its sampling phase."""


class ScoreWatch:
    """Watches how many samples have no score, and how often the judge is the cause.

    Attributes:
        stop_reason: why the run should end; empty while it may go on.

    Args:
        reward_path: file of the reward function.
        drop_guard: limit for dropped samples; the judge's is read from its own variables when its first record comes.
    """

    def __init__(self, reward_path: str | None, drop_guard: DropGuard):
        self.stop_reason = ""
        self._reward_path = reward_path
        self._drop_guard = drop_guard
        self._judge: ModuleType | None = None
        self._judge_guard: Any = None
        self._judge_is_missing = False

    def update(self, step: DropPlan) -> dict[str, float]:
        """Take in a step; returns the judge's metrics, empty when no judge was asked."""
        reasons = [self._drop_guard.update(step)]
        metrics: dict[str, float] = {}
        if step.analyses and self._find_judge_metrics():
            metrics = self._judge.summarise(step.analyses)
            reasons.append(self._judge_guard.update(step.analyses))
        self.stop_reason = ""
        self.add_reasons(reasons)
        return metrics

    def add_reasons(self, reasons: list[str | None]) -> None:
        """Further reasons to end the run; empty ones are none."""
        self.stop_reason = " Also: ".join(reason for reason in (self.stop_reason, *reasons) if reason)

    def _find_judge_metrics(self) -> bool:
        if self._judge is None and not self._judge_is_missing:
            try:
                self._judge = load_judge_metrics(self._reward_path)
            except ModuleNotFoundError as error:
                self._judge_is_missing = True
                logger.warning("no hyocr/judge metrics: %s. Put the kit's folder on PYTHONPATH.", error)
                return False
            self._judge_guard = self._judge.JudgeFailureGuard.from_env()
        return self._judge is not None


@register_trainer(TRAINER_MODE)
class HyocrTrainerSync(SafeTrainerSync):
    """Upstream's synchronous trainer on a replay buffer that drops samples without a score."""

    board: RolloutBoard | None = None

    def __init__(self, config: DictConfig):
        # Upstream compares the mode with "sync" in many places; this is that mode.
        with open_dict(config):
            config.trainer.v1.trainer_mode = "sync"
        self.watch = ScoreWatch(config.reward.custom_reward_function.path, DropGuard.from_env())
        self.health = HealthWatch.from_env()
        self.board = RolloutBoard.from_env()
        super().__init__(config)
        if not isinstance(self.replay_buffer, HyocrReplayBuffer):
            raise TypeError(
                f"trainer.v1.trainer_mode={TRAINER_MODE} needs trainer.v1.sampler.custom_sampler.path="
                f"pkg://verl_hyocr.sampler and .name=HyocrReplayBuffer (or a subclass), not {type(self.replay_buffer)}"
            )

    def _build_replay_buffer(self):
        # Upstream withholds these from custom samplers.
        metric = self._resolve_filter_groups_metric()
        refill = bool(self.config.trainer.v1.sampler.get("sync_refill_failed_groups", False))
        train_batch_size = self.config.data.train_batch_size
        features = {
            "filter_groups_metric": metric,
            "sync_refill_failed_groups": refill,
            "train_batch_size": train_batch_size,
            "gen_batch_size": 1
            if metric is not None or refill
            else (self.config.data.get("gen_batch_size", None) or train_batch_size),
            "max_inflight_gen_batches": 1
            if metric is None
            else self.config.algorithm.filter_groups.get("max_inflight_gen_batches", 1),
        }
        with open_dict(self.config):
            for name, value in features.items():
                OmegaConf.update(self.config, f"trainer.v1.sampler.sampler_kwargs.{name}", value, force_add=True)
        return super()._build_replay_buffer()

    def fit(self, *args, **kwargs):
        try:
            return super().fit(*args, **kwargs)
        finally:
            if self.board is not None:
                self.board.close()

    # ------------------------------------------------------------------------------------------------- one step

    def on_step_begin(self):
        self.replay_buffer.clear_dropped()
        if self.watch.stop_reason:
            self._shutdown_dump_executor()
            raise TrainingStopped(f"training stopped after step {self.global_steps - 1}: {self.watch.stop_reason}")
        pixels.clear_before(self.global_steps)
        super().on_step_begin()

    def on_sample_end(self):
        super().on_sample_end()
        if self.replay_buffer.left_nothing:
            raise _NothingToTrain

    def _step_once(self, metrics: dict, timing_raw: dict, sample_batch_size: int) -> KVBatchMeta:
        try:
            batch = super()._step_once(metrics, timing_raw, sample_batch_size)
        except _NothingToTrain:
            batch = self._dropped_batch()
            logger.warning(
                "step %d: no group kept two scored samples, the update is skipped (%s)",
                self.global_steps,
                self.replay_buffer.step_plan.describe(),
            )
        plan = self.replay_buffer.step_plan
        if plan.declares_valid:
            metrics[SKIPPED] = float(self.replay_buffer.left_nothing)
        metrics.update(self.watch.update(plan))
        if self.health.enabled:
            self._check_health(batch, metrics, timing_raw)
        if self.watch.stop_reason:
            logger.error("step %d is the last one: %s", self.global_steps, self.watch.stop_reason)
        if self.board is not None:
            with marked_timer("rl_logging_board", timing_raw):
                self.board.log_queue(self, batch)
        return batch

    def _check_health(self, batch: KVBatchMeta, metrics: dict, timing_raw: dict) -> None:
        real = [number for number, tag in enumerate(batch.tags) if not tag.get("is_padding", False)]
        if real:
            keys = [batch.keys[number] for number in real]
            fields = tq.kv_batch_get(
                keys=keys, partition_id=batch.partition_id, select_fields=["responses", "rm_scores"]
            )
            longest = self.config.data.max_response_length
            context = self.config.actor_rollout_ref.rollout.max_model_len or sys.maxsize
            limits = [min(longest, context - batch.tags[number]["prompt_len"]) for number in real]
            metrics.update(
                health.sample_metrics(
                    answers=[row.numpy() for row in fields["responses"].unbind()],
                    limits=limits,
                    groups=[drop_policy.split_key(key)[0] for key in keys],
                    scores=[float(row.sum()) for row in fields["rm_scores"].unbind()],
                    eos=self.tokenizer.eos_token_id,
                )
            )
            metrics.update(health.reward_metrics(self._rollout_timings(keys), timing_raw))
        metrics.update(self.health.update(metrics, padding=1.0 - len(real) / len(batch) if real else 0.0))
        for warning in self.health.warnings:
            logger.warning("step %d, %s", self.global_steps, warning)
        self.watch.add_reasons([self.health.stop_reason])

    def _rollout_timings(self, keys: list[str]) -> list[dict[str, float]]:
        """Seconds that the agent loops noted for these rows and for the dropped ones of the step."""
        keys = keys + [key for sample in self.replay_buffer.dropped for key in sample.keys]
        data = tq.kv_batch_get(keys=keys, partition_id=self.replay_buffer.partition_id, select_fields=["metrics"])
        return [getattr(value, "data", value) for value in data["metrics"]]

    def _dropped_batch(self) -> KVBatchMeta:
        """The rows of a step without training, for upstream to clear: it cannot clear an empty batch."""
        keys = [key for sample in self.replay_buffer.dropped for key in sample.keys]
        tags = [{"is_padding": True, "dropped": True} for _ in keys]
        return KVBatchMeta(partition_id=self.replay_buffer.partition_id, keys=keys, tags=tags)

    def on_step_end(self):
        if self.watch.stop_reason and not self._saves_this_step():
            self._save_checkpoint()
        super().on_step_end()

    def _save_checkpoint(self):
        if self.health.broken:
            logger.error(
                "step %d is not saved: %s", self.global_steps, self.health.stop_reason or "its weights compute NaN"
            )
            return
        super()._save_checkpoint()

    def _save_and_stop(self) -> Stopped:
        if self.health.broken:
            return Stopped(f"stopped on request; step {self._trained_step} is not saved: its weights compute NaN")
        return super()._save_and_stop()

    def _saves_this_step(self) -> bool:
        every = self.config.trainer.save_freq
        return every <= 0 or self.global_steps % every == 0 or self.global_steps >= self.total_training_steps

    def _balance_batch(self, batch: KVBatchMeta, metrics, **kwargs) -> KVBatchMeta:
        batch = super()._balance_batch(batch, metrics=metrics, **kwargs)
        ranks = max(self.actor_rollout_wg._dispatch_info["actor"]) + 1
        self._keep_groups_together(batch, ranks)
        is_padding = [tag.get("is_padding", False) for tag in batch.tags]
        rollouts = self.config.actor_rollout_ref.rollout.n
        mini_batches, rest = divmod(len(batch), self.config.actor_rollout_ref.actor.ppo_mini_batch_size * rollouts)
        if any(is_padding) and mini_batches > 1 and rest == 0:
            batch.reorder(drop_policy.spread_padding(is_padding, ranks, mini_batches))
        return batch

    @staticmethod
    def _keep_groups_together(batch: KVBatchMeta, ranks: int) -> None:
        """Order a balanced batch so that a prompt's samples meet on one rank, where they share its images (P1)."""
        if is_disabled("P1") or len(batch) % ranks:
            return
        lengths = [tag["seq_len"] for tag in batch.tags]
        shares = groups.spread_over_ranks(lengths, [key.split("_")[0] for key in batch.keys], ranks)
        size = len(batch) // ranks
        loads = [sum(lengths[index] for index in share) for share in shares]
        balanced = [sum(lengths[start : start + size]) for start in range(0, len(batch), size)]
        if max(loads) <= GROUP_IMBALANCE * max(balanced):
            batch.reorder([index for share in shares for index in share])

    # ---------------------------------------------------------------------------------------------- what is logged

    def _compute_metrics(self, batch: KVBatchMeta, metrics, timing_raw, global_steps, epoch):
        if metrics.get(SKIPPED):
            metrics.update({"training/global_step": global_steps, "training/epoch": epoch})
            metrics.update({f"timing_s/{name}": value for name, value in timing_raw.items()})
            return
        super()._compute_metrics(batch, metrics, timing_raw, global_steps=global_steps, epoch=epoch)

    def _val_metrics_update(
        self, data_sources, sample_uids, reward_extra_infos_dict, sample_turns, expected_acc_counts=None
    ):
        # Validation keeps its samples; those without a score are no -1 in its means, and no wrong answer.
        infos, invalid = drop_policy.hide_invalid(reward_extra_infos_dict)
        counts = dict(expected_acc_counts or {})
        for number in invalid:
            name = (str(data_sources[number]), str(sample_uids[number]))
            if name in counts:
                counts[name] -= 1
        return super()._val_metrics_update(
            data_sources, sample_uids, infos, sample_turns, expected_acc_counts=counts or None
        )


def load_judge_metrics(reward_path: str | None) -> ModuleType:
    """The kit's ``reward.utils.judge_metrics``, found like the reward function that wrote the records.

    Args:
        reward_path: file of the reward function; its folder is searched when ``reward`` is not on the path.

    Raises:
        ModuleNotFoundError: when the module is in neither place.
    """
    name = "reward.utils.judge_metrics"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        folder = os.path.dirname(os.path.abspath(reward_path or ""))
        if not os.path.isfile(os.path.join(folder, *name.split(".")) + ".py"):
            raise
    sys.path.insert(0, folder)
    return importlib.import_module(name)
