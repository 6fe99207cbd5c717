"""HTML tables as grids, read as a browser reads them (an HTML5 parser), spans expanded by copying."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from selectolax.lexbor import LexborHTMLParser, LexborNode

from reward.task_scorers.chart_deplot.tables import Table, make_table

MAX_SPAN = 1_000
MAX_GRID_CELLS = 20_000
"""Cells of an answer's tables. Past it a span reads as 1, and past twice that many cells rows are no longer read."""

_TABLE_TAG = re.compile(r"<(/?)table(?=[\s/>])", re.IGNORECASE)
_SPAN = re.compile(r"[ \t\n\f\r]*\+?0*(\d+)", re.ASCII)
_SECTIONS = ("thead", "tbody", "tfoot")


def cut_html_tables(text: str) -> tuple[list[str], str]:
    """Outermost ``<table>…</table>`` spans of ``text``, and the text around them. An unclosed one runs to the end."""
    spans: list[str] = []
    rest: list[str] = []
    depth = start = end = 0
    for match in _TABLE_TAG.finditer(text):
        if not match.group(1):
            if depth == 0:
                start = match.start()
                rest.append(text[end:start])
            depth += 1
        elif depth:
            depth -= 1
            if depth == 0:
                end = text.find(">", match.end()) + 1 or len(text)
                spans.append(text[start:end])
    if depth:
        spans.append(text[start:])
        end = len(text)
    rest.append(text[end:])
    return spans, "\n".join(rest)


def read_html_tables(spans: Iterable[str]) -> list[Table]:
    """Read the table of each span; one without a cell is left out. Captions and nested tables are no rows."""
    tables = []
    filled = 0
    for html in spans:
        root = LexborHTMLParser(html).css_first("table")
        grid = _expand(root, filled) if root is not None else []
        filled += sum(map(len, grid))
        if grid:
            tables.append(make_table(grid[0], grid[1:]))
    return tables


class _Row:
    """One grid row being filled: cells of its own, and cells that hang down from rows above."""

    def __init__(self, hanging: dict[int, tuple[int, str]]) -> None:
        self.cells: list[str] = []
        self.below: dict[int, tuple[int, str]] = {}
        self._hanging = hanging
        self._fill_from_above()

    def add(self, text: str, rowspan: int) -> None:
        self._place(text, rowspan - 1)
        self._fill_from_above()

    def close(self) -> None:
        """Give cells that hang right of a short row their column."""
        for column in sorted(self._hanging):
            self.cells.extend([""] * (column - len(self.cells)))
            self._fill_from_above()

    def _place(self, text: str, rows_below: int) -> None:
        if rows_below > 0:
            self.below[len(self.cells)] = (rows_below, text)
        self.cells.append(text)

    def _fill_from_above(self) -> None:
        while len(self.cells) in self._hanging:
            rows_left, text = self._hanging.pop(len(self.cells))
            self._place(text, rows_left - 1)


def _expand(table: LexborNode, filled: int) -> list[list[str]]:
    """Grid of a table, given the cells that earlier tables filled."""
    grid: list[list[str]] = []
    hanging: dict[int, tuple[int, str]] = {}
    for row_node in _rows(table):
        if filled > 2 * MAX_GRID_CELLS:
            break
        row = _Row(hanging)
        for cell in _children(row_node):
            if cell.tag not in ("td", "th"):
                continue
            text = _cell_text(cell)
            attributes = cell.attributes if filled + len(row.cells) < MAX_GRID_CELLS else {}
            rowspan = _span(attributes.get("rowspan"))
            for _ in range(_span(attributes.get("colspan"))):
                row.add(text, rowspan)
        row.close()
        hanging = row.below
        if row.cells:
            grid.append(row.cells)
            filled += len(row.cells)
    return grid


def _span(attribute: str | None) -> int:
    """A span by HTML's rules for non-negative integers; missing, invalid or zero is 1; at most MAX_SPAN.

    >>> _span("2px"), _span(" 3"), _span("-2"), _span(""), _span(None), _span("9" * 5000)
    (2, 3, 1, 1, 1, 1000)
    """
    match = _SPAN.match(attribute or "")
    if match is None:
        return 1
    digits = match.group(1)
    return MAX_SPAN if len(digits) > 4 else min(max(int(digits), 1), MAX_SPAN)


def _children(node: LexborNode) -> Iterator[LexborNode]:
    child = node.child
    while child is not None:
        yield child
        child = child.next


def _rows(table: LexborNode) -> Iterator[LexborNode]:
    for child in _children(table):
        if child.tag == "tr":
            yield child
        elif child.tag in _SECTIONS:
            yield from (row for row in _children(child) if row.tag == "tr")


def _cell_text(cell: LexborNode) -> str:
    """Text below ``cell``: entities decoded, markup dropped, ``<br>`` and table parts a blank, blanks collapsed."""
    parts: list[str] = []
    stack = [cell.child]
    while stack:
        node = stack.pop()
        if node is None:
            continue
        stack.append(node.next)
        if node.is_text_node:
            parts.append(node.text_content or "")
        elif node.is_element_node:
            if node.tag in ("br", "table", "tr", "td", "th"):
                parts.append(" ")
            stack.append(node.child)
    return " ".join("".join(parts).split())
