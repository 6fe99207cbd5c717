"""D1, in verl's replay buffer: samples that the reward function could not score leave the batch before anything is computed.

    trainer.v1.sampler.custom_sampler.path=pkg://verl_hyocr.sampler
    trainer.v1.sampler.custom_sampler.name=HyocrReplayBuffer

What is not in the batch is not in a group's mean and deviation, the loss, KL, entropy or token counts, and costs no
forward pass. Zeroing the masks instead would keep the rows in the advantage's group statistics and in upstream's
sequence counts. verl evens the batch out with padding rows afterwards, which carry no response token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from verl_hyocr import drop_policy, lost_workers, stop
from verl_hyocr.drop_policy import DropGuard, Dropped, DropPlan, TrainingStopped

FEATURES = (
    "filter_groups_metric",
    "sync_refill_failed_groups",
    "train_batch_size",
    "gen_batch_size",
    "max_inflight_gen_batches",
)
"""Arguments that upstream gives its own buffer only; :mod:`verl_hyocr.trainer` passes them in ``sampler_kwargs``."""


class HyocrReplayBuffer(ReplayBuffer):
    """Upstream's synchronous replay buffer without the samples whose reward says ``valid = 0`` ("train" only).

    Attributes:
        step_plan: what was left out of the latest training batch, groups included that upstream's filter evicted
            because too few of their samples were scored.
        dropped: the samples of the selected groups that were left out. Their rows stay readable in the "train"
            partition until :meth:`clear_dropped`, so that a log of the step can show them.
        left_nothing: whether the latest training batch came out empty.
    """

    partition_id = "train"

    def __init__(self, *, sampler_kwargs: Mapping[str, Any] | None = None, **kwargs: Any):
        features = {name: sampler_kwargs[name] for name in FEATURES if name in (sampler_kwargs or {})}
        super().__init__(sampler_kwargs=sampler_kwargs, **features, **kwargs)
        self.step_plan = DropPlan()
        self.dropped: tuple[Dropped, ...] = ()
        self.left_nothing = False
        self._evicted = DropPlan()
        self._guard = DropGuard.from_env()

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict]:
        """As upstream. The batch may be empty: then no group kept two scored samples."""
        if partition_id != self.partition_id:
            return super().sample(global_steps, partition_id, batch_size)
        self.clear_dropped()
        self._evicted = DropPlan()
        batch, metrics = super().sample(global_steps, partition_id, batch_size)
        # Answers arrive in any order; mini-batches must be those of an uninterrupted run (E2).
        batch.reorder(sorted(range(len(batch)), key=lambda row: _row_order(batch.keys[row])))
        selected = drop_policy.plan(self._reward_infos(batch.keys))
        self.dropped = selected.dropped
        self.step_plan = selected + self._evicted
        metrics.update(self.step_plan.metrics())
        gone = selected.dropped_keys
        if gone:
            batch = batch.select_keys([key for key in batch.keys if key not in gone])
        self.left_nothing = len(batch) == 0
        return batch, metrics

    def _select_prompt_uids(self, partition_id: str, sampleable_keys: set[str], batch_size: int):
        failed = self.failure_keys[partition_id] & set(sampleable_keys)
        if failed:
            # Upstream trains on what is left of such groups, which is right for a bad sample and wrong for a dead worker.
            lost_workers.raise_if_any(f"{len(failed)} of {batch_size} prompts got no answer or no score")
        # Upstream sorts by step alone, and a set has another order in every process.
        return super()._select_prompt_uids(partition_id, dict.fromkeys(sorted(sampleable_keys)), batch_size)

    def _wait_for_next_poll(self, partition_id: str, last_debug_time: float) -> float:
        stop.check()
        return super()._wait_for_next_poll(partition_id, last_debug_time)

    def clear_dropped(self) -> None:
        """Remove the rows that were left out of the latest batch from the transfer queue."""
        keys = [key for sample in self.dropped for key in sample.keys]
        self.dropped = ()
        if keys:
            tq.kv_clear(keys=keys, partition_id=self.partition_id)

    def _reward_infos(self, keys: list[str]) -> dict[str, Mapping[str, Any]]:
        if not keys:
            return {}
        data = tq.kv_batch_get(keys=keys, partition_id=self.partition_id, select_fields=["extra_fields"])
        infos = {}
        for key, value in zip(keys, data["extra_fields"], strict=True):
            fields = getattr(value, "data", value)
            infos[key] = (fields.get("reward_extra_info") if isinstance(fields, dict) else None) or {}
        return infos

    def _dapo_filtered_keys(self, partition_id: str) -> tuple[set[str], Counter]:
        """Upstream's filter of groups without signal, over scored samples alone.

        -1 next to ones is no spread of rewards. A group that keeps fewer than two scored samples has no signal either:
        it is filtered, and so replaced, like the others.
        """
        finished, snapshot = self.finished_keys[partition_id], self.partitions[partition_id]
        fresh = finished - self._dapo_classification_cache[partition_id].keys()
        if partition_id != self.partition_id or self.filter_groups_metric is None or not fresh:
            return super()._dapo_filtered_keys(partition_id)
        infos = self._reward_infos([key for key in snapshot if drop_policy.split_key(key)[0] in fresh])
        plan = drop_policy.plan(infos)
        gone = plan.dropped_keys
        self.partitions[partition_id] = {key: tag for key, tag in snapshot.items() if key not in gone}
        self.finished_keys[partition_id] = finished - plan.lost_groups
        try:
            filtered, counts = super()._dapo_filtered_keys(partition_id)
        finally:
            self.partitions[partition_id], self.finished_keys[partition_id] = snapshot, finished
        lost = {key: info for key, info in infos.items() if drop_policy.split_key(key)[0] in plan.lost_groups}
        self._evicted += drop_policy.plan(lost)
        self._stop_endless_refill()
        return filtered | plan.lost_groups, counts + Counter({-1.0: len(plan.lost_groups)})

    def _stop_endless_refill(self) -> None:
        """With a judge that is down every replacement is lost too, and the step would never end."""
        lost, limit = len(self._evicted.lost_groups), self._guard.window * self.train_batch_size
        if lost > limit and self._guard.max_rate < 1.0:
            raise TrainingStopped(
                f"training stopped: {lost} prompts of one step were replaced because fewer than two of their samples had a "
                f"score (most frequent: {self._evicted.describe()}). Repair the data or the judge that these reasons name, "
                "then start the same command again: it resumes from the last checkpoint. The limit is "
                f"{drop_policy.WINDOW_ENV} times the batch size ({limit}); {drop_policy.MAX_RATE_ENV}=1 lifts it."
            )


def _row_order(key: str) -> tuple[str, int, int]:
    uid, session, index = drop_policy.split_key(key)
    return uid, int(session), index
