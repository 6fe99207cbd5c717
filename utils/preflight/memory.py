"""Will it fit? Estimates from the model's sizes; docs/preflight.md says where the constants come from."""

from __future__ import annotations

from utils.preflight.context import Context, readable
from utils.preflight.host import label
from utils.preflight.results import NotChecked, Result, failed, gib, passed, warned

STATE_BYTES = 16
"""fp32 weight, gradient and two Adam moments of one parameter, sharded over all GPUs."""
LOGIT_BYTES = 6.5
"""Bytes per token of a micro-batch and vocabulary entry in the update, measured: 41.4 GB at 32,768 packed tokens."""
ENGINE_BYTES = 2 * 2**30
"""CUDA graphs, workspaces and the activations of vLLM's profile run."""
OFFLOADED_WEIGHT_BYTES = 8
"""fp32 weights of actor and reference."""
OFFLOADED_OPTIMIZER_BYTES = 8
CPU_RUN_BYTES = 9 * 10**9
"""A run of the demo on the CPU platform takes 9 to 15 GB."""


def _only_valid_share(context: Context) -> None:
    if not 0 < context.settings.gpu_memory_utilization < 1:
        raise NotChecked("GPU_MEMORY_UTILIZATION is no share")


def check_kv_cache(context: Context) -> list[Result]:
    """At least one sample of full length must fit, else vLLM does not start."""
    check, settings = "memory.kv_cache", context.settings
    text = readable(lambda: context.model.text)
    if settings.on_cpu:
        space = float(context.environ.get("VLLM_CPU_KVCACHE_SPACE") or 1) * 2**30
        sample = settings.max_model_len * text.kv_bytes_per_token(4)
        if sample > space:
            needed = -(-sample // 2**30)
            found = (
                f"one sample of {settings.max_model_len} tokens takes {gib(sample)} of KV cache, there is {gib(space)}"
            )
            return [failed(check, found, f"set VLLM_CPU_KVCACHE_SPACE={needed} (GiB)")]
        return [passed(check, f"{gib(space)} hold {int(space // sample)} samples of {settings.max_model_len} tokens")]
    _only_valid_share(context)
    memory, tp = context.gpu_bytes, settings.rollout_tp
    weights = readable(lambda: context.model.parameters) * 2 / tp
    # A key-value head is never split: with more GPUs than heads it is repeated.
    sample = settings.max_model_len * text.kv_bytes_per_token(2) / min(tp, text.kv_heads)
    fixed = weights + ENGINE_BYTES
    space = memory * settings.gpu_memory_utilization - fixed
    share = f"GPU_MEMORY_UTILIZATION={settings.gpu_memory_utilization:g} of {gib(memory)}"
    one = f"a sample of {settings.max_model_len} tokens takes {gib(sample)}"
    if space < sample:
        least = int((fixed + sample) / memory * 100 + 1) / 100
        found = f"{share} leaves {gib(max(0, space))} for the KV cache, {one}"
        if least < 0.95:
            return [failed(check, found, f"set GPU_MEMORY_UTILIZATION={least:g}")]
        return [failed(check, found, f"set ROLLOUT_TP={2 * tp}, or lower MAX_MODEL_LEN and the lengths")]
    at_once = int(space // sample)
    return [
        passed(
            check, f"{share}: {gib(space)} of KV cache, {at_once} samples of {settings.max_model_len} tokens at once"
        )
    ]


def check_training(context: Context) -> list[Result]:
    """An estimate: sharded state and the logits of one micro-batch, beside what the rollout engine keeps."""
    check, settings = "memory.training", context.settings
    if settings.on_cpu:
        raise NotChecked("the CPU platform has no GPU memory")
    _only_valid_share(context)
    memory, text = context.gpu_bytes, readable(lambda: context.model.text)
    kept = 0.05 if settings.free_cache_engine else settings.gpu_memory_utilization
    state = readable(lambda: context.model.parameters) * STATE_BYTES / settings.world
    per_token = LOGIT_BYTES * text.vocab
    room = memory * (1 - kept) - state
    needed = 0 if settings.use_fused_kernels else settings.max_tokens_per_gpu * per_token
    logits = "no logits" if settings.use_fused_kernels else f"{gib(needed)} for {settings.max_tokens_per_gpu} tokens"
    found = (
        f"about {gib(state)} of weights and optimizer and {logits}; "
        f"{gib(memory)} a GPU, {kept:.0%} of it kept by the rollout engine"
    )
    if needed <= room:
        return [passed(check, found)]
    fitting = int(max(0, room) / per_token) // 1024 * 1024
    if not settings.free_cache_engine:
        remedy = "set FREE_CACHE_ENGINE=True"
    elif room < 0:
        remedy = "use more GPUs: weights and optimizer alone do not fit"
    elif fitting >= settings.longest:
        remedy = f"set MAX_TOKENS_PER_GPU={fitting}"
    else:
        remedy = f"shorten the lengths: {max(0, fitting)} tokens fit, the longest sample has {settings.longest}"
    return [warned(check, found, remedy)]


def check_host(context: Context) -> list[Result]:
    """Host memory of each node for what is offloaded, or for a run on the CPU platform."""
    check, settings = "memory.host", context.settings
    parameters = readable(lambda: context.model.parameters)
    if settings.on_cpu:
        needed = CPU_RUN_BYTES + parameters * (STATE_BYTES + 12) * settings.gpus_per_node
        what = "a run on the CPU platform"
        remedy = "free memory, or expect the run to be killed for lack of it"
    else:
        weights, optimizer = (
            OFFLOADED_WEIGHT_BYTES * settings.param_offload,
            OFFLOADED_OPTIMIZER_BYTES * settings.optimizer_offload,
        )
        needed = parameters * (weights + optimizer) / settings.nnodes
        what = "what is offloaded"
        remedy = "set OPTIMIZER_OFFLOAD=False and PARAM_OFFLOAD=False if GPU memory allows, or add nodes"
    results = []
    for node in context.nodes:
        if "memory" not in node:
            continue
        total, available = node["memory"]
        if needed > available:
            found = f"{label(node)}: {what} takes about {gib(needed)}, {gib(available)} of {gib(total)} are free"
            results.append((failed if needed > total else warned)(check, found, remedy))
    return results or [passed(check, f"{what} takes about {gib(needed)} a node")]
