"""Lengths in the model's tokens, counted the way training counts them."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

from data.prompts import IMAGE_TAG
from data.schema import Message


def import_image_tokens() -> ModuleType:
    """`verl_hyocr.image_tokens`, from the installed fork or from this repository's copy of it."""
    try:
        return importlib.import_module("verl_hyocr.image_tokens")
    except ModuleNotFoundError:
        sys.path.append(str(Path(__file__).resolve().parent.parent / "verl"))
        return importlib.import_module("verl_hyocr.image_tokens")


class TokenCounter:
    """Counts prompts and answers with a checkpoint's tokenizer and chat template, and images by their size.

    Raises:
        OSError: the folder holds no tokenizer or no image processor settings.
    """

    def __init__(self, model: str):
        from transformers import AutoTokenizer

        self.rule = import_image_tokens().ImageTokenRule.from_pretrained(model)
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(model)
        except (ValueError, KeyError) as error:
            raise OSError(f"{model}: no usable tokenizer ({error})") from error
        if not self._tokenizer.chat_template:
            raise OSError(f"{model}: the tokenizer has no chat template")

    def text(self, text: str) -> int:
        return len(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def prompt(self, messages: list[Message], image_sizes: list[tuple[int, int]]) -> int:
        """Tokens of a chat with its generation prompt. `image_sizes` are (width, height) in the order of the slots."""
        chat = [{"role": message["role"], "content": chat_parts(message["content"])} for message in messages]
        text = self._tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        # The template writes one placeholder token an image, which the processor repeats.
        return self.text(text) + sum(self.rule.tokens(*size) - 1 for size in image_sizes)


def chat_parts(content: str) -> list[dict[str, str]]:
    """Content parts of a message for a chat template: an image part for every `<image>`, text parts between them."""
    parts: list[dict[str, str]] = []
    for number, text in enumerate(content.split(IMAGE_TAG)):
        if number:
            parts.append({"type": "image"})
        if text:
            parts.append({"type": "text", "text": text})
    return parts
