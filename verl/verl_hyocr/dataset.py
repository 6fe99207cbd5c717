"""The training dataset: verl's, with images taken as they are.

Use: ``data.custom_cls.path=pkg://verl_hyocr.dataset data.custom_cls.name=HyocrDataset`` (set by the launcher).

Upstream's ``RLHFDataset`` resizes images with Qwen's rule before the processor resizes them with HunYuanVL's, on a patch size
of 14 where this model has 16. Here an image goes to the processor as it was decoded, in RGB.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any

from PIL import Image
from verl.utils.dataset.rl_dataset import RLHFDataset


def load_image(source: Any) -> Image.Image:
    """An RGB image from what upstream puts into a message: a PIL image, a path or ``file://`` URL, or raw bytes.

    Raises:
        TypeError: for anything else.
        OSError: when the file is missing or is no image.
    """
    if isinstance(source, Image.Image):
        return source.convert("RGB")
    if isinstance(source, bytes):
        return Image.open(BytesIO(source)).convert("RGB")
    if isinstance(source, str):
        with Image.open(source.removeprefix("file://")) as image:
            return image.convert("RGB")
    raise TypeError(f"an image must be a path, bytes or a PIL image, not {type(source).__name__}")


def images_of(messages: list[dict]) -> list[Image.Image]:
    """All images of a conversation in order of appearance."""
    return [
        load_image(part["image"])
        for message in messages
        if isinstance(message.get("content"), list)
        for part in message["content"]
        if isinstance(part, dict) and part.get("type") == "image"
    ]


class HyocrDataset(RLHFDataset):
    """Rows of the kit's parquet schema (``images``: list of absolute paths); see ``data/prepare_data.py``."""

    @classmethod
    def _process_multi_modal_info(cls, messages, image_patch_size, config):
        return images_of(messages) or None, None, None
