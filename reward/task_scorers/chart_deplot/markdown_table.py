r"""Pipe tables: Markdown with a rule line, and loose tables without one.

A rule line is ``|---|:-:|``, ``--- | ---`` or the ``+---+---+`` of a text grid. The row above it is the header. Lines
without a pipe are prose, blank lines between the rows of one table are tolerated, ``\|`` is a pipe within a cell. Later
rule lines of three dashes a cell are ignored; of shorter ones GitHub's rule holds: they are data.
"""

from __future__ import annotations

import html
import re
from collections import Counter

from reward.task_scorers.chart_deplot.tables import Table, make_table
from reward.task_scorers.chart_deplot.textlines import split_lines

_RULE = re.compile(r"\|?(?:[ \t]*:?[-—–─=]+:?[ \t]*[|+])+(?:[ \t]*:?[-—–─=]+:?[ \t]*)?|\|[ \t]*:?[-—–─=]+:?")
_GRID_RULE = re.compile(r"\+?(?:[-=]{2,}\+)+(?:[-=]{2,})?")
_BREAK_TAG = re.compile(r"<br[ \t]*/?>", re.IGNORECASE)
_LOOSE_SHARE = 0.7


def read_ruled_tables(text: str) -> list[Table]:
    """Tables that have a rule line, in order."""
    return [_ruled_table(block, rules) for block in _blocks(text) if (rules := _rule_lines(block)) and len(block) > 1]


def read_loose_tables(text: str) -> list[Table]:
    """Pipe tables without a rule line: at least two rows, of which 70 % have one common width of two or more.

    The first line is the header.
    """
    tables = []
    for block in _blocks(text):
        rows = [line for line in block if not _is_rule(line)]
        if len(rows) < 2:
            continue
        cells = _split_rows(rows)
        width, count = Counter(len(row) for row in cells).most_common(1)[0]
        if width >= 2 and count >= 2 and count >= _LOOSE_SHARE * len(cells):
            tables.append(make_table(cells[0], cells[1:]))
    return tables


def _has_pipe(line: str) -> bool:
    return "|" in line and ("\\" not in line or "|" in line.replace("\\|", ""))


def _is_rule(line: str) -> bool:
    return bool(_RULE.fullmatch(line) or _GRID_RULE.fullmatch(line))


def _blocks(text: str) -> list[list[str]]:
    """Runs of table lines. A line of prose ends a run; after a blank line so does a row that has a rule line below it,
    and one that does not start with a pipe."""
    blocks: list[list[str]] = [[]]
    lines = [line.strip() for line in split_lines(text)]
    rules = [_is_rule(line) for line in lines]
    filled = [index for index, line in enumerate(lines) if line]
    for index, following in zip(filled, [*filled[1:], -1]):
        line = lines[index]
        if not rules[index]:
            prose = not _has_pipe(line)
            after_blank = index > 0 and not lines[index - 1]
            starts_table = following >= 0 and rules[following]
            if prose or (after_blank and (starts_table or not line.startswith("|"))):
                blocks.append([])
            if prose:
                continue
        blocks[-1].append(line)
    return [block for block in blocks if block]


def _rule_lines(block: list[str]) -> list[int]:
    return [index for index, line in enumerate(block) if _is_rule(line)]


def _ruled_table(block: list[str], rules: list[int]) -> Table:
    rule = rules[0]
    # The first rule of a text grid is its upper border.
    if rule == 0 and len(rules) > 1 and rules[1] == 2:
        rule = 2
    has_header = rule > 0 and not _is_rule(block[rule - 1])
    body = [line for line in block[rule + 1 :] if not (_is_rule(line) and _is_long_rule(line))]
    rows = _split_rows(([block[rule - 1]] if has_header else []) + body)
    return make_table(rows[0], rows[1:]) if has_header else make_table(None, rows)


def _is_long_rule(line: str) -> bool:
    cells = [cell for cell in re.split(r"[|+]", line) if cell.strip()]
    return all(sum(char not in ": \t" for char in cell) >= 3 for cell in cells)


def _split_rows(lines: list[str]) -> list[list[str]]:
    led = all(line.startswith("|") for line in lines)
    return [_split_row(line, led) for line in lines]


def _split_row(line: str, led: bool) -> list[str]:
    """Cells of a row. A leading pipe opens the first cell when all rows have one (or the row is closed as well);
    where other rows have none it follows a blank first cell."""
    parts = line.split("|")
    if "\\" in line:
        parts = _join_escaped(parts)
    closed = len(parts) > 1 and not parts[-1].strip()
    if len(parts) > 1 and not parts[0].strip() and (led or closed):
        parts = parts[1:]
    if closed:
        parts = parts[:-1]
    return [_clean_cell(part) for part in parts]


def _join_escaped(parts: list[str]) -> list[str]:
    joined: list[str] = []
    open_cell: list[str] = []
    for part in parts:
        if part.endswith("\\"):
            open_cell.append(part[:-1])
        else:
            joined.append("|".join([*open_cell, part]))
            open_cell = []
    if open_cell:
        joined.append("|".join(open_cell) + "\\")
    return joined


def _clean_cell(cell: str) -> str:
    if "<" in cell:
        cell = _BREAK_TAG.sub(" ", cell)
    if "&" in cell:
        cell = html.unescape(cell)
    return " ".join(cell.split())
