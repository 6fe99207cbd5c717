"""B8: the work that model flops utilisation divides by is what the model really computes."""

from __future__ import annotations

import os
from types import SimpleNamespace

os.environ.setdefault("VERL_PLATFORM", "cpu")

import pytest
import torch
from tensordict import NonTensorData
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForImageTextToText
from verl_hyocr.adapt import flops


@pytest.fixture(scope="module")
def config(tiny_model):
    return AutoConfig.from_pretrained(tiny_model)


RELEASED_TEXT = SimpleNamespace(
    hidden_size=1024,
    intermediate_size=3584,
    num_hidden_layers=24,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    vocab_size=120128,
)
RELEASED_VISION = SimpleNamespace(
    hidden_size=1152,
    intermediate_size=4304,
    num_hidden_layers=27,
    num_channels=3,
    patch_size=16,
    spatial_merge_size=2,
    text_hidden_size=1024,
)


def test_text_weights_by_hand():
    # A layer: q and o 1024 x 2048 each, k and v 1024 x 1024 each, three 1024 x 3584; 24 layers, a head of 1024 x 120128.
    assert flops.text_weights(RELEASED_TEXT) == 24 * (2 * 2097152 + 2 * 1048576 + 3 * 3670016) + 123011072 == 538247168


def test_vision_weights_by_hand():
    # A layer: four 1152 x 1152, two 1152 x 4304. Once per four patches: 4608 x 2304, 2304 x 4608, 4608 x 1024.
    layer = 4 * 1327104 + 2 * 4958208
    merger = 10616832 + 10616832 + 4718592
    assert flops.vision_weights(RELEASED_VISION) == 768 * 1152 + 27 * layer + merger / 4 == 418443264


def test_attention_by_hand():
    # Per layer and sample: two products of L x L with 2048 columns, 2 operations each, half of them under the causal mask.
    assert flops.text_attention(RELEASED_TEXT, [10, 20]) == 24 * 2 * 2048 * (100 + 400)
    assert flops.vision_attention(RELEASED_VISION, [6]) == 27 * 4 * 1152 * 36


def test_estimate_is_what_torch_counts(tiny_model, config):
    """torch's own counter on a real forward pass; eager attention computes the whole square instead of half of it."""
    model = AutoModelForImageTextToText.from_pretrained(tiny_model, attn_implementation="eager").eval()
    height, width = 4, 6
    length = (height // 2) * (width // 2 + 1) + 2 + 9
    image = config.image_token_id
    ids = torch.full((1, length), 50)
    ids[0, 3 : 3 + length - 9] = image
    vision = config.vision_config
    pixels = torch.rand(height * width, vision.num_channels * vision.patch_size**2)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(
            input_ids=ids,
            position_ids=torch.arange(length).expand(4, 1, length),
            pixel_values=pixels,
            image_grid_thw=torch.tensor([[1, height, width]]),
            use_cache=False,
        )
    estimate = flops.forward_flops(config, [length], [height * width])
    upper_triangle = flops.text_attention(config.text_config, [length])
    newlines = height // 2 * 2 * 4 * vision.hidden_size * vision.text_hidden_size
    # The rotary table is a product, too: 4 axes, head_dim / 2 frequencies.
    rotary = 2 * 4 * config.text_config.head_dim // 2 * length
    assert counter.get_total_flops() == estimate + upper_triangle + newlines + rotary


def test_images_are_found_in_what_the_model_gets():
    grid = torch.tensor([[1, 4, 6], [2, 2, 8]])
    samples = [{"image_grid_thw": grid}, {}, None, NonTensorData({"images_seqlens": torch.tensor([9, 5])})]
    assert flops.image_patches(samples) == [24, 16, 16, 9, 5]


def test_estimator_gives_teraflops_per_second_of_both_passes(config):
    module = SimpleNamespace(ESTIMATE_FUNC={})
    flops._add_estimator(module)
    estimate = module.ESTIMATE_FUNC["hunyuan_vl"]
    whole = 3 * flops.forward_flops(config, [30, 12], [24, 16])
    assert estimate(config, 42, [30, 12], 2.0, images_seqlens=[24, 16]) == pytest.approx(whole / 2e12)
    assert estimate(config, 42, [30, 12], 2.0, images_seqlens=None) == estimate(config, 42, [30, 12], 2.0)
