"""B3. The filtered data set on disk, so that only the first start pays for the filter.

A cache entry is one Arrow file named by the digest of everything that decides its content. It is written to a temporary
name and renamed; starters that come while it is written wait for it (a lock beside it), and without file locks each writes
its own and the last one stays. A damaged entry is built again. Entries are never removed: delete the folder at any time.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import datasets
import pyarrow as pa

logger = logging.getLogger(__name__)

FORMAT = 1
FOLDER = "dataset_cache"
_ROWS_AT_ONCE = 1024


def digest(parts: dict[str, Any]) -> str:
    """Name of a cache entry: equal for equal parts, whatever the order of their keys."""
    text = json.dumps({"format": FORMAT, **parts}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def file_state(path: str) -> dict[str, Any]:
    """What tells one version of a file from the next: its real path, size and time of change.

    Raises:
        OSError: when there is no such file.
    """
    status = os.stat(path)
    return {"path": os.path.realpath(path), "size": status.st_size, "mtime_ns": status.st_mtime_ns}


def tokenizer_state(tokenizer: Any) -> str:
    """Digest of what a tokenizer's files made of it: vocabulary, merges, added tokens, chat template."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    core = json.loads(backend.to_str()) if backend is not None else tokenizer.get_vocab()
    if backend is not None:
        # Left behind by the last call, whatever it asked for.
        core = {name: value for name, value in core.items() if name not in ("truncation", "padding")}
    return _sha(core, getattr(tokenizer, "chat_template", None), getattr(tokenizer, "special_tokens_map", None))


def processor_state(processor: Any) -> str:
    """Digest of what a processor's files made of it: all image settings and its chat template. "" without a processor."""
    if processor is None:
        return ""
    image = processor.image_processor
    settings = [type(image).__name__, image.to_dict(), getattr(processor, "cat_extra_token", None)]
    return _sha(settings, getattr(processor, "chat_template", None), tokenizer_state(processor.tokenizer))


class DatasetCache:
    """Cache entries of one folder.

    Args:
        folder: created when needed. One that cannot be written to costs a warning, not the run.
    """

    def __init__(self, folder: str):
        self.folder = folder

    def load_or_build(
        self, key: str, build: Callable[[], datasets.Dataset], force_rebuild: bool = False
    ) -> datasets.Dataset:
        """The entry of this key, memory-mapped; built and stored first when it is missing (or ``force_rebuild``)."""
        path = os.path.join(self.folder, f"{key}.arrow")
        if not force_rebuild and (found := _load(path)) is not None:
            return found
        try:
            os.makedirs(self.folder, exist_ok=True)
            lock = open(os.path.join(self.folder, f"{key}.lock"), "w")  # noqa: SIM115
        except OSError as error:
            logger.warning("no dataset cache in %s (%s): set data.dataset_cache_dir", self.folder, error)
            return build()
        with lock, _locked(lock):
            # Whoever held the lock before has built it.
            if not force_rebuild and (found := _load(path)) is not None:
                return found
            dataset = build()
            try:
                _store(dataset, path)
            except OSError as error:
                logger.warning("the dataset cache %s was not written: %s", path, error)
                return dataset
            stored = _load(path)
            return dataset if stored is None else stored

    def write_lines(self, key: str, suffix: str, records: Iterable[dict[str, Any]]) -> str:
        """Write JSON lines beside an entry; returns the path, or "" when the folder cannot be written to."""
        path = os.path.join(self.folder, f"{key}.{suffix}.jsonl")
        try:
            os.makedirs(self.folder, exist_ok=True)
            with _replacing(path) as handle:
                for record in records:
                    handle.write(json.dumps(record, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")
        except OSError as error:
            logger.warning("%s was not written: %s", path, error)
            return ""
        return path


def _load(path: str) -> datasets.Dataset | None:
    if not os.path.exists(path):
        return None
    try:
        return datasets.Dataset.from_file(path)
    except (OSError, ValueError, pa.ArrowException) as error:
        logger.warning("the dataset cache %s is damaged and is built again: %s", path, error)
        return None


def _store(dataset: datasets.Dataset, path: str) -> None:
    schema = dataset.features.arrow_schema  # carries the types that Arrow alone does not know
    with _replacing(path) as handle, pa.ipc.new_stream(handle, schema) as writer:
        for batch in dataset.with_format("arrow").iter(batch_size=_ROWS_AT_ONCE):
            writer.write_table(batch.cast(schema))


@contextlib.contextmanager
def _replacing(path: str) -> Iterator[Any]:
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


@contextlib.contextmanager
def _locked(handle: Any) -> Iterator[None]:
    with contextlib.suppress(OSError):  # a file system without locks: each starter builds its own
        fcntl.flock(handle, fcntl.LOCK_EX)
    yield


def _sha(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
