"""Read records from files of any size: JSON Lines (plain, gzip, Zstandard), standard input, parquet.

The kind of a file is told by its first bytes, not by its name.
"""

import glob
import gzip
import json
import os
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from data.rejects import Problem

STDIN = "-"
_GZIP, _ZSTD, _PARQUET = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1"
_READ_ERRORS = (OSError, EOFError, zlib.error, zstandard.ZstdError, pa.ArrowException)


@dataclass(frozen=True)
class Line:
    """One record of an input: its bytes, or the problem that kept them from being read.

    `number` counts from 1: lines of a text file, rows of a parquet file. `offset` is how many bytes of the file (as
    stored) were consumed, for a progress bar.
    """

    number: int
    raw: bytes
    offset: int
    problem: Problem | None = None

    def text(self) -> str:
        """The record as text; bytes that are no UTF-8 become surrogates, from which `surrogateescape` restores them."""
        return self.raw.decode("utf-8", "surrogateescape")


class InputError(ValueError):
    """An input cannot be used at all; the message names it and the remedy."""


def expand_inputs(patterns: list[str]) -> list[str]:
    """File names for a list of names, globs and `-`, in order; a glob's matches are sorted.

    Raises:
        InputError: nothing matches, a folder, or one file named twice.
    """
    names: list[str] = []
    for pattern in patterns:
        if pattern == STDIN or os.path.exists(pattern):
            matches = [pattern]
        elif glob.has_magic(pattern):
            matches = sorted(name for name in glob.glob(pattern, recursive=True) if not os.path.isdir(name))
            if not matches:
                raise InputError(f"{pattern}: no file matches")
        else:
            raise InputError(f"{pattern}: no such file")
        names.extend(matches)
    seen: dict[str, str] = {}
    for name in names:
        if name != STDIN and os.path.isdir(name):
            raise InputError(f"{name}: is a folder; name its files, e.g. '{name.rstrip('/')}/*.jsonl'")
        identity = name if name == STDIN else os.path.realpath(name)
        if identity in seen:
            raise InputError(f"{name}: given twice (also as {seen[identity]}); every row would be doubled")
        seen[identity] = name
    return names


def stored_size(name: str) -> int:
    """Bytes of the file as stored, 0 when unknown (standard input, a pipe)."""
    return os.path.getsize(name) if name != STDIN and os.path.isfile(name) else 0


def read_lines(name: str, max_line_bytes: int = 64 << 20) -> Iterator[Line]:
    """Yield the records of one input. Blank lines are left out but counted in `number`.

    A fault in the middle of a file ends it with one `Line` whose `problem` says so; what came before stays good.

    Raises:
        InputError: the input cannot be opened.
    """
    try:
        handle: IO[bytes] = sys.stdin.buffer if name == STDIN else open(name, "rb")  # noqa: SIM115
    except OSError as error:
        raise InputError(f"{name}: cannot be opened ({error.strerror or error})") from error
    try:
        head = handle.peek(4)[:4]  # type: ignore[attr-defined]
        if head == _PARQUET:
            if name == STDIN:
                raise InputError("-: a parquet file cannot be read from standard input; name the file")
            yield from _guarded(_parquet_rows(name))
        else:
            yield from _guarded(_text_lines(handle, head, max_line_bytes))
    finally:
        if name != STDIN:
            handle.close()


def _guarded(lines: Iterator[Line]) -> Iterator[Line]:
    last = Line(0, b"", 0)
    while True:
        try:
            last = next(lines)
        except StopIteration:
            return
        except _READ_ERRORS as error:
            reason = f"the input cannot be read from here on ({type(error).__name__}: {error}); restore or re-create it"
            yield Line(last.number + 1, b"", last.offset, Problem("unreadable_input", "", reason))
            return
        yield last


def _text_lines(handle: IO[bytes], head: bytes, max_line_bytes: int) -> Iterator[Line]:
    if head[:2] == _GZIP:
        stream: Any = gzip.GzipFile(fileobj=handle)
    elif head == _ZSTD:
        stream = zstandard.ZstdDecompressor().stream_reader(handle, read_across_frames=True)
    else:
        stream = handle
    number, pending, oversized = 0, b"", False
    while True:
        # One read of the file below at a time: what a damaged archive still gives is not lost with the rest.
        block = stream.read1(1 << 18)
        offset = _position(handle)
        if not block:
            break
        pieces = (pending + block).split(b"\n")
        pending = pieces.pop()
        for piece in pieces:
            number += 1
            yield from _line(number, piece, offset, max_line_bytes, oversized)
            oversized = False
        if len(pending) > max_line_bytes:
            # Keep the start for the report and forget the rest of the line as it comes.
            pending, oversized = pending[:_KEPT_OF_LONG_LINE], True
    if pending or oversized:
        yield from _line(number + 1, pending, offset, max_line_bytes, oversized)


_KEPT_OF_LONG_LINE = 4096


def _line(number: int, raw: bytes, offset: int, max_line_bytes: int, oversized: bool) -> Iterator[Line]:
    if number == 1 and raw.startswith(b"\xef\xbb\xbf"):
        raw = raw[3:]
    if oversized or len(raw) > max_line_bytes:
        reason = (
            f"longer than {max_line_bytes >> 20} MiB (--max-line-mb); raw holds its first {_KEPT_OF_LONG_LINE} bytes"
        )
        yield Line(number, raw[:_KEPT_OF_LONG_LINE], offset, Problem("line_too_long", "", reason))
    elif raw.strip():
        yield Line(number, raw.removesuffix(b"\r"), offset)


def _position(handle: IO[bytes]) -> int:
    try:
        return handle.tell()
    except OSError:  # a pipe
        return 0


def _parquet_rows(name: str) -> Iterator[Line]:
    with pq.ParquetFile(name) as file:
        total, size, number = file.metadata.num_rows, os.path.getsize(name), 0
        for batch in file.iter_batches(batch_size=256):
            for row in batch.to_pylist():
                number += 1
                yield Line(number, _row_bytes(row), size * number // max(total, 1))


def _row_bytes(row: dict[str, Any]) -> bytes:
    # A column that a row does not use is null in parquet, so null means absent at the top level.
    present = {key: value for key, value in row.items() if value is not None}
    return json.dumps(present, ensure_ascii=False, default=_as_text).encode("utf-8", "surrogatepass")


def _as_text(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": len(value)}
    return str(value)
