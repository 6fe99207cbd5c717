"""The training dataset: verl's, with images taken as they are.

Use: ``data.custom_cls.path=pkg://verl_hyocr.dataset data.custom_cls.name=HyocrDataset`` (set by the launcher).

Upstream's ``RLHFDataset`` resizes images with Qwen's rule before the processor resizes them with HunYuanVL's, on a patch size
of 14 where this model has 16. Here an image goes to the processor as it was decoded, in RGB.

B3. Prompts over ``data.max_prompt_length`` are found from image sizes, without decoding, and what is dropped is reported
(:mod:`verl_hyocr.prompt_filter`). ``data.enable_dataset_cache=True`` keeps the filtered data on disk
(:mod:`verl_hyocr.dataset_cache`) in ``data.dataset_cache_dir``, by default the folder ``dataset_cache`` beside the first data
file; ``data.dataset_cache_force_rebuild=True`` builds it anew. The cache knows the data files, the tokenizer, the processor
and every option of the filter; it does not look at image files, so rebuild after replacing images under their old names.
"""

from __future__ import annotations

import logging
import os
from dataclasses import asdict
from io import BytesIO
from typing import Any

import datasets
from omegaconf import OmegaConf
from PIL import Image
from verl.utils.dataset.rl_dataset import RLHFDataset

from verl_hyocr.dataset_cache import FOLDER, DatasetCache, digest, file_state, processor_state, tokenizer_state
from verl_hyocr.hf import is_hunyuan_processor
from verl_hyocr.prompt_filter import FilterReport, PromptFilter, can_count

logger = logging.getLogger(__name__)


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
    """Rows of the kit's parquet schema (``images``: list of absolute paths); see ``data/prepare_data.py``.

    ``filter_report`` says what the filter of this process dropped; None when it did not run (filter off, or from the cache).
    """

    filter_report: FilterReport | None = None

    @classmethod
    def _process_multi_modal_info(cls, messages, image_patch_size, config):
        return images_of(messages) or None, None, None

    def _read_files_and_tokenize(self):
        if not self.config.get("enable_dataset_cache", False):
            super()._read_files_and_tokenize()
            return
        if self.max_samples > 0 and self.shuffle and self.seed is None:
            logger.warning(
                "no dataset cache: data.shuffle with max_samples and without data.seed picks other rows each time"
            )
            super()._read_files_and_tokenize()
            return
        cache = DatasetCache(self._cache_folder())
        key = digest(self._cache_parts())
        force = bool(self.config.get("dataset_cache_force_rebuild", False))
        self.dataframe = None
        dataframe = cache.load_or_build(key, self._read_and_filter, force)
        if self.dataframe is None:
            print(f"dataset len: {len(dataframe)} (from the cache {cache.folder}/{key}.arrow)")
        elif self.filter_report and self.filter_report.dropped:
            path = cache.write_lines(key, "dropped", map(asdict, self.filter_report.dropped))
            print(f"all dropped rows are listed in {path}" if path else "the list of dropped rows was not written")
        self.dataframe = dataframe

    def _read_and_filter(self) -> datasets.Dataset:
        super()._read_files_and_tokenize()
        return self.dataframe

    def __getstate__(self):
        return {name: value for name, value in super().__getstate__().items() if name != "filter_report"}

    def _cache_folder(self) -> str:
        chosen = self.config.get("dataset_cache_dir", None)
        return os.path.expanduser(chosen) if chosen else os.path.join(os.path.dirname(self.data_files[0]), FOLDER)

    def _cache_parts(self) -> dict[str, Any]:
        return {
            "files": [file_state(path) for path in self.data_files],
            "tokenizer": tokenizer_state(self.tokenizer),
            "processor": processor_state(self.processor),
            "filter": self.filter_overlong_prompts,
            "max_prompt_length": self.max_prompt_length,
            "keys": [self.prompt_key, self.image_key, self.video_key, self.audio_key],
            "template_kwargs": _plain(self.apply_chat_template_kwargs),
            "processor_kwargs": _plain(self.mm_processor_kwargs),
            "tools": self.tool_schemas,
            "samples": [self.max_samples, self.shuffle, self.seed],
        }

    def maybe_filter_out_long_prompts(self, dataframe: datasets.Dataset = None) -> datasets.Dataset:
        """Drop prompts over ``max_prompt_length`` and rows that cannot be used, and say so.

        Raises:
            ValueError: no row is left.
        """
        if not self.filter_overlong_prompts:
            return dataframe
        if not is_hunyuan_processor(self.processor) or not can_count(self.processor, _plain(self.mm_processor_kwargs)):
            return super().maybe_filter_out_long_prompts(dataframe)
        tools = {} if self.tool_schemas is None else {"tools": self.tool_schemas}
        prompts = PromptFilter(
            self.processor,
            lambda row: self._build_messages(row, key=self.prompt_key),
            self.max_prompt_length,
            {**_plain(self.apply_chat_template_kwargs), **tools},
            self.num_workers or 1,
        )
        used = (self.prompt_key, self.image_key, self.video_key, self.audio_key, "extra_info")
        rows = dataframe.select_columns([name for name in used if name in dataframe.column_names])
        self.filter_report = prompts.run(rows)
        print(self.filter_report.summary())
        if not self.filter_report.kept:
            raise ValueError(f"every prompt was dropped from {self.data_files}:\n{self.filter_report.summary()}")
        return dataframe.select(self.filter_report.kept)


def _plain(value: Any) -> dict[str, Any]:
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else dict(value or {})
