"""Numbers that must fit each other. Every remedy names the value that fits."""

from __future__ import annotations

import math
import re

from utils.preflight.context import Context, readable
from utils.preflight.results import NotChecked, Result, failed, passed
from utils.preflight.settings import Settings


def check_model_length(context: Context) -> list[Result]:
    check, settings = "numbers.model_length", context.settings
    needed = settings.longest
    lengths = f"MAX_PROMPT_LENGTH={settings.max_prompt_length} + MAX_RESPONSE_LENGTH={settings.max_response_length}"
    results = []
    if settings.max_model_len < needed:
        found = f"MAX_MODEL_LEN={settings.max_model_len} is below {lengths} = {needed}: answers would be cut early"
        results.append(failed(check, found, f"set MAX_MODEL_LEN={needed}"))
    try:
        positions = readable(lambda: context.model.text.positions)
    except NotChecked:
        positions = 0
    if positions and settings.max_model_len > positions:
        found = f"MAX_MODEL_LEN={settings.max_model_len} is above the model's {positions} positions: vLLM refuses it"
        also = (
            "" if needed <= positions else f" and MAX_RESPONSE_LENGTH={max(1, positions - settings.max_prompt_length)}"
        )
        results.append(failed(check, found, f"set MAX_MODEL_LEN={positions}{also}"))
    batched = settings.max_batched_tokens or settings.max_model_len
    if not settings.chunked_prefill and batched < settings.max_model_len:
        found = (
            f"max_num_batched_tokens={batched} is below MAX_MODEL_LEN={settings.max_model_len} without chunked prefill"
        )
        remedy = f"set actor_rollout_ref.rollout.max_num_batched_tokens={settings.max_model_len}"
        results.append(failed(check, found, remedy + ", or ENABLE_CHUNKED_PREFILL=True"))
    if batched < settings.max_num_seqs:
        found = (
            f"MAX_NUM_SEQS={settings.max_num_seqs} is above the {batched} tokens of one engine step: vLLM refuses it"
        )
        results.append(failed(check, found, f"set MAX_NUM_SEQS={batched}"))
    return results or [passed(check, f"MAX_MODEL_LEN={settings.max_model_len} holds {lengths}")]


def check_token_budget(context: Context) -> list[Result]:
    check, settings = "numbers.token_budget", context.settings
    if not settings.use_dynamic_bsz:
        return [passed(check, "micro-batches are counted in samples (USE_DYNAMIC_BSZ=False)")]
    budgets = {
        "MAX_TOKENS_PER_GPU": settings.max_tokens_per_gpu,
        "LOGPROB_MAX_TOKENS_PER_GPU": settings.logprob_tokens_per_gpu,
    }
    results = [
        failed(
            check,
            f"{name}={budget} cannot hold the longest sample of {settings.longest} tokens: the run would stop at it",
            f"set {name}={settings.longest}",
        )
        for name, budget in budgets.items()
        if budget < settings.longest
    ]
    shown = ", ".join(f"{name}={budget}" for name, budget in budgets.items())
    return results or [passed(check, f"{shown} hold the longest sample of {settings.longest} tokens")]


def check_batch(context: Context) -> list[Result]:
    check, settings = "numbers.batch", context.settings
    batch, mini, n, world = settings.train_batch_size, settings.mini_batch_size, settings.rollout_n, settings.world
    results = []
    if batch % mini:
        remedy = f"set PPO_MINI_BATCH_SIZE={largest_divisor(batch, mini)}"
        results.append(failed(check, f"PPO_MINI_BATCH_SIZE={mini} does not divide TRAIN_BATCH_SIZE={batch}", remedy))
    for name, prompts in (("TRAIN_BATCH_SIZE", batch), ("PPO_MINI_BATCH_SIZE", mini)):
        if prompts * n % world:
            found = f"{name} x ROLLOUT_N = {prompts} x {n} = {prompts * n} is no multiple of the {world} workers"
            results.append(failed(check, found, f"set {name}={fitting_batch(prompts, n, world)}"))
    if n < 2:
        found = f"ROLLOUT_N={n}: a group of one answer has no advantage to compare"
        results.append(failed(check, found, "set ROLLOUT_N=2 or more (published: 16)"))
    steps = batch // mini
    return results or [passed(check, f"{batch} x {n} answers on {world} worker(s), {steps} optimizer step(s) each")]


def largest_divisor(number: int, at_most: int) -> int:
    """The largest divisor of ``number`` that is not above ``at_most``."""
    return next(candidate for candidate in range(min(number, at_most), 0, -1) if number % candidate == 0)


def fitting_batch(prompts: int, n: int, world: int) -> int:
    """The smallest count of prompts from ``prompts`` on of which ``n`` answers each are a multiple of ``world``."""
    unit = world // math.gcd(n, world)
    return -(-prompts // unit) * unit


def check_tensor_parallel(context: Context) -> list[Result]:
    check, settings = "numbers.tensor_parallel", context.settings
    tp, gpus, results = settings.rollout_tp, settings.gpus_per_node, []
    if gpus % tp:
        found = f"ROLLOUT_TP={tp} does not divide NGPUS_PER_NODE={gpus}"
        results.append(failed(check, found, f"set ROLLOUT_TP={largest_divisor(gpus, tp)}"))
    try:
        heads = readable(lambda: context.model.text.heads)
    except NotChecked:
        heads = 0
    if heads and heads % tp:
        found = f"ROLLOUT_TP={tp} does not divide the model's {heads} attention heads: vLLM refuses it"
        fitting = largest_divisor(math.gcd(heads, gpus), min(tp, math.gcd(heads, gpus)))
        results.append(failed(check, found, f"set ROLLOUT_TP={fitting}"))
    return results or [passed(check, f"{settings.world // tp} rollout replica(s) of {tp} GPU(s)")]


def check_sampling(context: Context) -> list[Result]:
    check, settings = "numbers.sampling", context.settings
    results = []
    if settings.temperature <= 0:
        found = f"TEMPERATURE={settings.temperature:g}: all answers of a group are the same, so no advantage is left"
        results.append(failed(check, found, "set TEMPERATURE=1.0"))
    if not 0 < settings.top_p <= 1:
        results.append(failed(check, f"TOP_P={settings.top_p:g} is not in (0, 1]", "set TOP_P=1.0"))
    if not 0 < settings.gpu_memory_utilization < 1:
        found = f"GPU_MEMORY_UTILIZATION={settings.gpu_memory_utilization:g} is no share between 0 and 1"
        results.append(failed(check, found, "set GPU_MEMORY_UTILIZATION=0.6"))
    if not 0 < settings.clip_ratio_low < 1:
        found = f"CLIP_RATIO_LOW={settings.clip_ratio_low:g} is not in (0, 1)"
        results.append(failed(check, found, "set CLIP_RATIO_LOW=0.2"))
    return results or [passed(check, f"TEMPERATURE={settings.temperature:g}, TOP_P={settings.top_p:g}")]


def check_rollout_correction(context: Context) -> list[Result]:
    check, settings = "numbers.rollout_correction", context.settings
    if is_off(settings.rollout_is):
        return [passed(check, "off (ROLLOUT_IS=none)")]
    results = []
    if not settings.calculate_log_probs:
        found = f"ROLLOUT_IS={settings.rollout_is} needs log-probs of the rollout, CALCULATE_LOG_PROBS is False"
        results.append(failed(check, found, "set CALCULATE_LOG_PROBS=True, or ROLLOUT_IS=none"))
    if problem := threshold_problem(settings):
        results.append(failed(check, problem, "set ROLLOUT_IS_THRESHOLD=0.2_5.0"))
    return results or [passed(check, f"ROLLOUT_IS={settings.rollout_is}, {settings.rollout_is_threshold}")]


def is_off(value: str) -> bool:
    return value.lower() in ("", "none", "null")


def threshold_problem(settings: Settings) -> str | None:
    """Why ``ROLLOUT_IS_THRESHOLD`` is neither a number above 0 nor ``low_high`` around 1; None when it is."""
    text = settings.rollout_is_threshold
    found = re.fullmatch(r"(?:(\d*\.?\d+)_)?(\d*\.?\d+)", text)
    if not found:
        return f"ROLLOUT_IS_THRESHOLD={text} is neither a number nor low_high"
    low, high = float(found.group(1) or 0), float(found.group(2))
    if not low < 1 < high:
        return f"ROLLOUT_IS_THRESHOLD={text} leaves no room around 1, the weight of equal policies"
    return None
