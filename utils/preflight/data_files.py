"""What the parquet files hold: columns, rows by task type, images per row, and a sample of rows spread over the file."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

SAMPLE_ROWS = 64
SAMPLE_GROUPS = 4
"""At most so many row groups are read for the evenly spread part of the sample."""


@dataclass
class Scan:
    """One pass over the two or three narrow columns."""

    task_types: Counter[str] = field(default_factory=Counter)
    first_rows: dict[str, int] = field(default_factory=dict)
    """Task type -> row number of its first sample."""
    most_images: int = 0
    rows_by_images: Counter[int] = field(default_factory=Counter)


class DataFile:
    """A parquet file; every property is read once, on first use. Raises OSError and pyarrow.ArrowException."""

    def __init__(self, path: str, image_key: str = "images"):
        self.path = path
        self.image_key = image_key

    @cached_property
    def _file(self) -> pq.ParquetFile:
        return pq.ParquetFile(self.path)

    @property
    def schema(self) -> pa.Schema:
        return self._file.schema_arrow

    @property
    def rows(self) -> int:
        return self._file.metadata.num_rows

    @cached_property
    def scan(self) -> Scan:
        """Task types (``extra_info.task_type``, or ``data_source`` where that is empty) and image counts of all rows."""
        found, place = Scan(), 0
        names = self.schema.names
        columns = ["data_source"] if "data_source" in names else []
        if _has_task_type(self.schema):
            columns.append("extra_info.task_type")
        counts_images = self.image_key in names and _is_list(self.schema.field(self.image_key).type)
        if counts_images:
            columns.append(self.image_key)
        for batch in self._file.iter_batches(columns=columns, batch_size=65536):
            for offset, name in enumerate(_task_types(batch)):
                found.task_types[name] += 1
                found.first_rows.setdefault(name, place + offset)
            if counts_images:
                lengths = pc.value_counts(pc.fill_null(pc.list_value_length(batch.column(self.image_key)), 0))
                for entry in lengths.to_pylist():
                    found.rows_by_images[entry["values"]] += entry["counts"]
            place += batch.num_rows
        found.most_images = max(found.rows_by_images, default=0)
        return found

    @cached_property
    def sample(self) -> list[tuple[int, dict[str, Any]]]:
        """Up to 64 (row number, row), spread over the file, and the first row of every task type."""
        wanted = set(self.scan.first_rows.values())
        starts, place = [], 0
        for group in range(self._file.num_row_groups):
            starts.append(place)
            place += self._file.metadata.row_group(group).num_rows
        groups = range(0, len(starts), max(1, -(-len(starts) // SAMPLE_GROUPS)))
        for group in groups:
            size = self._file.metadata.row_group(group).num_rows
            step = max(1, size * len(groups) // SAMPLE_ROWS)
            wanted.update(range(starts[group], starts[group] + size, step))
        by_group: dict[int, list[int]] = defaultdict(list)
        for row in sorted(wanted):
            by_group[max(i for i, start in enumerate(starts) if start <= row)].append(row)
        found = []
        for group, rows in by_group.items():
            table = self._file.read_row_group(group).take([row - starts[group] for row in rows])
            found.extend(zip(rows, table.to_pylist(), strict=True))
        return found


def task_type_of(row: dict[str, Any]) -> str:
    """The name of a row's task: ``extra_info.task_type``, or ``data_source`` where that is empty."""
    extra = row.get("extra_info")
    name = extra.get("task_type") if isinstance(extra, dict) else ""
    return name if isinstance(name, str) and name.strip() else str(row.get("data_source") or "")


def _has_task_type(schema: pa.Schema) -> bool:
    if "extra_info" not in schema.names:
        return False
    kind = schema.field("extra_info").type
    return pa.types.is_struct(kind) and kind.get_field_index("task_type") >= 0


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def _task_types(batch: pa.RecordBatch) -> list[str]:
    sources = batch.column("data_source").to_pylist() if "data_source" in batch.schema.names else [""] * batch.num_rows
    if "extra_info" not in batch.schema.names:
        return [source or "" for source in sources]
    named = pc.struct_field(batch.column("extra_info"), "task_type").to_pylist()
    return [name if name and name.strip() else source or "" for name, source in zip(named, sources, strict=True)]
