"""How many tokens an image costs HunYuanVL, from its width and height alone: nothing is decoded.

The rule is that of ``HunYuanVLImageProcessor`` (``smart_resize``) and ``HunYuanVLProcessor`` (one token per merged
patch, one per row of them, two more per image). No heavy imports: data preparation uses it without torch.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_ASPECT_RATIO = 200


@dataclass(frozen=True)
class ImageTokenRule:
    """The settings of an image processor that decide the size an image gets and the tokens it costs.

    ``min_pixels`` and ``max_pixels`` bound the area after resizing; ``patch_size * merge_size`` divides both sides. The
    defaults are the processor's own.
    """

    patch_size: int = 16
    merge_size: int = 2
    min_pixels: int = 512 * 512
    max_pixels: int = 2048 * 2048
    do_resize: bool = True
    cat_extra_token: bool = True

    @classmethod
    def from_processor(cls, processor: Any) -> ImageTokenRule:
        """The rule of a loaded ``HunYuanVLProcessor``."""
        image = processor.image_processor
        return cls(
            patch_size=image.patch_size,
            merge_size=image.merge_size,
            min_pixels=image.size["shortest_edge"],
            max_pixels=image.size["longest_edge"],
            do_resize=image.do_resize,
            cat_extra_token=processor.cat_extra_token,
        )

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike) -> ImageTokenRule:
        """The rule of a checkpoint folder, read from its processor files the way transformers does: the
        ``image_processor`` section of ``processor_config.json`` when there is one, else ``preprocessor_config.json``.

        Raises:
            FileNotFoundError: the folder has neither.
        """
        folder = Path(folder)
        processor = _read_json(folder / "processor_config.json") or {}
        settings = processor.get("image_processor") or _read_json(folder / "preprocessor_config.json")
        if settings is None:
            raise FileNotFoundError(f"{folder}: no image processor settings (preprocessor_config.json)")
        return cls.from_settings({"cat_extra_token": processor.get("cat_extra_token"), **settings})

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> ImageTokenRule:
        """The rule of a processor's settings as saved; what is absent or null keeps the processor's default."""
        size = settings.get("size") or {}
        found = {
            "patch_size": settings.get("patch_size"),
            "merge_size": settings.get("merge_size"),
            "min_pixels": _first(settings.get("min_pixels"), size.get("shortest_edge")),
            "max_pixels": _first(settings.get("max_pixels"), size.get("longest_edge")),
            "do_resize": settings.get("do_resize"),
            "cat_extra_token": settings.get("cat_extra_token"),
        }
        return cls(**{name: value for name, value in found.items() if value is not None})

    def target_size(self, width: int, height: int) -> tuple[int, int]:
        """``(width, height)`` the processor resizes an image to.

        Raises:
            ValueError: a side is not positive, or one is over 200 times the other (the processor refuses those).
        """
        if min(width, height) <= 0:
            raise ValueError(f"an image of {width}x{height} pixels has no content")
        if max(width, height) / min(width, height) > MAX_ASPECT_RATIO:
            raise ValueError(f"aspect ratio {max(width, height) / min(width, height):.0f} is over {MAX_ASPECT_RATIO}")
        if not self.do_resize:
            return width, height
        factor = self.patch_size * self.merge_size
        # Python's rounding (halves to even) is part of the rule.
        new_width, new_height = round(width / factor) * factor, round(height / factor) * factor
        if new_width * new_height > self.max_pixels:
            shrink = math.sqrt((height * width) / self.max_pixels)
            new_width = max(factor, math.floor(width / shrink / factor) * factor)
            new_height = max(factor, math.floor(height / shrink / factor) * factor)
        elif new_width * new_height < self.min_pixels:
            grow = math.sqrt(self.min_pixels / (height * width))
            new_width = math.ceil(width * grow / factor) * factor
            new_height = math.ceil(height * grow / factor) * factor
        return new_width, new_height

    def tokens(self, width: int, height: int) -> int:
        """Placeholder tokens of one image, the start and end token around it not counted.

        Raises:
            ValueError: as :meth:`target_size`.
        """
        new_width, new_height = self.target_size(width, height)
        columns = new_width // self.patch_size // self.merge_size
        rows = new_height // self.patch_size // self.merge_size
        return rows * (columns + 1) + (2 if self.cat_extra_token else 0)

    def scale(self, width: int, height: int) -> str:
        """``"down"`` or ``"up"`` when the pixel bounds make the processor shrink or enlarge the image, else ``""``.

        The rounding of the sides to a multiple of ``patch_size * merge_size``, which every image gets, is no scaling.
        """
        if not self.do_resize:
            return ""
        factor = self.patch_size * self.merge_size
        rounded = round(width / factor) * factor * round(height / factor) * factor
        return "down" if rounded > self.max_pixels else "up" if rounded < self.min_pixels else ""


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
