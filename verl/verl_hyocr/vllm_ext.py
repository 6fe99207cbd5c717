"""What the fork does inside vLLM workers: around a weight sync (A6, B5) and to the logits (B6).

A6. Symptom without it: vLLM's ``HunYuanVisionPatchEmbed`` keeps an fp32 copy of the position table, filled by the profile
run at start-up and never refreshed. In bf16 the rollout then sees the start-up weights of that table for ever (garbage with
``load_format=dummy``, stale when the vision tower trains). Goes when vLLM invalidates the copy on ``load_weights``.

B5. Symptom without it: a weight that the actor does not send, or that arrives changed, is not noticed; one that the engine
refuses leaves the sender waiting for ever. See ``weight_check.py``.

B6. See ``sampling_guards.py``.

Upstream seam: ``worker_extension_cls`` of the vLLM engine. Process: vLLM workers.
"""

from __future__ import annotations

import contextlib
import os
from types import MethodType
from typing import Any

from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

from verl_hyocr import sampling_guards, weight_check
from verl_hyocr.registry import is_disabled
from verl_hyocr.weight_check import WeightSyncError


def reset_position_caches(model) -> int:
    """Drop the cached position tables of all vision patch embeddings in ``model``; returns how many there were."""
    found = 0
    for module in model.modules():
        if hasattr(module, "patch_pos_embed"):
            module.patch_pos_embed = None
            found += 1
    return found


@contextlib.contextmanager
def recorded_loads(models: list):
    """While open, the yielded list gets ``(model, weight)`` for everything that the models' ``load_weights`` wrote."""
    written: list[tuple[int, str]] = []
    for index, model in enumerate(models):

        def load_weights(weights, index=index, original=model.load_weights):
            loaded = original(weights)
            written.extend((index, name) for name in sorted(loaded or ()))
            return loaded

        model.load_weights = load_weights
    try:
        yield written
    finally:
        for model in models:
            del model.load_weights


class HyocrWorkerExtension(vLLMColocateWorkerExtension):
    """verl's worker extension, with the fork's additions."""

    _inspection: weight_check.Inspection | None = None
    _refused: dict[str, str] | None = None
    _report: dict[str, Any] | None = None

    def monkey_patch_model(self, vocab_size: int, banned_token_ids: list[int] | None = None):
        """verl's bar on unknown and placeholder tokens, then B6's bias; called once, after the engine started."""
        super().monkey_patch_model(vocab_size, banned_token_ids)
        bias = sampling_guards.from_environment()
        if bias is None:
            return
        for model in self._iter_all_models():
            original = model.compute_logits

            def compute_logits(self, *args, original=original, **kwargs):
                return bias.apply(original(*args, **kwargs))

            model.compute_logits = MethodType(compute_logits, model)

    def update_weights_from_ipc(self, *args, hyocr_check: int | None = None, **kwargs):
        """verl's weight sync. With ``hyocr_check`` (the number of the sync) it is inspected for ``weight_sync_report``.

        Raises:
            WeightSyncError: unless inspected, when the engine refused tensors, with their names.
        """
        self._refused, self._report = {}, None
        if hyocr_check is not None:
            *_, sample = weight_check.check_settings()
            self._inspection = weight_check.Inspection(list(self._iter_all_models()), sample, seed=hyocr_check)
            self._inspection.refused = self._refused
            self._inspection.begin()
        try:
            result = super().update_weights_from_ipc(*args, **kwargs)
            if self._inspection is not None:
                self._report = self._inspection.finish() | {"where": self._where()}
        finally:
            if self._inspection is not None:
                self._inspection.close()
                self._inspection = None
        if not is_disabled("A6"):
            found = sum(reset_position_caches(model) for model in self._iter_all_models())
            if not found:
                raise RuntimeError("A6: no vision patch embedding with a position cache found; has vLLM changed?")
        if self._refused and self._report is None:
            names = ", ".join(f"{name} ({why})" for name, why in list(self._refused.items())[:8])
            raise WeightSyncError(f"{self._where()}: the engine refused {len(self._refused)} tensor(s): {names}")
        return result

    def weight_sync_report(self) -> dict[str, Any] | None:
        """The report of the last sync if it was inspected (plain types, see ``weight_check.problems``), else None."""
        return self._report

    def _where(self) -> str:
        return f"replica {os.environ.get('VERL_REPLICA_RANK', '0')} rank {self.local_rank}"

    def _update_weights(self, weights, peft_config=None, base_sync_done=False):
        """verl's, but a tensor that the engine refuses does not end the transfer: its sender would wait for ever."""
        if peft_config is not None:
            return super()._update_weights(weights, peft_config=peft_config, base_sync_done=base_sync_done)
        if self._inspection is None:
            try:
                super()._update_weights(weights, peft_config=None, base_sync_done=base_sync_done)
            except Exception:  # whatever the loader raises: it is reported below, with the tensor's name
                for entry in weights:
                    self._load_one(*entry)
            return
        models = list(self._iter_all_models())
        buffers = {name for name, _ in models[0].named_buffers()}
        tied = getattr(getattr(models[0], "config", None), "tie_word_embeddings", False)
        for name, tensor in weights:
            if name == weight_check.MANIFEST:
                self._inspection.read_manifest(tensor)
                continue
            with recorded_loads(models) as written:
                accepted = self._load_one(name, tensor)
            if accepted:
                # A tied output layer has no weight of its own in the engine.
                silent = name in buffers or (tied and name == "lm_head.weight")
                self._inspection.received(name, tensor, None if silent else list(written))

    def _load_one(self, name, tensor) -> bool:
        try:
            super()._update_weights([(name, tensor)], peft_config=None, base_sync_done=False)
        except Exception as error:  # unknown name, wrong shape: the loader's own errors
            self._refused[name] = " ".join(str(error).split())[:200] or type(error).__name__
            return False
        return True
