"""What a table may have or lack without being wrong: a header row, a leading column, a common affix, outliers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from reward.task_scorers.chart_deplot.headers import display_header, normalize_header
from reward.task_scorers.chart_deplot.tables import Table, make_table
from reward.task_scorers.chart_deplot.triples import Cell

_SCATTERED = (("异常值", "outlier", "离群"), ("离散点", "scatter", "discrete", "离散值", "散点"))
_JOINTS = "-_"


class Aligned(NamedTuple):
    """Tables of both sides after alignment, with a note for each thing that was ignored."""

    response: list[Table]
    reference: list[Table]
    notes: list[str]


def align_tables(response: Sequence[Table], reference: Sequence[Table]) -> Aligned:
    """Ignore the odd leading column, then the odd header row.

    A leading column of a response table is extra when the reference has a table one column narrower, none as wide, and
    either the cells run 0, 1, 2 … or 1, 2, 3 …, or the other headers equal that table's (a blank corner equals any).

    Headers are ignored on the side that has them when all tables of the other side have none, and on both sides
    when each is one two-column table and their value headers differ.
    """
    notes: list[str] = []
    predicted = []
    for table in response:
        if _has_extra_leading_column(table, reference):
            table = _drop_leading_column(table)
            notes.append("extra leading column of the response ignored")
        predicted.append(table)
    expected = list(reference)

    predicted_headed, expected_headed = (any(table.header for table in tables) for tables in (predicted, expected))
    if predicted_headed and not expected_headed:
        notes.append("header row of the response ignored: the reference has none")
        predicted = [Table(None, table.rows) for table in predicted]
    elif expected_headed and not predicted_headed and predicted:
        notes.append("header row of the reference ignored: the response has none")
        expected = [Table(None, table.rows) for table in expected]
    elif _differ_in_value_header_only(predicted, expected):
        notes.append("value headers ignored: both are two-column tables")
        predicted = [Table(None, table.rows) for table in predicted]
        expected = [Table(None, table.rows) for table in expected]
    return Aligned(predicted, expected, list(dict.fromkeys(notes)))


def _has_extra_leading_column(table: Table, reference: Sequence[Table]) -> bool:
    width = table.width
    widths = [other.width for other in reference]
    if width in widths or width - 1 not in widths or width < 3:
        return False
    if _is_running_index([row[0] if row else "" for row in table.rows]):
        return True
    return any(_headers_equal_behind_first(table, other) for other in reference if other.width == width - 1)


def _is_running_index(cells: list[str]) -> bool:
    texts = [cell.strip() for cell in cells]
    return bool(texts) and any(texts == [str(start + i) for i in range(len(texts))] for start in (0, 1))


def _headers_equal_behind_first(table: Table, other: Table) -> bool:
    if table.header is None or other.header is None:
        return False
    rest = [normalize_header(cell) for cell in table.header[1 : table.width]]
    wanted = [normalize_header(cell) for cell in other.header[: other.width]]
    corners_agree = rest[:1] == wanted[:1] or not (rest[0] and wanted[0])
    return corners_agree and rest[1:] == wanted[1:]


def _drop_leading_column(table: Table) -> Table:
    return make_table(table.header and table.header[1:], [row[1:] for row in table.rows])


def _differ_in_value_header_only(response: Sequence[Table], reference: Sequence[Table]) -> bool:
    if len(response) != 1 or len(reference) != 1:
        return False
    ours, theirs = response[0], reference[0]
    if ours.header is None or theirs.header is None or ours.width != 2 or theirs.width != 2:
        return False
    return normalize_header(ours.header[1]) != normalize_header(theirs.header[1])


def common_affixes(headers: Iterable[str]) -> tuple[str, str]:
    """The prefix that all ``headers`` share up to a ``-`` or ``_``, and the suffix from one on; "" where there is none.

    Blank headers do not count, and at least two different ones must remain.

    >>> common_affixes(["sales_2019", "sales_2020"]), common_affixes(["A-kg", "B-kg"])
    (('sales_', ''), ('', '-kg'))
    """
    names = sorted({header for header in headers if header})
    if len(names) < 2:
        return "", ""
    prefix = _cut_at_joint(_common_start(names[0], names[-1]))
    mirrored = sorted(name[len(prefix) :][::-1] for name in names)
    suffix = _cut_at_joint(_common_start(mirrored[0], mirrored[-1]))[::-1]
    return prefix, suffix


def _common_start(first: str, second: str) -> str:
    length = 0
    for ours, theirs in zip(first, second):
        if ours != theirs:
            break
        length += 1
    return first[:length]


def _cut_at_joint(common: str) -> str:
    joint = max(common.rfind(char) for char in _JOINTS)
    rest = common[joint + 1 :]
    return common[: joint + 1] + rest[: len(rest) - len(rest.lstrip())] if joint >= 0 else ""


def add_common_affixes(response: list[Cell], reference: list[Cell]) -> tuple[list[Cell], list[str]]:
    """Give response headers the prefix and suffix that the reference's headers share.

    Row and column headers are looked at apart. An axis of the response takes the affixes of that axis of the reference
    which it then meets most often, and none when it meets no header; a header that the reference has stays as it is.
    """
    known = {cell.row for cell in reference} | {cell.column for cell in reference}
    axes = ({cell.row for cell in reference}, {cell.column for cell in reference})
    affixes = [common_affixes(axis) for axis in axes]
    notes: list[str] = []
    if not any(prefix or suffix for prefix, suffix in affixes):
        return response, notes

    def completion(headers: set[str], own: int) -> Callable[[str], str]:
        lacking = {header for header in headers if header and header not in known}
        best, found = 0, ("", "")
        for axis in (own, 1 - own):
            hits = len({_complete(header, affixes[axis]) for header in lacking} & axes[axis])
            if hits > best:
                best, found = hits, affixes[axis]
        if best:
            shown = [display_header(affix)[:40] for affix in found]
            notes.append(f"prefix {shown[0]!r} and suffix {shown[1]!r} of the reference added")
        return lambda header: _complete(header, found) if header in lacking else header

    row = completion({cell.row for cell in response}, 0)
    column = completion({cell.column for cell in response}, 1)
    return [Cell(row(cell.row), column(cell.column), cell.value) for cell in response], notes


def _complete(header: str, affixes: tuple[str, str]) -> str:
    prefix, suffix = affixes
    header = header if header.startswith(prefix) else prefix + header
    return header if header.endswith(suffix) else header + suffix


def drop_scattered(response: list[Cell], reference: list[Cell]) -> tuple[list[Cell], list[str]]:
    """Leave out outlier cells of the response when the reference has none at all; scatter points likewise."""
    notes = []
    for words in _SCATTERED:
        if _mentioning(reference, words):
            continue
        scattered = _mentioning(response, words)
        kept = [cell for cell in response if cell.row not in scattered and cell.column not in scattered]
        if len(kept) < len(response):
            notes.append(f"{len(response) - len(kept)} {words[1]} values of the response ignored")
        response = kept
    return response, notes


def _mentioning(cells: list[Cell], words: tuple[str, ...]) -> set[str]:
    headers = {cell.row for cell in cells} | {cell.column for cell in cells}
    return {header for header in headers if any(word in header for word in words)}
