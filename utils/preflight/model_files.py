"""What the checkpoint folder says, read without torch: configuration, tensor headers, tokenizer, chat template."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from utils.ckpt.hf_folder import TensorInfo, tensor_infos

DTYPE_BYTES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I8": 1, "U8": 1}


@dataclass(frozen=True)
class TextShape:
    """Sizes of the language model that memory and parallel sizes depend on."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    positions: int

    def kv_bytes_per_token(self, bytes_per_value: int) -> int:
        """Keys and values of one token in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * bytes_per_value


class ModelFolder:
    """A checkpoint folder; every property is read once, on first use.

    Properties raise OSError for what is missing and ValueError (FolderError included) for what cannot be read.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder).expanduser()

    @cached_property
    def config(self) -> dict[str, Any]:
        return _read_object(self.folder / "config.json")

    @cached_property
    def text(self) -> TextShape:
        """Raises KeyError naming the missing key."""
        config = {**self.config, **(self.config.get("text_config") or {})}
        heads = config["num_attention_heads"]
        return TextShape(
            layers=config["num_hidden_layers"],
            hidden=config["hidden_size"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            vocab=config["vocab_size"],
            positions=config.get("max_position_embeddings") or 0,
        )

    @cached_property
    def tensors(self) -> dict[str, TensorInfo]:
        """Every tensor of the weight files, from their headers."""
        return tensor_infos(self.folder)

    @cached_property
    def parameters(self) -> int:
        return sum(math.prod(info.shape) for info in self.tensors.values())

    @cached_property
    def weight_bytes(self) -> int:
        return sum(math.prod(info.shape) * DTYPE_BYTES.get(info.dtype, 4) for info in self.tensors.values())

    @cached_property
    def tokenizer_settings(self) -> dict[str, Any]:
        return _read_object(self.folder / "tokenizer_config.json")

    @cached_property
    def tokenizer(self) -> Any:
        """The ``tokenizers.Tokenizer`` of ``tokenizer.json``."""
        from tokenizers import Tokenizer

        path = self.folder / "tokenizer.json"
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing")
        try:
            return Tokenizer.from_file(str(path))
        except Exception as error:  # the Rust library raises plain Exception
            raise ValueError(f"{path}: {error}") from error

    @cached_property
    def chat_template(self) -> str:
        """Source of the chat template, from where transformers looks for it; "" when there is none."""
        path = self.folder / "chat_template.jinja"
        if path.is_file():
            return path.read_text(encoding="utf-8")
        path = self.folder / "chat_template.json"
        if path.is_file():
            return _read_object(path).get("chat_template") or ""
        template = self.tokenizer_settings.get("chat_template") or ""
        if isinstance(template, list):
            template = next((entry["template"] for entry in template if entry.get("name") == "default"), "")
        return template

    @cached_property
    def _template(self) -> Any:
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = _raise
        return environment.from_string(self.chat_template)

    def render(self, messages: list[dict[str, Any]]) -> str:
        """A chat through the template with the generation prompt. Raises jinja2.TemplateError."""
        names = ("bos_token", "eos_token", "pad_token", "unk_token")
        tokens = {name: _token_text(self.tokenizer_settings.get(name)) for name in names}
        return self._template.render(
            messages=messages, add_generation_prompt=True, tools=None, documents=None, **tokens
        )

    def count(self, text: str) -> int:
        """Tokens of ``text``, nothing added."""
        return len(self.tokenizer.encode(text, add_special_tokens=False).ids)


def _raise(message: str) -> None:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _token_text(entry: Any) -> str:
    return entry.get("content", "") if isinstance(entry, dict) else entry or ""


def _read_object(path: Path) -> dict[str, Any]:
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing") from None
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from None
    if not isinstance(read, dict):
        raise ValueError(f"{path} holds no JSON object")
    return read
