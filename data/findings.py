"""Rejects and warnings of a run, kept on disk in the order of file and line, whatever the order they are found in."""

import json
import struct
from collections import Counter
from collections.abc import Iterator
from typing import Any

from data.external_sort import ExternalSorter
from data.rejects import Problem

_PLACE = struct.Struct(">IQI")
_SHOWN = 20


class Findings:
    """One kind of findings of all inputs.

    Args:
        inputs: names of the input files, by number.
        sorter: where the findings are kept.
    """

    def __init__(self, inputs: list[str], sorter: ExternalSorter):
        self._inputs = inputs
        self._sorter = sorter
        self.kinds: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._sorter)

    def add(self, file: int, line: int, problem: Problem, raw: str | None = None) -> None:
        """`raw` is the input line, decoded with `surrogateescape`."""
        self.kinds[problem.kind] += 1
        record = {
            "file": self._inputs[file],
            "line": line,
            "field": problem.field,
            "kind": problem.kind,
            "reason": problem.reason,
        }
        if raw is not None:
            record["raw"] = raw
        self._sorter.add(_PLACE.pack(file, line, len(self._sorter)), _json_line(record))

    def lines(self) -> Iterator[bytes]:
        """JSON lines with file, line, field, kind, reason and, for rejects, raw."""
        return (line for _, line in self._sorter)

    def first(self) -> list[dict[str, Any]]:
        """The first few, as objects."""
        return [json.loads(line) for line, _ in zip(self.lines(), range(_SHOWN))]


def _json_line(record: dict[str, Any]) -> bytes:
    text = json.dumps(record, ensure_ascii=False) + "\n"
    try:
        return text.encode()
    except UnicodeEncodeError:
        # Bytes that are no UTF-8 came in as surrogates. In ASCII escapes they survive: `raw` of the parsed line,
        # encoded with `surrogateescape`, is the input line again.
        return json.dumps(record).encode() + b"\n"
