"""B8: verl's flops counter knows HunYuanVL, so that ``perf/mfu/*`` is a number instead of 0.

Upstream: ``verl.utils.flops_counter.ESTIMATE_FUNC`` has no entry for the model type, and the v1 trainer tells the counter
how long the samples are but not how large their images are. The second step reads the patches per image from the batch and
adds them up over the data-parallel ranks, as upstream does with the sample lengths.
Counted: matrix products and attention of a forward and a backward pass, 6 operations per weight and token. Not counted:
embedding look-ups, norms, activations, padding, and what gradient checkpointing computes again.
What the counter cannot see: an image's aspect (the merger's newline tokens, one per row of merged patches, are left out:
less than 0.1% of the vision part), frozen parts (a frozen vision tower has no backward pass), and the blank images of
micro-batches without any.
Process: FSDP workers. Goes when verl has an entry for ``hunyuan_vl`` and the v1 trainer passes ``images_seqlens``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

from verl_hyocr.hf import MODEL_TYPE
from verl_hyocr.registry import Step, mark

COUNTER = "verl.utils.flops_counter"
WORKER = "verl.workers.engine_workers"
PASSES = 3
"""A backward pass computes two products for each one of the forward pass."""


def text_weights(text: Any) -> int:
    """Weights that every token is multiplied with: decoder layers and LM head (``text_config``)."""
    heads = text.num_attention_heads * text.head_dim
    kv_heads = text.num_key_value_heads * text.head_dim
    attention = text.hidden_size * (2 * heads + 2 * kv_heads)
    mlp = 3 * text.hidden_size * text.intermediate_size
    return text.num_hidden_layers * (attention + mlp) + text.vocab_size * text.hidden_size


def vision_weights(vision: Any) -> float:
    """Weights that every patch is multiplied with; the merger's are shared by ``spatial_merge_size ** 2`` patches."""
    width = vision.hidden_size
    embedding = vision.num_channels * vision.patch_size**2 * width
    layers = vision.num_hidden_layers * (4 * width**2 + 2 * width * vision.intermediate_size)
    cell = vision.spatial_merge_size**2
    merger = cell * width * 2 * width + 2 * width * 4 * width + 4 * width * vision.text_hidden_size
    return embedding + layers + merger / cell


def text_attention(text: Any, lengths: Iterable[int]) -> int:
    """Forward operations of causal attention: scores and weighted values over half of each sample's square."""
    width = text.num_attention_heads * text.head_dim
    return 2 * text.num_hidden_layers * width * sum(length**2 for length in lengths)


def vision_attention(vision: Any, patches: Iterable[int]) -> int:
    """Forward operations of full attention within each image."""
    return 4 * vision.num_hidden_layers * vision.hidden_size * sum(count**2 for count in patches)


def forward_flops(config: Any, lengths: Sequence[int], patches: Sequence[int] = ()) -> float:
    """Operations of one forward pass.

    Args:
        config: ``HunYuanVLConfig``.
        lengths: tokens per sample, image tokens included.
        patches: patches per image, before merging.
    """
    text, vision = config.text_config, config.vision_config
    return (
        2 * text_weights(text) * sum(lengths)
        + text_attention(text, lengths)
        + 2 * vision_weights(vision) * sum(patches)
        + vision_attention(vision, patches)
    )


def image_patches(samples: Iterable[Any]) -> list[int]:
    """Patches of every image of a batch, from the samples' ``multi_modal_inputs``; samples without images add nothing.

    Images that samples share (P1) count once.
    """
    from verl_hyocr.pixels import KEY

    found: list[int] = []
    seen = set()
    for sample in samples:
        inputs = getattr(sample, "data", sample) or {}
        if KEY in inputs:
            key, _ = inputs[KEY]
            if key in seen:
                continue
            seen.add(key)
        if "images_seqlens" in inputs:
            found += inputs["images_seqlens"].tolist()
        elif "image_grid_thw" in inputs:
            found += [
                height * width for frames, height, width in inputs["image_grid_thw"].tolist() for _ in range(frames)
            ]
    return found


def _add_estimator(module: ModuleType) -> None:
    def estimate_hunyuan_vl_flops(config, tokens_sum, batch_seqlens, delta_time, **kwargs) -> float:
        """Teraflops per second of a forward and backward pass over the whole (global) batch."""
        patches = kwargs.get("images_seqlens")
        return PASSES * forward_flops(config, batch_seqlens, patches if patches is not None else ()) / delta_time / 1e12

    module.estimate_hunyuan_vl_flops = mark(estimate_hunyuan_vl_flops, "B8")
    module.ESTIMATE_FUNC[MODEL_TYPE] = estimate_hunyuan_vl_flops


def _count_images(module: ModuleType) -> None:
    import torch
    from tensordict import NonTensorData

    tu = module.tu

    def with_images(original):
        @functools.wraps(original)
        def run(self, data, *args, **kwargs):
            counter = self.flops_counter
            wanted = counter is not None and counter.config.model_type == MODEL_TYPE
            # Both keys come from the driver or from all ranks alike, so that all ranks gather or none does.
            if wanted and tu.get(data, "global_token_num") is not None and tu.get(data, "images_seqlens") is None:
                group = self.engine.get_data_parallel_group()
                gathered = [None] * torch.distributed.get_world_size(group)
                torch.distributed.all_gather_object(gathered, image_patches(data.get("multi_modal_inputs", [])), group)
                patches = [count for part in gathered for count in part]
                tu.assign_non_tensor(data, images_seqlens=NonTensorData(patches))
            return original(self, data, *args, **kwargs)

        return mark(run, "B8.images")

    module.TrainingWorker.train_batch = with_images(module.TrainingWorker.train_batch)
    module.TrainingWorker.infer_batch = with_images(module.TrainingWorker.infer_batch)


STEPS = [
    Step("B8", COUNTER, _add_estimator, ((COUNTER, "estimate_hunyuan_vl_flops"),), "model flops utilisation"),
    Step(
        "B8.images",
        WORKER,
        _count_images,
        ((WORKER, "TrainingWorker.train_batch"), (WORKER, "TrainingWorker.infer_batch")),
        "images in the model flops utilisation",
    ),
]
