"""A3.export: checkpoints keep the released, flat ``config.json``.

Symptom without it: the ``huggingface/`` folder that verl writes has transformers' nested config, which vLLM 0.25 cannot
load. Weights are already saved under the released names (transformers reverts its own mapping).
Upstream: ``EngineRegistry`` (our engine subclass restores the config after a save) and
``BaseModelMerger.save_hf_model_and_tokenizer`` (the offline merge).
Process: FSDP workers, ``python -m verl.model_merger``. Goes when vLLM reads the nested config.
"""

from __future__ import annotations

import functools
import os
import shutil
from pathlib import Path
from types import ModuleType

from verl_hyocr.hf import is_hunyuan_checkpoint
from verl_hyocr.registry import Step, mark

ENGINE = "verl.workers.engine.fsdp.transformer_impl"
MERGER = "verl.model_merger.base_model_merger"


def restore_released_config(source: str | os.PathLike, target: str | os.PathLike) -> None:
    """Put the ``config.json`` of checkpoint folder ``source`` over that of ``target``, atomically.

    Raises:
        FileNotFoundError: when either folder or the source file is missing.
    """
    destination = Path(target) / "config.json"
    temporary = destination.with_name(f".config.json.{os.getpid()}")
    shutil.copyfile(Path(source) / "config.json", temporary)
    os.replace(temporary, destination)


def _register_engine(module: ModuleType) -> None:
    from verl_hyocr import engine

    engine.register(module)


def _wrap_merger(module: ModuleType) -> None:
    original = module.BaseModelMerger.save_hf_model_and_tokenizer

    @functools.wraps(original)
    def save_hf_model_and_tokenizer(self, state_dict):
        flat = is_hunyuan_checkpoint(self.hf_model_config_path)
        config = (Path(self.hf_model_config_path) / "config.json").read_bytes() if flat else None
        original(self, state_dict)
        if config is not None:
            destination = Path(self.config.target_dir) / "config.json"
            temporary = destination.with_name(f".config.json.{os.getpid()}")
            temporary.write_bytes(config)
            os.replace(temporary, destination)

    module.BaseModelMerger.save_hf_model_and_tokenizer = mark(save_hf_model_and_tokenizer, "A3.merge")


STEPS = [
    Step("A3.export", ENGINE, _register_engine, (), "flat config in checkpoints"),
    Step(
        "A3.merge",
        MERGER,
        _wrap_merger,
        ((MERGER, "BaseModelMerger.save_hf_model_and_tokenizer"),),
        "flat config in merged checkpoints",
    ),
]
