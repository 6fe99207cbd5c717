"""Tables as sets of triples (row header, column header, value) with the two headers unordered."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from reward.task_scorers.chart_deplot.headers import normalize_header
from reward.task_scorers.chart_deplot.numbers import Value, parse_value
from reward.task_scorers.chart_deplot.tables import Table


class Cell(NamedTuple):
    """One value with its normalised headers; ``column`` is "" in a table without a header row."""

    row: str
    column: str
    value: Value


class Triple(NamedTuple):
    """A cell whose headers are in sorted order, so that a table equals its transpose."""

    first: str
    second: str
    value: Value


def read_cells(tables: Iterable[Table]) -> list[Cell]:
    """Distinct cells of all ``tables``. A blank value gives none; one right of the header row has column header ""."""
    header = _Memo(normalize_header)
    value = _Memo(parse_value)
    cells: dict[Cell, None] = {}
    for table in tables:
        columns = [header[text] for text in table.header or ()]
        for row in table.rows:
            for index, text in enumerate(row[1:], start=1):
                if text and value[text] != "":
                    column = columns[index] if index < len(columns) else ""
                    cells[Cell(header[row[0]], column, value[text])] = None
    return list(cells)


class _Memo(dict):
    def __init__(self, function: Callable[[str], Any]) -> None:
        super().__init__()
        self._function = function

    def __missing__(self, key: str) -> Any:
        result = self[key] = self._function(key)
        return result


def make_triples(cells: Iterable[Cell]) -> list[Triple]:
    """The distinct triples of ``cells``, in an order that depends on their content only."""
    triples = {Triple(*sorted((cell.row, cell.column)), cell.value) for cell in cells}
    return sorted(triples, key=lambda triple: (*triple[:2], isinstance(triple.value, str), triple.value))
