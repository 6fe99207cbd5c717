"""Which kind of chart an answer is: a flowchart, a nested list or a table; and its content."""

from __future__ import annotations

from dataclasses import dataclass, field

from reward.task_scorers.chart_deplot.html_grid import cut_html_tables, read_html_tables
from reward.task_scorers.chart_deplot.markdown_table import read_loose_tables, read_ruled_tables
from reward.task_scorers.chart_deplot.mdlist import list_paths, read_items
from reward.task_scorers.chart_deplot.mermaid import Flowchart, is_flowchart, read_flowchart
from reward.task_scorers.chart_deplot.numbers import parse_value
from reward.task_scorers.chart_deplot.tables import Table
from reward.task_scorers.chart_deplot.textlines import replace_surrogates

MERMAID = "mermaid"
LIST = "list"
TABLE = "table"

MIN_LIST_ITEMS = 2


@dataclass(frozen=True)
class Chart:
    """A read answer.

    Attributes:
        kind: MERMAID, LIST or TABLE; "" when the answer is none of them.
        flowchart: content of a Mermaid answer.
        paths: node paths of a list.
        tables: tables of a table answer, equal ones once.
    """

    kind: str
    flowchart: Flowchart = field(default_factory=Flowchart)
    paths: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()


def read_chart(text: str) -> Chart:
    """Read an answer as the first kind it fits: Mermaid; a table with a rule line or in HTML; a list of at least two
    items; a loose pipe table.

    >>> read_chart("- a\\n- b").kind, read_chart("| a | b |\\n|---|---|\\n- c\\n- d").kind, read_chart("a, b").kind
    ('list', 'table', '')
    """
    text = replace_surrogates(text)
    if is_flowchart(text):
        return Chart(MERMAID, flowchart=read_flowchart(text))
    tables = _marked_tables(text)
    if tables:
        return Chart(TABLE, tables=tables)
    items = read_items(text)
    if len(items) >= MIN_LIST_ITEMS:
        return Chart(LIST, paths=tuple(list_paths(items)))
    tables = _distinct(read_loose_tables(text))
    return Chart(TABLE, tables=tables) if tables else Chart("")


def is_usable(reference: Chart) -> bool:
    """Whether a reference holds anything to compare: a value, a path or a node."""
    values = (cell for table in reference.tables for row in table.rows for cell in row[1:])
    return bool(reference.paths or reference.flowchart.nodes or any(parse_value(cell) != "" for cell in values))


def _marked_tables(text: str) -> tuple[Table, ...]:
    spans, rest = cut_html_tables(text)
    return _distinct([*read_html_tables(spans), *read_ruled_tables(rest)])


def _distinct(tables: list[Table]) -> tuple[Table, ...]:
    return tuple(dict.fromkeys(tables))
