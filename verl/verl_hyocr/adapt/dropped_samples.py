"""D1: samples that the reward function could not score (``valid = 0``) take no part in training.

Symptom without it: a judge that is down for a minute, or a broken reference, is a reward of -1: worse than any wrong
answer, and a deviation that drowns the rest of the group.

* ``D1``: the trainer ``hyocr_sync`` exists; its replay buffer (:mod:`verl_hyocr.sampler`) leaves the samples out.
  Upstream: ``get_trainer_cls`` looks names up in a registry that only knows upstream's own trainers.
* ``D1.sequences``: upstream's ``seq-mean-*`` loss modes divide by the configured number of sequences, so every sample that
  is missing shrinks the step. They divide by the sequences that are there. Upstream: ``FSDPEngine.forward_backward_batch``.

Process: driver, trainer, FSDP workers. Goes when upstream's replay buffer can drop samples and counts what it trains on.
"""

from __future__ import annotations

import functools
import importlib
from types import ModuleType
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from verl_hyocr import drop_policy
from verl_hyocr.registry import Step, is_disabled, mark

TRAINERS = "verl.trainer.ppo.v1.trainer_base"
ENGINE = "verl.workers.engine.fsdp.transformer_impl"
SAMPLER = ("pkg://verl_hyocr.sampler", "HyocrReplayBuffer")
_INSTEAD = "HYOCR_DISABLE=D1 trains without dropping."


def _register_trainer(module: ModuleType) -> None:
    original = module.get_trainer_cls

    @functools.wraps(original)
    def get_trainer_cls(name):
        # Registers itself; not earlier, because it builds on the module that this step waits for.
        importlib.import_module("verl_hyocr.trainer")
        return original(name)

    module.get_trainer_cls = mark(get_trainer_cls, "D1")


def count_sequences(loss_mask: torch.Tensor) -> int:
    """Sequences with at least one token in the loss; ``loss_mask`` is (B, tokens), jagged or padded."""
    return sum(bool(row.any()) for row in loss_mask.unbind())


def _count_what_is_there(module: ModuleType) -> None:
    from verl.utils import tensordict_utils as tu

    original = module.FSDPEngine.forward_backward_batch

    @functools.wraps(original)
    def forward_backward_batch(self, data, loss_function, forward_only=False):
        if not forward_only and tu.get_non_tensor_data(data=data, key="global_batch_size", default=None) is not None:
            sequences = torch.tensor(count_sequences(data["loss_mask"]), device=module.get_device_id())
            torch.distributed.all_reduce(
                sequences, op=torch.distributed.ReduceOp.SUM, group=self.get_data_parallel_group()
            )
            if sequences > 0:
                tu.assign_non_tensor(data, global_batch_size=sequences.item())
        return original(self, data, loss_function, forward_only)

    module.FSDPEngine.forward_backward_batch = mark(forward_backward_batch, "D1.sequences")


def config_refusals(config: DictConfig) -> list[str]:
    """Settings with which samples without a score would be trained on, one line each, with the remedy."""
    if is_disabled("D1"):
        return []
    found = []

    def get(key: str) -> Any:
        return OmegaConf.select(config, key)

    if not get("trainer.use_v1"):
        found.append(
            "trainer.use_v1=False: the deprecated trainer takes every sample into the batch, so that one without a score "
            f"would be trained on as the worst answer (reward -1). Use trainer.use_v1=True. {_INSTEAD}"
        )
    mode = get("trainer.v1.trainer_mode")
    if mode not in ("sync", "hyocr_sync"):
        found.append(
            f"trainer.v1.trainer_mode={mode}: samples without a score are dropped by the synchronous trainer only. Use "
            f"sync. {_INSTEAD}"
        )
    path, name = get("trainer.v1.sampler.custom_sampler.path"), get("trainer.v1.sampler.custom_sampler.name")
    if path and name and (path, name) != SAMPLER and not _is_our_sampler(path, name):
        found.append(
            f"trainer.v1.sampler.custom_sampler={path}:{name} would train on samples without a score. Derive it from "
            f"verl_hyocr.sampler.HyocrReplayBuffer, or leave it out. {_INSTEAD}"
        )
    if get("reward.reward_model.enable") and not get("reward.reward_model.enable_resource_pool"):
        found.append(
            "reward.reward_model.enable=True without enable_resource_pool: rewards come after sampling, too late to drop "
            f"samples without a score. Set reward.reward_model.enable_resource_pool=True. {_INSTEAD}"
        )
    try:
        drop_policy.DropGuard.from_env()
    except ValueError as error:
        found.append(str(error))
    return found


def _is_our_sampler(path: str, name: str) -> bool:
    from verl.utils.import_utils import load_extern_object

    from verl_hyocr.sampler import HyocrReplayBuffer

    sampler = load_extern_object(path, name)
    return isinstance(sampler, type) and issubclass(sampler, HyocrReplayBuffer)


def config_defaults(config: DictConfig) -> dict[str, Any]:
    """What switches D1 on, where the user left upstream's default."""
    if is_disabled("D1"):
        return {}
    wanted = {"trainer.v1.trainer_mode": "hyocr_sync"} if config.trainer.v1.trainer_mode == "sync" else {}
    sampler = "trainer.v1.sampler.custom_sampler"
    if not (OmegaConf.select(config, f"{sampler}.path") and OmegaConf.select(config, f"{sampler}.name")):
        wanted |= {f"{sampler}.path": SAMPLER[0], f"{sampler}.name": SAMPLER[1]}
    return wanted


STEPS = [
    Step(
        "D1",
        TRAINERS,
        _register_trainer,
        ((TRAINERS, "get_trainer_cls"), ("verl.trainer.ppo.v1", "get_trainer_cls")),
        "samples without a score",
    ),
    Step(
        "D1.sequences",
        ENGINE,
        _count_what_is_there,
        ((ENGINE, "FSDPEngine.forward_backward_batch"),),
        "seq-mean losses count the sequences that are there",
    ),
]
