"""A6: what has to happen inside a vLLM worker around a weight sync.

Symptom without it: vLLM's ``HunYuanVisionPatchEmbed`` keeps an fp32 copy of the position table, filled by the profile run at
start-up and never refreshed. In bf16 the rollout then sees the start-up weights of that table for ever (garbage with
``load_format=dummy``, stale when the vision tower trains).
Upstream seam: ``worker_extension_cls`` of the vLLM engine. Process: vLLM workers.
Goes when vLLM invalidates the copy on ``load_weights``.
"""

from __future__ import annotations

from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

from verl_hyocr.registry import is_disabled


def reset_position_caches(model) -> int:
    """Drop the cached position tables of all vision patch embeddings in ``model``; returns how many there were."""
    found = 0
    for module in model.modules():
        if hasattr(module, "patch_pos_embed"):
            module.patch_pos_embed = None
            found += 1
    return found


class HyocrWorkerExtension(vLLMColocateWorkerExtension):
    """verl's worker extension plus the cache reset after every weight update."""

    def update_weights_from_ipc(self, *args, **kwargs):
        result = super().update_weights_from_ipc(*args, **kwargs)
        if not is_disabled("A6"):
            found = sum(reset_position_caches(model) for model in self._iter_all_models())
            if not found:
                raise RuntimeError("A6: no vision patch embedding with a position cache found; has vLLM changed?")
        return result
