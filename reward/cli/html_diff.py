"""A parsed page beside its reference, as one HTML file: what differs in the text and in every table pair."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from html import escape
from typing import TYPE_CHECKING

from rapidfuzz.distance import Levenshtein

from reward.task_scorers.latex import PARAGRAPH

if TYPE_CHECKING:
    from reward.task_scorers.parsing import ParsingDetails
    from reward.task_scorers.table_tree import Cell, Table

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 1.5em; color: #1b1b1b; background: #fff; }
.sides { display: grid; grid-template-columns: 1fr 1fr; gap: 1.5em; align-items: start; }
.sides > div { min-width: 0; overflow-x: auto; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #f6f6f6; padding: .8em; margin: 0; }
ins { background: #c9f2cf; text-decoration: none; }
del { background: #ffd0d0; text-decoration: none; }
table { border-collapse: collapse; }
td { border: 1px solid #999; padding: .2em .5em; vertical-align: top; }
td.changed { background: #fff0b8; }
td.extra { background: #ffd0d0; }
td.missing { background: #c9f2cf; }
.legend span { padding: 0 .4em; margin-right: .8em; }
"""


def parsing_diff_html(details: ParsingDetails, title: str = "Parsing") -> str:
    """A self-contained page. Both sides are shown as they are compared, that is normalised."""
    response_text, reference_text = _text_sides(details.response.text, details.reference.text)
    reason = escape(details.reason or details.decision)
    sections = [
        f"<h1>{escape(title)}: score {details.score:g}</h1>",
        f"<p>decided by: {reason}; text similarity {details.text_similarity:.4f}</p>",
        '<p class="legend"><span style="background:#ffd0d0">only in the response</span>'
        '<span style="background:#c9f2cf">only in the reference</span>'
        '<span style="background:#fff0b8">cell with another text or span</span></p>',
        "<h2>Text</h2>",
        _sides(f"<pre>{response_text}</pre>", f"<pre>{reference_text}</pre>"),
        *_table_sections(details),
    ]
    return (
        '<!DOCTYPE html><html><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>{''.join(sections)}</body></html>\n"
    )


def _sides(response: str, reference: str) -> str:
    return f'<div class="sides"><div><h3>Response</h3>{response}</div><div><h3>Reference</h3>{reference}</div></div>'


def _text_sides(response: str, reference: str) -> tuple[str, str]:
    left, right = [], []
    for step in Levenshtein.opcodes(response, reference):
        ours = _visible(response[step.src_start : step.src_end])
        theirs = _visible(reference[step.dest_start : step.dest_end])
        if step.tag == "equal":
            left.append(ours)
            right.append(theirs)
        else:
            left.append(f"<del>{ours}</del>" if ours else "")
            right.append(f"<ins>{theirs}</ins>" if theirs else "")
    return "".join(left), "".join(right)


def _visible(text: str) -> str:
    return escape(text.encode("utf-8", "replace").decode("utf-8")).replace(PARAGRAPH, "¶\n")


def _table_sections(details: ParsingDetails) -> Iterator[str]:
    responses, references = details.response.tables, details.reference.tables
    for pair in details.table_pairs:
        yield (
            f"<h2>Table {pair.reference_index + 1}: TEDS {pair.teds:.4f}, structure only {pair.structure_teds:.4f}</h2>"
        )
        yield _sides(*_table_sides(responses[pair.response_index], references[pair.reference_index]))
    if not details.table_pairs and (responses or references):
        yield f"<h2>Tables: {len(responses)} in the response, {len(references)} in the reference, not compared</h2>"
        yield _sides(
            "".join(_table_html(table, "extra") for table in responses),
            "".join(_table_html(table, "missing") for table in references),
        )


def _table_sides(response: Table, reference: Table) -> tuple[str, str]:
    """Rows are aligned first, then the cells of aligned rows; what has no partner is extra or missing."""
    left: list[list[str]] = [["extra"] * len(row) for row in response.rows]
    right: list[list[str]] = [["missing"] * len(row) for row in reference.rows]
    for ours, theirs in _aligned(response.rows, reference.rows):
        for a, b in _aligned(response.rows[ours], reference.rows[theirs]):
            same = response.rows[ours][a] == reference.rows[theirs][b]
            left[ours][a] = right[theirs][b] = "" if same else "changed"
    return _rows_html(response, left), _rows_html(reference, right)


def _aligned(first: Sequence[object], second: Sequence[object]) -> Iterator[tuple[int, int]]:
    """Pairs of indices: equal items, and items that replace each other one for one."""
    for tag, a, a_end, b, b_end in SequenceMatcher(None, first, second, autojunk=False).get_opcodes():
        if tag in ("equal", "replace"):
            yield from zip(range(a, a_end), range(b, b_end))


def _table_html(table: Table, mark: str) -> str:
    return _rows_html(table, [[mark] * len(row) for row in table.rows])


def _rows_html(table: Table, marks: Sequence[Sequence[str]]) -> str:
    rows = (
        "<tr>" + "".join(_cell_html(cell, mark) for cell, mark in zip(row, row_marks)) + "</tr>"
        for row, row_marks in zip(table.rows, marks)
    )
    return f"<table>{''.join(rows)}</table>"


def _cell_html(cell: Cell, mark: str) -> str:
    spans = "".join(
        f' {name}="{value}"' for name, value in (("colspan", cell.colspan), ("rowspan", cell.rowspan)) if value != 1
    )
    return f'<td class="{mark}"{spans}>{_visible(cell.text)}</td>'
