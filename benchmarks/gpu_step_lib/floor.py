"""The least time that a phase's arithmetic takes on a card, from the operations counted in ``verl_hyocr.adapt.flops``.

Every image is counted once per sample, as verl's ``perf/mfu`` does; ``shared`` counts it once per prompt. Padding and what
gradient checkpointing computes again are not counted. The rollout's floor is the prefill's operations of one prompt per
group, and per decoded token the larger of its operations and its memory traffic (weights once per engine step, keys and
values once per token).
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[2]
for folder in (ROOT, ROOT / "verl"):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))

from verl_hyocr.adapt import flops  # noqa: E402
from verl_hyocr.image_tokens import ImageTokenRule  # noqa: E402

from utils.demo.build_model import PIXELS, TEXT_SIZES, VISION_SIZES, VOCAB_SIZE  # noqa: E402


@dataclass(frozen=True)
class Card:
    """Nominal figures of a GPU: dense bf16 Tflop/s, memory TB/s and GB (vendor data sheets, SXM versions)."""

    tflops: float
    terabytes: float
    gigabytes: float


CARDS = {
    "H200": Card(989, 4.8, 141),
    "H100": Card(989, 3.35, 80),
    "H800": Card(989, 3.35, 80),
    "A100": Card(312, 2.04, 80),
    "A800": Card(312, 2.04, 80),
    "H20": Card(148, 4.0, 96),
}
"""Looked up in this order: ``H20`` is part of the name ``H200``."""


def find_card(name: str) -> tuple[str, Card] | None:
    """The card whose name is part of a device name such as ``NVIDIA H200``."""
    return next(((key, card) for key, card in CARDS.items() if key in name.upper()), None)


def model_shape(size: str) -> SimpleNamespace:
    """Dimensions of a model size of ``utils.demo.build_model``, under the names that the flops formulas read."""
    text = SimpleNamespace(vocab_size=VOCAB_SIZE, **TEXT_SIZES[size])
    vision = SimpleNamespace(
        num_channels=3,
        patch_size=16,
        spatial_merge_size=2,
        text_hidden_size=text.hidden_size,
        **VISION_SIZES[size],
    )
    return SimpleNamespace(text_config=text, vision_config=vision)


def image_rule(size: str) -> ImageTokenRule:
    low, high = PIXELS[size]
    return ImageTokenRule(min_pixels=low, max_pixels=high)


def page_patches(size: str, width: int, height: int) -> int:
    """Vision patches of a page, after the processor's resizing."""
    rule = image_rule(size)
    new_width, new_height = rule.target_size(width, height)
    return (new_width // rule.patch_size) * (new_height // rule.patch_size)


@dataclass(frozen=True)
class Work:
    """What one step computes.

    Attributes:
        prompts, group: prompts a step, answers a prompt.
        prompt_tokens, response_tokens: mean lengths, image tokens included.
        patches: vision patches per page.
        gpus, rollout_tp, max_num_seqs: as the launcher's settings.
    """

    prompts: int
    group: int
    prompt_tokens: float
    response_tokens: float
    patches: int
    gpus: int = 1
    rollout_tp: int = 1
    max_num_seqs: int = 256

    @property
    def samples(self) -> int:
        return self.prompts * self.group

    @property
    def tokens(self) -> float:
        return self.samples * (self.prompt_tokens + self.response_tokens)


def phase_flops(config: SimpleNamespace, work: Work, shared: bool = False) -> dict[str, float]:
    """Operations of the three passes over the whole batch, on all GPUs together.

    Args:
        config: from :func:`model_shape`.
        shared: count each image once per prompt instead of once per sample.
    """
    lengths = [work.prompt_tokens + work.response_tokens] * work.samples
    images = [work.patches] * (work.prompts if shared else work.samples)
    forward = flops.forward_flops(config, lengths, images)
    return {"old_log_prob": forward, "ref": forward, "update_actor": flops.PASSES * forward}


def kv_bytes_per_token(text: SimpleNamespace, bytes_per_value: int = 2) -> int:
    return 2 * text.num_hidden_layers * text.num_key_value_heads * text.head_dim * bytes_per_value


def rollout_seconds(config: SimpleNamespace, work: Work, peak_tflops: float, terabytes: float | None) -> float:
    """Floor of the rollout in seconds; memory traffic is left out when the bandwidth is unknown."""
    text, vision = config.text_config, config.vision_config
    head = text.vocab_size * text.hidden_size
    layers = flops.text_weights(text) - head
    total = work.prompt_tokens + work.response_tokens
    prefill = work.prompts * (
        2 * layers * work.prompt_tokens
        + flops.text_attention(text, [work.prompt_tokens])
        + 2 * flops.vision_weights(vision) * work.patches
        + flops.vision_attention(vision, [work.patches])
    )
    decode = work.samples * (
        2 * (layers + head) * work.response_tokens
        + flops.text_attention(text, [total])
        - flops.text_attention(text, [work.prompt_tokens])
    )
    rate = peak_tflops * 1e12 * work.gpus
    decode_seconds = decode / rate
    if terabytes:
        per_replica = math.ceil(work.samples * work.rollout_tp / work.gpus)
        waves = math.ceil(per_replica / work.max_num_seqs)
        weights = waves * work.response_tokens * 2 * (layers + head)
        context = work.response_tokens * (work.prompt_tokens + work.response_tokens / 2)
        cache = per_replica * context * kv_bytes_per_token(text)
        decode_seconds = max(decode_seconds, (weights + cache) / work.rollout_tp / (terabytes * 1e12))
    return prefill / rate + decode_seconds


def floors(
    config: SimpleNamespace, work: Work, peak_tflops: float | None, terabytes: float | None, shared: bool = False
) -> dict[str, float]:
    """Seconds per phase; empty when the peak is unknown."""
    if not peak_tflops:
        return {}
    rate = peak_tflops * 1e12 * work.gpus
    found = {phase: count / rate for phase, count in phase_flops(config, work, shared).items()}
    return {"gen": rollout_seconds(config, work, peak_tflops, terabytes), **found}
