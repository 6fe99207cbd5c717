"""A4.dummy_vision: ranks whose micro-batch has no image still run the vision tower.

Symptom without it: FSDP aborts or hangs (collective mismatch) when one rank has images and another has not, for example
when verl pads a batch with text-only rows.
Upstream: ``HunYuanVLModel.forward`` (transformers). The output of a 2×2-patch blank image is added with weight 0.
Process: FSDP workers. Goes when transformers (or verl) does the same for this model.
"""

from __future__ import annotations

import functools
from types import ModuleType

import torch

from verl_hyocr.registry import Step, mark

MODULE = "transformers.models.hunyuan_vl.modeling_hunyuan_vl"


def _needs_dummy() -> bool:
    return (
        torch.distributed.is_available()
        and torch.distributed.is_initialized()
        and (torch.distributed.get_world_size() > 1)
    )


def blank_image(model) -> tuple[torch.Tensor, torch.Tensor]:
    """Smallest image that the tower accepts: pixel values (P, C·p·p) and grid (1, 3) on the model's device."""
    vision = model.config.vision_config
    edge = vision.spatial_merge_size
    device = model.vision_tower.embeddings.patch_embedding.weight.device
    patches = torch.zeros(edge * edge, vision.num_channels * vision.patch_size**2, device=device)
    return patches, torch.tensor([[1, edge, edge]], device=device)


def _apply(module: ModuleType) -> None:
    original = module.HunYuanVLModel.forward

    @functools.wraps(original)
    def forward(self, input_ids=None, *args, inputs_embeds=None, pixel_values=None, **kwargs):
        if pixel_values is None and _needs_dummy():
            if inputs_embeds is None:
                inputs_embeds = self.get_input_embeddings()(input_ids)
                input_ids = None
            pixels, grid = blank_image(self)
            pixels = pixels.to(inputs_embeds.device)
            features = self.get_image_features(pixels, grid.to(inputs_embeds.device), return_dict=True).pooler_output
            inputs_embeds = inputs_embeds + 0.0 * features.sum().to(inputs_embeds.dtype)
        return original(self, input_ids, *args, inputs_embeds=inputs_embeds, pixel_values=pixel_values, **kwargs)

    module.HunYuanVLModel.forward = mark(forward, "A4.dummy_vision")


STEPS = [Step("A4.dummy_vision", MODULE, _apply, ((MODULE, "HunYuanVLModel.forward"),), "ranks without images")]
