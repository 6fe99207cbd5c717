"""A3: weights travel to vLLM under the names of the released checkpoint.

Symptom without it: vLLM refuses the first weight sync (unknown ``model.vision_tower.…``) or keeps its start weights.
Upstream: ``verl.utils.model.convert_weight_keys``, a no-op since transformers moved the mapping off the model class. The
names come from transformers' own reversible mapping; no tensor is copied. Hy3 (text, MoE) gets the names only: verl splits
the fused experts itself, one tensor at a time.
Process: FSDP workers. Goes when upstream calls ``revert_weight_conversion`` itself.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from verl_hyocr.hf import is_hunyuan_model, is_hy3_model
from verl_hyocr.registry import Step, mark

MODULE = "verl.utils.model"
HY3_NAMES = (
    (".mlp.gate.weight", ".mlp.router.gate.weight"),
    (".mlp.e_score_correction_bias", ".mlp.expert_bias"),
    (".mlp.shared_experts.", ".mlp.shared_mlp."),
)
"""transformers' name, released name; the inverse of its renamings for ``hy_v3``."""


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


def hy3_released_names(state_dict: dict[str, Any]) -> dict[str, Any]:
    """Rename a transformers state dict of HYV3 to the released names; fused experts keep theirs and stay fused."""
    renamed = {}
    for name, tensor in state_dict.items():
        for ours, released in HY3_NAMES:
            name = name.replace(ours, released)
        renamed[name] = tensor
    return renamed


def _apply(module: ModuleType) -> None:
    original = module.convert_weight_keys

    def convert_weight_keys(state_dict, model):
        if is_hunyuan_model(model):
            return released_names(model, state_dict)
        return hy3_released_names(state_dict) if is_hy3_model(model) else original(state_dict, model)

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
