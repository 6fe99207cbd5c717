"""Files that appear complete or not at all."""

import contextlib
import fcntl
import glob
import os
from collections.abc import Iterator
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from data.schema import SCHEMA

_TEMPORARY = ".prepare_data.tmp"
_ROWS_PER_GROUP = 1024
_BYTES_PER_GROUP = 8 << 20


class AtomicFile:
    """A file that is written beside its final place and appears there by `publish`.

    A run that is killed leaves at most the temporary file, which the next run for the same place removes: the writer
    holds a lock on it, so a temporary file without one belongs to nobody.
    """

    def __init__(self, path: str):
        self.path = os.path.abspath(path)
        folder, name = os.path.split(self.path)
        self._temporary = os.path.join(folder, f".{name}.{os.getpid()}{_TEMPORARY}")
        self.handle: IO[bytes] = open(self._temporary, "wb")  # noqa: SIM115
        with contextlib.suppress(OSError):  # a file system without locks, where stale files stay
            fcntl.flock(self.handle, fcntl.LOCK_EX)
        self.empty = False

    def sync(self) -> None:
        self.handle.flush()
        os.fsync(self.handle.fileno())

    def appear(self) -> None:
        """Move the file to its place; an `empty` one removes what is there."""
        if self.empty:
            _unlink(self.path)
            self.discard()
        else:
            os.replace(self._temporary, self.path)
            self.handle.close()

    def discard(self) -> None:
        """Remove what was written; does nothing after `appear`."""
        if not self.handle.closed:
            self.handle.close()
            _unlink(self._temporary)


class ParquetSink:
    """Writes rows of `schema.SCHEMA` in groups of bounded size."""

    def __init__(self, path: str):
        self._file = AtomicFile(path)
        self._writer = pq.ParquetWriter(self._file.handle, SCHEMA, compression="zstd")
        self._rows: list[dict[str, Any]] = []
        self._bytes = 0

    def add(self, row: dict[str, Any], size: int) -> None:
        """`size`: about how many bytes the row takes."""
        self._rows.append(row)
        self._bytes += size
        if len(self._rows) >= _ROWS_PER_GROUP or self._bytes >= _BYTES_PER_GROUP:
            self._flush()

    def finish(self) -> AtomicFile:
        """The complete file, for `publish`."""
        self._flush()
        self._writer.close()
        return self._file

    def discard(self) -> None:
        """Remove what was written; does nothing once the finished file has appeared."""
        if self._file.handle.closed:
            return
        try:
            self._writer.close()
        finally:
            self._file.discard()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(pa.Table.from_pylist(self._rows, schema=SCHEMA))
            self._rows, self._bytes = [], 0


def stage_lines(path: str, lines: Iterator[bytes]) -> AtomicFile:
    """A file of these lines, for `publish`; without any line an empty one."""
    file = AtomicFile(path)
    file.handle.writelines(lines)
    file.empty = file.handle.tell() == 0
    return file


def publish(files: list[AtomicFile], gone: list[str]) -> None:
    """Put complete files in place, in order, after removing the paths in `gone`, last one first."""
    for file in files:
        file.sync()
    for path in reversed(gone):
        _unlink(path)
    for file in files:
        file.appear()
    for folder in {os.path.dirname(file.path) for file in files}:
        _sync_folder(folder)


def remove_stale(path: str) -> None:
    """Remove temporary files that killed runs left for this output."""
    folder, name = os.path.split(os.path.abspath(path))
    for temporary in glob.glob(os.path.join(glob.escape(folder), f".{glob.escape(name)}.*{_TEMPORARY}")):
        with contextlib.suppress(OSError), open(temporary, "rb") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(temporary)


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
