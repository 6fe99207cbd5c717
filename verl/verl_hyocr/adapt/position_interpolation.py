"""A4.interpolation: how the vision tower stretches its learned position grid to an image.

Symptom without it: about 1e-3 between actor and rollout log-probs on prompts with an image.
Upstream: ``HunYuanVLVisionPatchEmbed.interpolate_pos_encoding`` (transformers).
Why: the model's authors, and vLLM, interpolate with the scale factor ``(patches + 0.1) / edge``; transformers asks for the
target size, which moves every sample point slightly.
Process: FSDP workers, and anything that runs the transformers model. Goes when transformers uses the scale factors.
"""

from __future__ import annotations

from types import ModuleType

import torch

from verl_hyocr.registry import Step, mark

MODULE = "transformers.models.hunyuan_vl.modeling_hunyuan_vl"


def _apply(module: ModuleType) -> None:
    def interpolate_pos_encoding(self, embeddings: torch.Tensor, height: int, width: int) -> torch.Tensor:
        """Position grid for an image of (height, width) patches: (1, height * width, C)."""
        edge = self.position_edge
        grid = self.position_embedding.weight[1:, :].reshape(1, edge, edge, self.embed_dim).permute(0, 3, 1, 2)
        grid = torch.nn.functional.interpolate(
            grid.float(),
            scale_factor=((float(height) + 0.1) / edge, (float(width) + 0.1) / edge),
            mode=self.config.interpolate_mode,
            align_corners=False,
        )
        return grid.permute(0, 2, 3, 1).reshape(1, -1, self.embed_dim).to(embeddings.dtype)

    module.HunYuanVLVisionPatchEmbed.interpolate_pos_encoding = mark(interpolate_pos_encoding, "A4.interpolation")


STEPS = [
    Step(
        "A4.interpolation",
        MODULE,
        _apply,
        ((MODULE, "HunYuanVLVisionPatchEmbed.interpolate_pos_encoding"),),
        "position interpolation of the vision tower",
    )
]
