"""The table of an answer, as a header row and data rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

Row = tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """One table.

    Attributes:
        header: the header row, its first cell being the corner; None when the table has no header row.
        rows: data rows, the first cell of each being the row header. Rows may differ in length.
    """

    header: Row | None
    rows: tuple[Row, ...]

    @property
    def width(self) -> int:
        """Columns: the longer of the header and the most common data row, blank cells at the end left out."""
        header = _filled(self.header or ())
        lengths = Counter(_filled(row) for row in self.rows)
        common = max(lengths, key=lambda length: (lengths[length], length), default=0)
        return max(header, common)


def make_table(header: Sequence[str] | None, rows: Sequence[Sequence[str]]) -> Table:
    """Build a table; a header row that is blank right of its first cell is no header, a blank data row is no row."""
    head = None if header is None or not any(cell.strip() for cell in header[1:]) else tuple(header)
    return Table(head, tuple(tuple(row) for row in rows if any(cell.strip() for cell in row)))


def _filled(row: Row) -> int:
    return max((index + 1 for index, cell in enumerate(row) if cell.strip()), default=0)
