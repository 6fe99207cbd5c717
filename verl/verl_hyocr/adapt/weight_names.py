"""A3: weights travel to vLLM under the names of the released checkpoint.

Symptom without it: vLLM refuses the first weight sync (unknown ``model.vision_tower.…``) or keeps its start weights.
Upstream: ``verl.utils.model.convert_weight_keys``, a no-op since transformers moved the mapping off the model class. The
names come from transformers' own reversible mapping; no tensor is copied.
Process: FSDP workers. Goes when upstream calls ``revert_weight_conversion`` itself.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from verl_hyocr.hf import is_hunyuan_model
from verl_hyocr.registry import Step, mark

MODULE = "verl.utils.model"


def released_names(model, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Rename a transformers state dict of ``model`` to the released checkpoint's names (``vit.…``, ``model.…``).

    Raises:
        RuntimeError: when the mapping loses or merges a tensor.
    """
    from transformers.core_model_loading import revert_weight_conversion

    renamed = revert_weight_conversion(model, dict(state_dict))
    if len(renamed) != len(state_dict):
        raise RuntimeError(f"weight renaming changed the number of tensors: {len(state_dict)} -> {len(renamed)}")
    return renamed


def _apply(module: ModuleType) -> None:
    original = module.convert_weight_keys

    def convert_weight_keys(state_dict, model):
        return released_names(model, state_dict) if is_hunyuan_model(model) else original(state_dict, model)

    module.convert_weight_keys = mark(convert_weight_keys, "A3.names")


STEPS = [
    Step(
        "A3.names",
        MODULE,
        _apply,
        (
            (MODULE, "convert_weight_keys"),
            ("verl.workers.engine.fsdp.transformer_impl", "convert_weight_keys"),
        ),
        "released weight names",
    )
]
