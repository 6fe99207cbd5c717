"""B3. Which prompts are too long, counted without decoding an image.

Symptom without it: upstream's filter opens, decodes and resizes every image of the data set at each start (hours for a
million pages), and turns whatever goes wrong into "too long".
Goes when upstream counts image tokens from sizes and reports its drops.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from io import BytesIO
from itertools import islice
from typing import Any

from PIL import Image

from verl_hyocr.image_tokens import ImageTokenRule

TOO_LONG = "over max_prompt_length"
NO_IMAGE = "an image cannot be used"
NO_PROMPT = "the prompt cannot be built"
_ROWS_AT_ONCE = 1024
# Settings of a processor call that do not touch sizes.
_HARMLESS_KWARGS = frozenset({"backend", "use_fast", "return_mm_token_type_ids"})


@dataclass(frozen=True)
class Dropped:
    """One row that was left out. ``index`` is its place in the data before the filter, ``length`` -1 when unknown."""

    index: int
    row_id: str
    reason: str
    detail: str
    length: int = -1


@dataclass
class FilterReport:
    """What a filter run kept and dropped."""

    kept: list[int] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    seconds: float = 0.0

    def summary(self, examples: int = 3) -> str:
        """A few lines for a log: counts, then examples of every reason."""
        total = len(self.kept) + len(self.dropped)
        lines = [f"prompt filter: kept {len(self.kept)} of {total} rows in {self.seconds:.1f} s"]
        for reason, count in Counter(drop.reason for drop in self.dropped).most_common():
            lines.append(f"  dropped {count}: {reason}")
            for drop in islice((drop for drop in self.dropped if drop.reason == reason), examples):
                lines.append(f"    row {drop.index} (id {drop.row_id or '-'}): {drop.detail}")
        return "\n".join(lines)


class PromptFilter:
    """Measures prompts: text through the chat template and the tokenizer, images by their size.

    Args:
        processor: a HunYuanVLProcessor.
        build_messages: turns a row into chat messages with content parts (``RLHFDataset._build_messages``).
        max_prompt_length: longest kept prompt, in tokens.
        template_kwargs: for ``apply_chat_template``, as training passes them.
        workers: threads that read image headers.
    """

    def __init__(
        self,
        processor: Any,
        build_messages: Callable[[dict[str, Any]], list[dict[str, Any]]],
        max_prompt_length: int,
        template_kwargs: dict[str, Any] | None = None,
        workers: int = 8,
    ):
        self._processor = processor
        self._build_messages = build_messages
        self._limit = max_prompt_length
        self._template_kwargs = template_kwargs or {}
        self._workers = max(1, workers)
        self._rule = ImageTokenRule.from_processor(processor)

    def run(self, rows: Iterable[dict[str, Any]]) -> FilterReport:
        """Judge all rows, in order. A row whose prompt or image is unusable is dropped with its reason."""
        report, started = FilterReport(), time.monotonic()
        numbered = enumerate(rows)
        with ThreadPoolExecutor(self._workers) as threads:
            while block := list(islice(numbered, _ROWS_AT_ONCE)):
                self._judge(block, threads, report)
        report.seconds = time.monotonic() - started
        return report

    def _judge(
        self, block: list[tuple[int, dict[str, Any]]], threads: ThreadPoolExecutor, report: FilterReport
    ) -> None:
        prompts = [self._prompt(row) for _, row in block]
        images = list(threads.map(self._image_tokens, [prompt.images for prompt in prompts]))
        texts = [prompt.text for prompt in prompts]
        tokens = self._processor.tokenizer(texts, add_special_tokens=False, return_attention_mask=False)["input_ids"]
        for (index, row), prompt, (extra, image_fault), ids in zip(block, prompts, images, tokens):
            fault = prompt.fault or image_fault
            length = len(ids) + extra
            if fault:
                reason = NO_PROMPT if prompt.fault else NO_IMAGE
                report.dropped.append(Dropped(index, _row_id(row), reason, fault))
            elif length > self._limit:
                detail = f"{length} tokens, limit {self._limit}"
                report.dropped.append(Dropped(index, _row_id(row), TOO_LONG, detail, length))
            else:
                report.kept.append(index)

    def _prompt(self, row: dict[str, Any]) -> _Prompt:
        try:
            messages = self._build_messages(row)
            parts = [
                part for message in messages if isinstance(message["content"], list) for part in message["content"]
            ]
            other = sorted({part["type"] for part in parts} - {"text", "image"})
            if other:
                return _Prompt(fault=f"{', '.join(other)} is no input of this model")
            text = self._processor.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=False, **self._template_kwargs
            )
        except Exception as error:  # becomes the reason for this row; the other rows go on
            return _Prompt(fault=f"{type(error).__name__}: {error}")
        images = [part["image"] for part in parts if part["type"] == "image"]
        placeholders = text.count(self._processor.image_token)
        if placeholders != len(images):
            return _Prompt(fault=f"{placeholders} image placeholders after the chat template for {len(images)} images")
        return _Prompt(text, images)

    def _image_tokens(self, images: list[Any]) -> tuple[int, str]:
        """Tokens the images add to those of their placeholders, or what is wrong with one of them."""
        total = 0
        for image in images:
            try:
                total += self._rule.tokens(*image_size(image)) - 1
            except Exception as error:  # Pillow raises whatever a damaged header makes it raise
                return 0, f"{_name(image)}: {type(error).__name__}: {error}"
        return total, ""


def can_count(processor: Any, mm_processor_kwargs: dict[str, Any]) -> bool:
    """Whether sizes alone decide the length: not with settings that change how this processor resizes."""
    return set(mm_processor_kwargs) <= _HARMLESS_KWARGS and not mm_processor_kwargs.get("use_fast")


def image_size(source: Any) -> tuple[int, int]:
    """``(width, height)`` of a PIL image, a path or ``file://`` URL, or encoded bytes; reads the header only.

    Raises:
        TypeError: for anything else.
        OSError: when the file is missing or is no image.
    """
    if isinstance(source, Image.Image):
        return source.size
    if isinstance(source, bytes):
        with Image.open(BytesIO(source)) as image:
            return image.size
    if isinstance(source, str | os.PathLike):
        with Image.open(os.fspath(source).removeprefix("file://")) as image:
            return image.size
    raise TypeError(f"an image must be a path, bytes or a PIL image, not {type(source).__name__}")


@dataclass(frozen=True)
class _Prompt:
    text: str = ""
    images: list[Any] = field(default_factory=list)
    fault: str = ""


def _row_id(row: dict[str, Any]) -> str:
    info = row.get("extra_info")
    return str(info.get("id") or info.get("index", "")) if isinstance(info, dict) else ""


def _name(image: Any) -> str:
    return image if isinstance(image, str) else type(image).__name__
