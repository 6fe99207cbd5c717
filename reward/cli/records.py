"""Reading samples: JSON Lines files (plain, .gz, .zst) and the parquet files that verl trains on, as plain mappings.

A line that cannot be used is a :class:`BadLine` in the stream, in its place: the caller decides, nothing is lost.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from reward.cli.errors import UsageError

_BATCH_ROWS = 512
_WANTED_COLUMNS = ("data_source", "reward_model", "extra_info")


@dataclass(frozen=True)
class BadLine:
    """A line that is no sample: ``field`` is "" when the line as a whole is at fault."""

    line: int
    field: str
    reason: str
    raw: str


def open_lines(path: Path) -> BinaryIO:
    """Open a JSON Lines file for reading bytes, decompressing by its suffix.

    Raises:
        UsageError: there is no such file.
    """
    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    if path.suffix == ".zst":
        import zstandard

        return io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(path.open("rb"), closefd=True))
    return path.open("rb")


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Line numbers from 1 and lines without their end; blank lines are skipped.

    Raises:
        UsageError: the file is missing, or its compressed data is damaged.
    """
    number = 0
    try:
        with open_lines(path) as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, line.rstrip(b"\r\n")
    except (EOFError, gzip.BadGzipFile) as error:
        raise UsageError(f"{path}: damaged compressed data after line {number}: {error}") from error


def parse_line(number: int, raw: bytes) -> dict[str, Any] | BadLine:
    """The JSON object of a line."""
    try:
        record = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        return BadLine(number, "", f"not UTF-8 at byte {error.start}", raw.decode("utf-8", "replace"))
    except json.JSONDecodeError as error:
        return BadLine(number, "", f"not JSON: {error.msg} at column {error.colno}", raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        return BadLine(number, "", f"not usable JSON: {error}", raw.decode("utf-8"))
    if not isinstance(record, dict):
        return BadLine(number, "", f"a {type(record).__name__}, expected an object", raw.decode("utf-8"))
    return record


def count_lines(path: Path) -> int:
    """Number of lines that are not blank."""
    return sum(1 for _ in read_lines(path))


def read_references(path: Path) -> Iterator[tuple[int, dict[str, Any] | BadLine]]:
    """Rows of a dataset as (row number, scoring request without response).

    Parquet rows count from 0, lines from 1. Parquet files have verl's columns ``reward_model.ground_truth`` and
    ``extra_info``; JSON Lines files have those, or ``ref_answer`` and ``task_type``.

    Raises:
        UsageError: the file is missing, is neither kind, or is a parquet file without the columns.
    """
    if path.suffix == ".parquet":
        yield from _read_parquet(path)
        return
    for number, raw in read_lines(path):
        record = parse_line(number, raw)
        yield number, _reference_of(number, record, raw) if isinstance(record, dict) else record


def count_rows(path: Path) -> int:
    """Number of rows that :func:`read_references` will deliver."""
    return _parquet_file(path).metadata.num_rows if path.suffix == ".parquet" else count_lines(path)


def _read_parquet(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    file = _parquet_file(path)
    present = set(file.schema_arrow.names)
    missing = [name for name in _WANTED_COLUMNS[1:] if name not in present]
    if missing:
        raise UsageError(
            f"{path}: no column {' and '.join(missing)}; convert raw data with data/prepare_data.py first "
            f"(columns found: {', '.join(sorted(present))})"
        )
    row = 0
    for batch in file.iter_batches(_BATCH_ROWS, columns=[name for name in _WANTED_COLUMNS if name in present]):
        for record in batch.to_pylist():
            yield row, _verl_reference(record)
            row += 1


def _parquet_file(path: Path) -> Any:
    import pyarrow
    import pyarrow.parquet

    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    try:
        return pyarrow.parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise UsageError(f"{path}: not a parquet file: {error}") from error


def _reference_of(number: int, record: dict[str, Any], raw: bytes) -> dict[str, Any] | BadLine:
    if "reward_model" in record:
        return _verl_reference(record)
    if "ref_answer" not in record:
        reason = "missing, and there is no reward_model.ground_truth either"
        return BadLine(number, "ref_answer", reason, raw.decode("utf-8"))
    return record


def _verl_reference(record: Mapping[str, Any]) -> dict[str, Any]:
    extra_info = record.get("extra_info")
    reward_model = record.get("reward_model")
    return {
        **(extra_info if isinstance(extra_info, Mapping) else {}),
        "data_source": record.get("data_source"),
        "ref_answer": reward_model.get("ground_truth") if isinstance(reward_model, Mapping) else None,
    }
