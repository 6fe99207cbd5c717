"""B2, the trainer's side: takes the samples of a step out of verl's transfer queue (v1) or batch (v0) and has them written.

Process: the trainer. In v1 everything a row needs is in the transfer queue from the advantages on until the step's rows are
cleared; only the rows that will be shown are fetched, without images and position ids.
"""

from __future__ import annotations

import copy
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transfer_queue as tq
from transfer_queue import KVBatchMeta

from verl_hyocr import drop_policy
from verl_hyocr.board import BoardSettings, Sample, choose_groups, encode, ui_rows
from verl_hyocr.board_writer import StepWriter
from verl_hyocr.drop_policy import Dropped
from verl_hyocr.registry import is_disabled

logger = logging.getLogger("verl.hyocr")

RUN_DIR_ENV = "HYOCR_RUN_DIR"
FOLDER = "rl_logging_board"
ROLLOUT_FIELDS = {"rollout_log_probs": "rollout_logprobs", "rm_scores": "reward_tokens"}
"""Field of verl -> field of the UI, for what every answer has, dropped ones included."""
TRAINING_FIELDS = {
    "old_log_probs": "logprobs",
    "ref_log_prob": "ref_logprobs",
    "values": "values",
    "advantages": "advantages",
    "token_level_rewards": "token_rewards",
}
_ABOUT = ["prompts", "responses", "extra_fields", "extra_info", "data_source", "reward_model"]


class RolloutBoard:
    """Logs steps for RLLoggingBoard. No method raises; what goes wrong is said once."""

    def __init__(self, settings: BoardSettings, folder: Path):
        self.settings = settings
        self.writer = StepWriter(folder)
        self._tokenizer: Any = None

    @classmethod
    def from_env(cls) -> RolloutBoard | None:
        """A board for ``HYOCR_RUN_DIR/rl_logging_board``, or None when it is switched off or there is no run folder.

        Raises:
            ValueError: for a wrong ``RLB_`` variable.
        """
        settings = BoardSettings.from_env()
        run_dir = os.environ.get(RUN_DIR_ENV, "")
        if not settings.enabled or is_disabled("B2"):
            return None
        if not run_dir:
            logger.warning("RLLoggingBoard: nothing is written, because %s is not set", RUN_DIR_ENV)
            return None
        return cls(settings, Path(run_dir) / FOLDER)

    def log_queue(self, trainer: Any, batch: KVBatchMeta) -> None:
        """Log a step of the v1 trainer, before its rows are cleared from the transfer queue.

        Args:
            batch: rows of the step, padding included.
        """
        step = trainer.global_steps
        if not self.settings.wants(step):
            return
        try:
            samples = read_queue(
                batch,
                getattr(trainer.replay_buffer, "dropped", ()),
                self.settings,
                *answer_limits(trainer.config),
            )
            self._write(step, samples, trainer.tokenizer, bool(trainer.use_reference_policy))
        except Exception as error:
            self.writer.failed(step, error)

    def log_batch(self, trainer: Any, batch: Any, reward_extra_infos: Mapping[str, Sequence[Any]]) -> None:
        """Log a step of the v0 trainer.

        Args:
            batch: ``DataProto`` after the update.
            reward_extra_infos: what the reward function returned, name -> one value per sample.
        """
        step = trainer.global_steps
        if not self.settings.wants(step):
            return
        try:
            samples = read_batch(batch, reward_extra_infos, self.settings, *answer_limits(trainer.config))
            self._write(step, samples, trainer.tokenizer, bool(trainer.use_reference_policy))
        except Exception as error:
            self.writer.failed(step, error)

    def close(self) -> None:
        """Finish writing."""
        self.writer.close()

    def _write(self, step: int, samples: list[Sample], tokenizer: Any, reference: bool) -> None:
        if self._tokenizer is None:
            # A fast tokenizer must not be used by two threads at a time.
            self._tokenizer = copy.deepcopy(tokenizer)
        settings, own = self.settings, self._tokenizer
        self.writer.submit(
            step,
            settings.file_name(step),
            lambda: encode(ui_rows(step, samples, own, settings, reference)),
        )


def answer_limits(config: Any) -> tuple[int, int]:
    """The longest answer, and the longest prompt and answer together, in tokens."""
    context = config.actor_rollout_ref.rollout.max_model_len
    return config.data.max_response_length, context or sys.maxsize


# ------------------------------------------------------------------------------------------------------------ trainer v1


def read_queue(
    batch: KVBatchMeta,
    dropped: Sequence[Dropped],
    settings: BoardSettings,
    longest: int,
    context: int,
) -> list[Sample]:
    """Samples of the groups to show, dropped ones included, padding left out."""
    reasons = {key: sample.reason for sample in dropped for key in sample.keys}
    trained = [
        key
        for key, tag in zip(batch.keys, batch.tags, strict=True)
        if not tag.get("is_padding", False) and key not in reasons
    ]
    keys_of: dict[str, list[str]] = {}
    for key in (*trained, *reasons):
        keys_of.setdefault(drop_policy.split_key(key)[0], []).append(key)
    if not keys_of:
        return []
    first = [keys[0] for keys in keys_of.values()]
    sources = _fetch(first, batch.partition_id, ["data_source"]).get("data_source", [""] * len(first))
    tasks = {uid: str(source) for uid, source in zip(keys_of, sources, strict=True)}
    chosen = choose_groups({uid: len(keys) for uid, keys in keys_of.items()}, tasks, settings.max_samples)
    prompts = _fetch([keys_of[uid][0] for uid in chosen], batch.partition_id, ["raw_prompt"]).get("raw_prompt")
    messages = dict(zip(chosen, prompts or [None] * len(chosen), strict=True))

    samples = []
    for fields, wanted in (
        ({**ROLLOUT_FIELDS, **TRAINING_FIELDS}, [key for uid in chosen for key in keys_of[uid] if key not in reasons]),
        (ROLLOUT_FIELDS, [key for uid in chosen for key in keys_of[uid] if key in reasons]),
    ):
        columns = _fetch(wanted, batch.partition_id, [*_ABOUT, *fields]) if wanted else {}
        for number, key in enumerate(wanted):
            row = {name: values[number] for name, values in columns.items()}
            uid, session, index = drop_policy.split_key(key)
            extra = row.get("extra_fields") or {}
            samples.append(
                _sample(
                    row,
                    fields,
                    settings,
                    min(longest, context - len(row["prompts"])),
                    uid=uid,
                    session=int(session),
                    index=index,
                    messages=messages[uid],
                    scores=extra.get("reward_extra_info") or {},
                    drop_reason=reasons.get(key, ""),
                )
            )
    place = {uid: number for number, uid in enumerate(chosen)}
    return sorted(samples, key=lambda sample: place[sample.uid])


def _fetch(keys: list[str], partition_id: str, fields: list[str]) -> dict[str, list[Any]]:
    """Columns of rows; fields that the rows do not have are left out."""
    data = tq.kv_batch_get(keys=keys, partition_id=partition_id, select_fields=fields)
    return {name: _values(data[name]) for name in data.keys()}  # noqa: SIM118 - iterating a TensorDict gives its rows


def _values(column: Any) -> list[Any]:
    if isinstance(column, torch.Tensor):
        return list(column.unbind())
    return [getattr(value, "data", value) for value in column]


# ------------------------------------------------------------------------------------------------------------ trainer v0


def read_batch(
    batch: Any,
    reward_extra_infos: Mapping[str, Sequence[Any]],
    settings: BoardSettings,
    longest: int,
    context: int,
) -> list[Sample]:
    """Samples of the groups to show of a padded ``DataProto``."""
    others, tensors = batch.non_tensor_batch, batch.batch
    count, width = tensors["responses"].shape
    uids = [str(uid) for uid in others["uid"]] if "uid" in others else [str(number) for number in range(count)]
    sources = [str(source) for source in others.get("data_source", [""] * count)]
    rows_of: dict[str, list[int]] = {}
    for number, uid in enumerate(uids):
        rows_of.setdefault(uid, []).append(number)
    tasks = {uid: sources[numbers[0]] for uid, numbers in rows_of.items()}
    fields = {**ROLLOUT_FIELDS, **TRAINING_FIELDS, "token_level_scores": "reward_tokens"}
    mask = tensors["attention_mask"].bool()
    samples = []
    for uid in choose_groups({uid: len(numbers) for uid, numbers in rows_of.items()}, tasks, settings.max_samples):
        for session, number in enumerate(rows_of[uid]):
            length = int(mask[number, -width:].sum())
            row = {name: tensors[name][number][:length] for name in fields if name in tensors}
            row |= {name: others[name][number] for name in ("extra_info", "reward_model") if name in others}
            row["responses"] = tensors["responses"][number][:length]
            row["prompts"] = tensors["prompts"][number][mask[number, :-width]]
            row["data_source"] = sources[number]
            samples.append(
                _sample(
                    row,
                    fields,
                    settings,
                    min(longest, context - len(row["prompts"])),
                    uid=uid,
                    session=session,
                    messages=others["raw_prompt"][number] if "raw_prompt" in others else None,
                    scores={name: values[number] for name, values in reward_extra_infos.items()},
                )
            )
    return samples


def _sample(
    row: Mapping[str, Any], fields: Mapping[str, str], settings: BoardSettings, limit: int, **more: Any
) -> Sample:
    # Only what is shown is kept, in memory of its own: a view would hold the whole batch until it is written.
    cut = settings.max_response_tokens or sys.maxsize
    response, reference = row["responses"], row.get("reward_model") or {}
    scores = row.get("token_level_scores", row.get("rm_scores"))
    return Sample(
        response=np.array(response[:cut]),
        response_length=len(response),
        last_token=int(response[-1]) if len(response) else -1,
        limit=limit,
        reward=float(scores.sum()) if scores is not None else 0.0,
        token_values={name: np.array(row[field].float()[:cut]) for field, name in fields.items() if field in row},
        prompt=row["prompts"].tolist() if more.get("messages") is None else (),
        data_source=str(row.get("data_source") or ""),
        extra_info=row.get("extra_info") or {},
        ground_truth=reference.get("ground_truth") if isinstance(reference, Mapping) else reference,
        **more,
    )
