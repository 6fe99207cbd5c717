"""A4.nested: four-axis positions of a batch whose samples all have the same length.

Symptom without it: a split error in the first log-prob pass as soon as all samples of a batch are equally long.
Upstream: ``verl.utils.tensordict_utils.maybe_fix_3d_position_ids``. When all lengths agree torch makes the axis dimension
(4) the ragged one instead of the length; verl then only relabels the dimension, with offsets that count axes.
Process: every verl process. Goes when upstream rebuilds the nested tensor.
"""

from __future__ import annotations

from types import ModuleType

from verl_hyocr.registry import Step, mark

MODULE = "verl.utils.tensordict_utils"


def _apply(module: ModuleType) -> None:
    def maybe_fix_3d_position_ids(data) -> None:
        """Make dimension 2 (the length) the ragged one of ``position_ids`` (B, axes, jagged), in place."""
        if "position_ids" not in data.keys():  # noqa: SIM118 - a TensorDict
            return
        positions = data["position_ids"]
        if positions.dim() != 3 or not positions.is_nested:
            return
        values, offsets = positions._values, positions._offsets
        total = int(offsets[-1])
        if values.dim() == 2 and total == values.shape[0] and total != values.shape[1]:
            parts = list(values.split(offsets.diff().tolist(), dim=0))
            data["position_ids"] = module.nested_tensor_from_tensor_list(parts, ragged_idx=2)
        else:
            positions._ragged_idx = 2

    module.maybe_fix_3d_position_ids = mark(maybe_fix_3d_position_ids, "A4.nested")


STEPS = [
    Step(
        "A4.nested",
        MODULE,
        _apply,
        (
            (MODULE, "maybe_fix_3d_position_ids"),
            ("verl.workers.engine.base", "maybe_fix_3d_position_ids"),
            ("verl.workers.engine_workers", "maybe_fix_3d_position_ids"),
        ),
        "positions of equal-length batches",
    )
]
