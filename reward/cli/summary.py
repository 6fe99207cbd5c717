"""What a scored file looks like in one table: a line per task."""

from __future__ import annotations

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any


class Summary:
    """Counts results per task; mean and accuracy are over the scored ones."""

    def __init__(self) -> None:
        self._decisions: dict[str, Counter[str]] = defaultdict(Counter)
        self._score: dict[str, float] = defaultdict(float)
        self._acc: dict[str, float] = defaultdict(float)

    def add(self, result: Mapping[str, Any]) -> None:
        """Count one result of ``compute_score``."""
        task = result["task"] or "(unknown)"
        self._decisions[task][result["decision"]] += 1
        if result["valid"]:
            self._score[task] += result["score"]
            self._acc[task] += result["acc"]

    @property
    def rows(self) -> int:
        return sum(counts.total() for counts in self._decisions.values())

    @property
    def dropped(self) -> int:
        return sum(counts.total() - counts["scored"] for counts in self._decisions.values())

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Per task: rows, scored, mean_score and accuracy (None when nothing was scored), decisions."""
        return {
            task: {
                "rows": counts.total(),
                "scored": counts["scored"],
                "mean_score": self._score[task] / counts["scored"] if counts["scored"] else None,
                "accuracy": self._acc[task] / counts["scored"] if counts["scored"] else None,
                "decisions": dict(sorted(counts.items())),
            }
            for task, counts in sorted(self._decisions.items())
        }

    def table(self) -> str:
        """The same as text."""
        rows = []
        for task, entry in self.as_dict().items():
            why = ", ".join(f"{name} {count}" for name, count in entry["decisions"].items() if name != "scored")
            mean, accuracy = ("-" if entry[key] is None else f"{entry[key]:.4f}" for key in ("mean_score", "accuracy"))
            rows.append([task, entry["rows"], entry["scored"], mean, accuracy, why])
        return text_table(["task", "rows", "scored", "mean score", "accuracy", "dropped"], rows)


def text_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns padded with blanks; numbers to the right, text to the left, wide characters counted as two.

    >>> print(text_table(["name", "rows"], [["检测", 7], ["a", 12]]))
    name  rows
    检测     7
    a       12
    """
    cells = [list(header), *[[str(value) for value in row] for row in rows]]
    columns = range(len(header))
    widths = [max(_width(row[column]) for row in cells) for column in columns]
    numeric = [bool(rows) and all(_is_number(row[column]) for row in cells[1:]) for column in columns]
    return "\n".join(
        "  ".join(_padded(row[column], widths[column], numeric[column]) for column in columns).rstrip() for row in cells
    )


def _padded(text: str, width: int, right: bool) -> str:
    blanks = " " * (width - _width(text))
    return blanks + text if right else text + blanks


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def _is_number(text: str) -> bool:
    return text == "-" or text.replace(",", "").replace(".", "", 1).lstrip("-").isdigit()
