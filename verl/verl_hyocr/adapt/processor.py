"""A1, A2, B1: verl accepts HunYuanVL's processor, with the right positions and the right image backend.

A2. Symptom without it: ``hf_processor`` warns "Unsupported processor type" and returns None, so training goes on
    text-only or dies later. Positions: the model's own ``get_rope_index`` gives the rows (sequence, width, height, image);
    verl puts the sequence row in front by itself, so the bound method returns the last three.
A1. Symptom without it: "Number of <image> tokens in text (0) …". After a rollout verl decodes the tokens without special
    tokens and feeds text and images to the processor again; HunYuanVL's placeholders are special tokens. Only that call
    (images given, no placeholder in the text) is let through; every other mismatch still raises.
B1. The torchvision image processor of transformers 5.13/5.14 orders patches in 2×2 blocks, which scrambles the image; only
    the PIL backend is right, so it is asked for explicitly and checked.
Upstream: ``verl.utils.tokenizer.tokenizer.hf_processor`` and the packages that re-export it.
Process: everywhere a processor is built. Goes when upstream knows HunYuanVLProcessor (B1: transformers >= 5.15).
"""

from __future__ import annotations

import sys
import types
from types import ModuleType
from typing import Any

from verl_hyocr.hf import MODEL_TYPE, is_hunyuan_processor
from verl_hyocr.registry import AdaptationError, Step, is_disabled, mark

MODULE = "verl.utils.tokenizer.tokenizer"
_REEXPORTS = ("verl.utils.tokenizer", "verl.utils")
AXES = 4


def _bind_positions(processor: Any, config: Any) -> None:
    from transformers.models.hunyuan_vl.modeling_hunyuan_vl import HunYuanVLModel

    sections = (config.text_config.rope_parameters or {}).get("mrope_section") or []
    if len(sections) != AXES:
        raise AdaptationError(
            f"this checkpoint has {len(sections)} position axes (rope section {sections}); verl carries exactly {AXES}: "
            "the sequence row plus three. Training it would use wrong positions."
        )

    def get_rope_index(self, input_ids, attention_mask=None, video_grid_thw=None, **kwargs):
        """Positions (3, B, L) for (width, height, image); videos are not an input of this model."""
        positions, deltas = HunYuanVLModel.get_rope_index(self, input_ids, attention_mask=attention_mask, **kwargs)
        return positions[1:], deltas

    processor.config = config
    processor.get_vision_position_ids = types.MethodType(HunYuanVLModel.get_vision_position_ids, processor)
    processor.get_rope_index = types.MethodType(get_rope_index, processor)


def _relax_validation(processor: Any) -> None:
    strict = processor.validate_inputs

    def validate_inputs(images=None, text=None, **kwargs):
        texts = [text] if isinstance(text, str) else text
        stripped = (
            images is not None
            and texts is not None
            and all(isinstance(part, str) and processor.image_token not in part for part in texts)
        )
        return None if stripped else strict(images=images, text=text, **kwargs)

    processor.validate_inputs = validate_inputs


def load_processor(name_or_path: str, **kwargs: Any) -> Any:
    """HunYuanVL's processor on the PIL backend, with verl's position binding.

    Raises:
        AdaptationError: when another image backend was loaded, or the checkpoint's position axes are not four.
    """
    from transformers import AutoProcessor
    from transformers.models.hunyuan_vl import HunYuanVLConfig

    processor = AutoProcessor.from_pretrained(name_or_path, **{**kwargs, "backend": "pil"})
    backend = type(processor.image_processor).__name__
    if backend != "HunYuanVLImageProcessorPil":
        raise AdaptationError(f"expected the PIL image processor, transformers loaded {backend} from {name_or_path}")
    # By class, not through AutoConfig: vLLM re-registers the model type in processes that imported it.
    _bind_positions(processor, HunYuanVLConfig.from_pretrained(name_or_path))
    if not is_disabled("A1"):
        _relax_validation(processor)
    return processor


def _apply(module: ModuleType) -> None:
    original = module.hf_processor

    def hf_processor(name_or_path, **kwargs):
        from transformers import PretrainedConfig

        config, _ = PretrainedConfig.get_config_dict(name_or_path)
        if config.get("model_type") == MODEL_TYPE:
            return load_processor(name_or_path, **kwargs)
        return original(name_or_path, **kwargs)

    mark(hf_processor, "A2")
    for name in (MODULE, *_REEXPORTS):
        holder = sys.modules.get(name)
        if holder is not None and getattr(holder, "hf_processor", None) is original:
            holder.hf_processor = hf_processor


def _check_stripped_text(_: ModuleType) -> None:
    """A1 lives in :func:`load_processor`; this step exists so that it can be listed and disabled."""


STEPS = [
    Step(
        "A2",
        MODULE,
        _apply,
        ((MODULE, "hf_processor"), ("verl.utils", "hf_processor"), ("verl.workers.config.model", "hf_processor")),
        "processor and four-axis positions",
    ),
    Step("A1", MODULE, _check_stripped_text, (), "placeholders after the rollout"),
]

__all__ = ["STEPS", "is_hunyuan_processor", "load_processor"]
