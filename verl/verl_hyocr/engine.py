"""The FSDP engine that verl builds for a language-model actor or reference, with HunYuanVL's needs.

Registered under the vendor key ("cuda", "nvidia"), which upstream prefers to its own device key, and for the CPU platform.
"""

from __future__ import annotations

import os
from types import ModuleType

import torch

from verl_hyocr import sampling_guards
from verl_hyocr.adapt.fused_head import KEEP, answer_positions
from verl_hyocr.adapt.hf_export import restore_released_config
from verl_hyocr.hf import is_hunyuan_checkpoint, is_hunyuan_model
from verl_hyocr.one_reader import empty_weights
from verl_hyocr.registry import is_disabled

BACKENDS = ["fsdp", "fsdp2"]


def register(module: ModuleType) -> type:
    """Define and register the engine on top of ``verl.workers.engine.fsdp.transformer_impl``."""

    class HyocrFSDPEngine(module.FSDPEngineWithLMHead):
        """Adds to upstream: checkpoints keep the released config (A3), rank 0 alone reads weights (B4), barred tokens (B6), the
        head runs on answers only (P2)."""

        def _build_module(self):
            if not is_hunyuan_checkpoint(self.model_config.local_path):
                return super()._build_module()
            # FSDP1 broadcasts within its shard group only, so there every rank still reads.
            if self.engine_config.strategy == "fsdp2" and self.rank != 0 and not is_disabled("B4"):
                from verl.utils.model import get_hf_auto_model_class

                with empty_weights(get_hf_auto_model_class(hf_config=self.model_config.hf_config)):
                    built = super()._build_module()
            else:
                built = super()._build_module()
            bias = sampling_guards.from_environment()
            if bias is not None:
                bias.install(built.get_output_embeddings(), known_tokens=len(self.model_config.tokenizer))
            return built

        def prepare_model_inputs(self, micro_batch):
            model_inputs, output_args = super().prepare_model_inputs(micro_batch)
            # A fused pass over packed samples of this model; others have no use for the positions.
            fused = "shift_labels" in model_inputs and is_hunyuan_model(self.module)
            if fused and micro_batch.get("prompts", None) is not None and not is_disabled("P2"):
                prompts, responses = (micro_batch[name].offsets().diff() for name in ("prompts", "responses"))
                model_inputs[KEEP] = answer_positions(prompts, responses, model_inputs["input_ids"].shape[-1])
            return model_inputs, output_args

        def save_checkpoint(self, local_path, *args, **kwargs) -> None:
            super().save_checkpoint(local_path, *args, **kwargs)
            source = self.model_config.local_hf_config_path
            if self.rank == 0 and is_hunyuan_checkpoint(source):
                restore_released_config(source, os.path.join(local_path, "huggingface"))
            torch.distributed.barrier()

    registry = module.EngineRegistry
    registry.register(model_type="language_model", backend=BACKENDS, device="cuda", vendor="nvidia")(HyocrFSDPEngine)
    registry.register(model_type="language_model", backend=BACKENDS, device="cpu")(HyocrFSDPEngine)
    module.HyocrFSDPEngine = HyocrFSDPEngine
    return HyocrFSDPEngine
