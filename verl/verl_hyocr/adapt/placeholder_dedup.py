"""A5: one image placeholder per image in the prompt that goes to vLLM.

Symptom without it: none that is visible. vLLM expands each of the already expanded placeholders again (10 became 19),
and the rollout sees another prompt than the actor.
Upstream: ``verl.workers.rollout.utils.qwen2_5_vl_dedup_image_tokens``, which only knows Qwen's image processors.
Process: the vLLM server actor. Goes when upstream dedups by the processor's token id.
"""

from __future__ import annotations

from itertools import pairwise
from types import ModuleType

from verl_hyocr.hf import is_hunyuan_processor
from verl_hyocr.registry import Step, mark

MODULE = "verl.workers.rollout.utils"


def collapse_runs(token_ids: list[int], token_id: int) -> list[int]:
    """Each run of ``token_id`` becomes a single one.

    >>> collapse_runs([5, 7, 7, 7, 5, 7], 7)
    [5, 7, 5, 7]
    """
    if not token_ids:
        return []
    kept = [token_ids[0]]
    kept += [current for previous, current in pairwise(token_ids) if current != token_id or previous != token_id]
    return kept


def _apply(module: ModuleType) -> None:
    original = module.qwen2_5_vl_dedup_image_tokens

    def qwen2_5_vl_dedup_image_tokens(prompt_ids: list[int], processor) -> list[int]:
        if is_hunyuan_processor(processor):
            return collapse_runs(list(prompt_ids), processor.image_token_id)
        return original(prompt_ids, processor)

    module.qwen2_5_vl_dedup_image_tokens = mark(qwen2_5_vl_dedup_image_tokens, "A5")


STEPS = [
    Step(
        "A5",
        MODULE,
        _apply,
        (
            (MODULE, "qwen2_5_vl_dedup_image_tokens"),
            ("verl.workers.rollout.vllm_rollout.vllm_async_server", "qwen2_5_vl_dedup_image_tokens"),
        ),
        "image placeholders before vLLM",
    )
]
