"""B5: the first weight sync, and any other on demand, is checked from the actor's tensors to the engine's weights.

Symptom without it: vLLM names unknown weights but not missing ones, and nothing compares values: a rollout engine that
does not hold the actor's weights shows up as a log-prob gap at best.
Upstream seam: ``ServerAdapter.update_weights``, the sender, in FSDP workers; ``vLLMHttpServer.collective_rpc``, which drops
what the workers answer, in the vLLM server actor. What runs in the vLLM worker is in ``vllm_ext.py``. Goes when upstream
checks its weight sync.
"""

from __future__ import annotations

import functools
from types import ModuleType

from verl_hyocr import weight_check
from verl_hyocr.registry import Step, mark

ADAPTER_MODULE = "verl.workers.rollout.vllm_rollout.vllm_rollout"
SERVER_MODULE = "verl.workers.rollout.vllm_rollout.vllm_async_server"
REPORT = "weight_sync_report"


def _gather(reports: list[dict] | None) -> tuple[list[dict], bool]:
    """Reports of all replicas (every training rank takes part), and whether this is rank 0."""
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return list(reports or []), True
    gathered: list = [None] * distributed.get_world_size()
    distributed.all_gather_object(gathered, reports)
    return [report for part in gathered for report in part or []], distributed.get_rank() == 0


def has_extension(rollout_config) -> bool:
    """Whether the rollout's vLLM workers have an extension of the fork's: other models keep verl's, which cannot inspect."""
    from verl_hyocr.launch_config import is_our_extension

    name = ((rollout_config.engine_kwargs or {}).get("vllm") or {}).get("worker_extension_cls")
    return bool(name) and is_our_extension(name)


def _apply(module: ModuleType) -> None:
    original = module.ServerAdapter.update_weights

    @functools.wraps(original)
    async def update_weights(self, weights, global_steps=None, wire_format="named_tensors", **kwargs):
        send = functools.partial(original, self, global_steps=global_steps, wire_format=wire_format)
        if wire_format != "named_tensors" or kwargs.get("peft_config") is not None or not has_extension(self.config):
            return await send(weights, **kwargs)
        every, strict, _ = weight_check.check_settings()
        index = getattr(self, "_hyocr_syncs", 0)
        self._hyocr_syncs = index + 1
        if not weight_check.is_due(index, every):
            return await send(weights, **kwargs)
        await send(weight_check.with_manifest(weights), **kwargs, hyocr_check=index)
        reports, first = _gather(await self._execute_method(REPORT))
        weight_check.conclude(reports, strict=strict, speak=first)

    module.ServerAdapter.update_weights = mark(update_weights, "B5")


def _apply_to_server(module: ModuleType) -> None:
    original = module.vLLMHttpServer.collective_rpc

    @functools.wraps(original)
    async def collective_rpc(self, method, timeout=None, args=(), kwargs=None):
        if method != REPORT:
            return await original(self, method, timeout=timeout, args=args, kwargs=kwargs)
        return [report for report in await self.engine.collective_rpc(method=REPORT, timeout=timeout) if report]

    module.vLLMHttpServer.collective_rpc = mark(collective_rpc, "B5.report")


STEPS = [
    Step(
        "B5", ADAPTER_MODULE, _apply, ((ADAPTER_MODULE, "ServerAdapter.update_weights"),), "the weight sync is checked"
    ),
    Step(
        "B5.report",
        SERVER_MODULE,
        _apply_to_server,
        ((SERVER_MODULE, "vLLMHttpServer.collective_rpc"),),
        "reports of the weight sync reach the trainer",
    ),
]
