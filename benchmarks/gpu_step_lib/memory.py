"""Peak GPU memory by formula, to choose token budgets for a card without having it.

Packed samples, fp32 master weights and AdamW sharded over the GPUs (FSDP2), bf16 computation. Counted: weights, gradients,
optimizer state, gathered bf16 weights, activations, logits. Not counted: CUDA context, NCCL, attention masks.
The bytes per logit are fitted to one measured run, everything else follows from the dimensions.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import SimpleNamespace

from verl_hyocr.adapt import flops

from gpu_step_lib.floor import CARDS, kv_bytes_per_token, model_shape
from gpu_step_lib.plan import Plan
from gpu_step_lib.table import layout, number

GB = 1e9
UPDATE_BYTES_PER_LOGIT = 6
INFER_BYTES_PER_LOGIT = 4
"""Fitted to the packed run of docs/performance.md: an upper bound in the log-prob passes."""
RESERVED = 1.35
"""What the allocator reserved over what was allocated, in the same run."""
CHUNK = 2048
"""Positions whose logits exist at a time with a chunked head."""


def parameters(config: SimpleNamespace) -> int:
    """Weights of the model, the tied LM head once; biases and norms of the vision tower are left out (under 0.1 %)."""
    text, vision = config.text_config, config.vision_config
    width = vision.hidden_size
    cell = vision.spatial_merge_size**2
    merger = cell * width * 2 * width + 2 * width * 4 * width + 4 * width * vision.text_hidden_size
    positions = ((vision.max_image_size // vision.patch_size) ** 2 + 1) * width
    towers = flops.vision_weights(vision) - merger / cell + merger + positions
    return round(flops.text_weights(text) + towers)


def text_layer_bytes(text: SimpleNamespace) -> int:
    """Bytes per token that one decoder layer keeps for its backward pass."""
    heads = text.num_attention_heads * text.head_dim
    kv_heads = text.num_key_value_heads * text.head_dim
    half = 4 * text.hidden_size + 3 * heads + 3 * kv_heads + 4 * text.intermediate_size
    norms = 2 * text.hidden_size + heads + kv_heads
    return 2 * half + 4 * norms


def vision_layer_bytes(vision: SimpleNamespace) -> int:
    """Bytes per patch that one vision block keeps for its backward pass."""
    return 2 * (8 * vision.hidden_size + 2 * vision.intermediate_size)


def activation_bytes(
    config: SimpleNamespace, tokens: float, patches: float, checkpointing: bool
) -> tuple[float, float]:
    """``(kept, working)`` of a micro-batch: what the forward pass leaves for the backward pass, and the larger tower's layer
    that is recomputed at a time. With checkpointing each layer keeps its input only; without, nothing is recomputed."""
    towers = (
        (config.text_config, tokens, text_layer_bytes(config.text_config)),
        (config.vision_config, patches, vision_layer_bytes(config.vision_config)),
    )
    kept = sum(
        count * part.num_hidden_layers * (2 * part.hidden_size if checkpointing else layer)
        for part, count, layer in towers
    )
    return kept, max(count * layer for _, count, layer in towers) if checkpointing else 0.0


def actor_bytes(
    config: SimpleNamespace, budget: int, plan: Plan, checkpointing: bool, chunked: bool, infer: bool = False
) -> dict[str, float]:
    """Parts of the peak of one GPU in the update, or in a log-prob pass with ``infer``.

    The micro-batch holds as many of the plan's samples as the budget allows, at least one.
    """
    text = config.text_config
    work = plan.work(plan.prompt_length, plan.response_tokens)
    length = work.prompt_tokens + work.response_tokens
    samples = max(1, int(budget // length))
    tokens, patches = samples * length, samples * work.patches
    count = parameters(config)
    layer = flops.text_weights(text) - text.vocab_size * text.hidden_size
    gathered = 2 * (text.vocab_size * text.hidden_size + 2 * layer / text.num_hidden_layers)
    per_logit = INFER_BYTES_PER_LOGIT if infer else UPDATE_BYTES_PER_LOGIT
    logits = per_logit * text.vocab_size * (min(CHUNK, tokens) if chunked else tokens)
    kept, working = activation_bytes(config, tokens, patches, checkpointing)
    shard = count / plan.gpus
    if infer:
        _, working = activation_bytes(config, tokens, patches, True)
        # A layer's working memory is gone when the logits come.
        return {"weights": 4 * shard, "gathered": gathered, "logits or layer": max(logits, working)}
    return {
        "weights": 4 * shard,
        "gradients": 4 * shard,
        "optimizer": 8 * shard,
        "gathered": gathered,
        "kept": kept,
        "logits or layer": max(logits, working),
    }


def cache_tokens(config: SimpleNamespace, gigabytes: float, utilization: float, tp: int) -> int:
    """Tokens that fit into the KV cache of one replica; CUDA graphs and activations of the engine are not subtracted."""
    free = gigabytes * GB * utilization - 2 * parameters(config) / tp
    return max(0, int(free * tp // kv_bytes_per_token(config.text_config)))


def render(plan: Plan, budgets: Sequence[int]) -> str:
    """The estimate as text: the actor for each budget, and the rollout's cache on each card."""
    config = model_shape(plan.size)
    longest = plan.prompt_length + plan.response_tokens
    width, height = plan.page
    rows = []
    for budget, checkpointing, chunked in itertools.product(budgets, (True, False), (False, True)):
        update = actor_bytes(config, budget, plan, checkpointing, chunked)
        infer = actor_bytes(config, budget, plan, checkpointing, chunked, infer=True)
        totals = [sum(update.values()), RESERVED * sum(update.values()), sum(infer.values())]
        rows.append(
            [
                f"{budget:,}",
                "on" if checkpointing else "off",
                f"{CHUNK:,} at a time" if chunked else "all at once",
                *(number(value / GB, 1) for value in (*update.values(), *totals)),
            ]
        )
    parts = ["weights", "grads", "Adam", "gathered", "kept", "logits or layer"]
    head = ["token budget", "checkpointing", "logits", *parts, "update", "reserved", "log-prob"]
    caches = []
    for (name, card), utilization in itertools.product(CARDS.items(), (0.5, 0.6, 0.8)):
        tokens = cache_tokens(config, card.gigabytes, utilization, plan.rollout_tp)
        caches.append([name, f"{utilization:.1f}", f"{tokens:,}", f"{tokens // longest:,}"])
    paragraphs = [
        f"{plan.size} dimensions, {parameters(config) / 1e6:,.0f} M weights, {plan.gpus} GPU(s), "
        f"samples of up to {longest:,} tokens with one page of {width}x{height} pixels",
        "Actor, GB per GPU (the launcher needs a budget of at least the longest sample):",
        layout(head, rows),
        "KV cache of one replica, while the actor is offloaded:",
        layout(["card", "GPU_MEMORY_UTILIZATION", "tokens", f"sequences of {longest:,}"], caches),
        "By formula. CUDA itself takes 1-2 GB more on each card.",
    ]
    return "\n\n".join(paragraphs) + "\n"
