"""Small questions about HunYuanVL objects and checkpoints; imports nothing heavy."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

MODEL_TYPE = "hunyuan_vl"
HY3_MODEL_TYPE = "hy_v3"


def is_hunyuan_model(model: Any) -> bool:
    """Whether a (possibly wrapped) transformers model is HunYuanVL."""
    return getattr(getattr(model, "config", None), "model_type", None) == MODEL_TYPE


def is_hy3_model(model: Any) -> bool:
    """Whether a (possibly wrapped) transformers model is Hy3 (HYV3, text, mixture of experts)."""
    return getattr(getattr(model, "config", None), "model_type", None) == HY3_MODEL_TYPE


def is_hunyuan_processor(processor: Any) -> bool:
    return processor is not None and type(processor).__name__ == "HunYuanVLProcessor"


def read_config(path: str | os.PathLike) -> dict[str, Any]:
    """``config.json`` of a local checkpoint folder.

    Raises:
        FileNotFoundError: with the path that was looked for.
    """
    return json.loads((Path(path) / "config.json").read_text(encoding="utf-8"))


def is_hunyuan_checkpoint(path: str | os.PathLike) -> bool:
    """Whether a local folder holds a HunYuanVL checkpoint (by ``config.json``'s ``model_type``)."""
    try:
        return read_config(path).get("model_type") == MODEL_TYPE
    except (FileNotFoundError, NotADirectoryError):
        return False
