"""The FSDP engine that verl builds for a language-model actor or reference, with HunYuanVL's needs.

Registered under the vendor key ("cuda", "nvidia"), which upstream prefers to its own device key, and for the CPU platform.
"""

from __future__ import annotations

import os
from types import ModuleType

import torch

from verl_hyocr.adapt.hf_export import restore_released_config
from verl_hyocr.hf import is_hunyuan_checkpoint

BACKENDS = ["fsdp", "fsdp2"]


def register(module: ModuleType) -> type:
    """Define and register the engine on top of ``verl.workers.engine.fsdp.transformer_impl``."""

    class HyocrFSDPEngine(module.FSDPEngineWithLMHead):
        """Adds to upstream: checkpoints keep the released config (A3)."""

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
