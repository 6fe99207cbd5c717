"""HTML tables as trees of rows and cells, read the way a browser reads them.

The tree is that of TEDS: table → rows → cells. `thead`, `tbody` and `tfoot` are transparent, `th` is a cell like `td`,
captions are kept aside, and a table nested in a cell is text of that cell. The HTML5 parser of lexbor repairs what is
broken or cut off: unclosed cells, missing rows, text between rows (which moves in front of its table).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from reward.task_scorers.markup import ATTRIBUTES

MAX_SPAN = 1000

_TABLE_PARTS = frozenset(("table", "caption", "colgroup", "col", "thead", "tbody", "tfoot", "tr", "td", "th"))
_ROW_GROUPS = frozenset(("thead", "tbody", "tfoot"))
_CELLS = frozenset(("td", "th"))
# Comments, invisible elements with their content, tags, and a tag cut off by the end of the text.
_MARKUP = re.compile(
    rf"<!--.*?(?:-->|\Z)|<(script|style){ATTRIBUTES}.*?(?:</\1{ATTRIBUTES}|\Z)|</?([a-z][a-z0-9:-]*+){ATTRIBUTES}"
    r"|<[!?][^>]*+(?:>|\Z)|</?[a-z][^<>]*+\Z|<",
    re.IGNORECASE | re.DOTALL,
)
_SURROGATE = re.compile("[\ud800-\udfff]")
_INTEGER = re.compile(r"[\t\n\f\r ]*+\+?0*+([0-9]+)")


@dataclass(frozen=True, slots=True)
class Cell:
    """A table cell: its text and how many columns and rows it covers (1 to 1,000)."""

    text: str
    colspan: int = 1
    rowspan: int = 1


@dataclass(frozen=True, slots=True)
class Table:
    """A table: rows of cells, and the text of its captions, which is no part of the tree."""

    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""

    @property
    def node_count(self) -> int:
        """Nodes of the tree: the table, its rows and its cells."""
        return 1 + len(self.rows) + sum(map(len, self.rows))

    def map_texts(self, function: Callable[[str], str]) -> "Table":
        """Return the table with `function` applied to the text of each cell and to the caption."""
        rows = tuple(tuple(Cell(function(cell.text), cell.colspan, cell.rowspan) for cell in row) for row in self.rows)
        return Table(rows, function(self.caption))

    def to_html(self) -> str:
        """Write the tree with bare tags and the spans that are not 1; texts are not escaped."""
        parts = ["<table>", self.caption]
        for row in self.rows:
            parts.append("<tr>")
            for cell in row:
                colspan = f' colspan="{cell.colspan}"' if cell.colspan != 1 else ""
                rowspan = f' rowspan="{cell.rowspan}"' if cell.rowspan != 1 else ""
                parts.append(f"<td{colspan}{rowspan}>{cell.text}</td>")
            parts.append("</tr>")
        parts.append("</table>")
        return "".join(parts)


def read_html(html: str) -> list[str | Table]:
    """Read HTML that holds tables: its top-level tables in order, and the text around them.

    Texts have their entities decoded and all other markup dropped; in a cell white space is collapsed and `<br>` is a
    blank. A `<` that starts no complete tag is text (`x<y</td>`): that is where we are kinder than a browser.

    >>> read_html("<table><tr><td>a&amp;b<td colspan='2px'>c")
    [Table(rows=((Cell(text='a&b', colspan=1, rowspan=1), Cell(text='c', colspan=2, rowspan=1)),), caption='')]
    """
    from selectolax.lexbor import LexborHTMLParser

    body = LexborHTMLParser("<!doctype html><body>" + _keep_table_markup(html)).body
    pieces: list[str | Table] = []
    for node in body.iter(include_text=True):
        if node.tag == "table":
            pieces.append(_read_table(node))
        else:
            pieces.append(node.text_content or "")
    return pieces


def read_tables(html: str) -> list[Table]:
    """Return the top-level tables of `html` in document order."""
    return [piece for piece in read_html(html) if isinstance(piece, Table)]


def read_span(value: str | None) -> int:
    """Read a colspan or rowspan by HTML's rules for non-negative integers, capped at 1,000; invalid and 0 read as 1.

    >>> [read_span(value) for value in ("2px", " +3", "", "-1", "0", "99999", None)]
    [2, 3, 1, 1, 1, 1000, 1]
    """
    match = _INTEGER.match(value) if value else None
    if match is None:
        return 1
    digits = match[1]
    return min(max(int(digits), 1), MAX_SPAN) if len(digits) <= 4 else MAX_SPAN


def _keep_table_markup(html: str) -> str:
    """Drop every tag but those of tables, and escape what is no tag.

    The HTML parser then sees nothing that could make it build more nodes than the text has tags: reopened formatting
    elements (`<b><p>…`) grow quadratically in HTML's rules.
    """

    def kept(match: re.Match[str]) -> str:
        name = match[2]
        if name is None:
            return "&lt;" if match[0] == "<" else ""
        name = name.lower()
        return match[0] if name in _TABLE_PARTS else " " if name == "br" else ""

    return _SURROGATE.sub("\ufffd", _MARKUP.sub(kept, html))


def _read_table(table) -> Table:  # a selectolax node, imported lazily
    rows, captions = [], []
    for child in table.iter():
        if child.tag in _ROW_GROUPS:
            rows += [_read_row(row) for row in child.iter() if row.tag == "tr"]
        elif child.tag == "tr":
            rows.append(_read_row(child))
        elif child.tag == "caption":
            captions.append(_text_of(child))
    return Table(tuple(rows), " ".join(captions))


def _read_row(row) -> tuple[Cell, ...]:
    return tuple(_read_cell(cell) for cell in row.iter() if cell.tag in _CELLS)


def _read_cell(cell) -> Cell:
    attributes = cell.attributes
    if not attributes:
        return Cell(_text_of(cell))
    return Cell(_text_of(cell), read_span(attributes.get("colspan")), read_span(attributes.get("rowspan")))


def _text_of(node) -> str:
    # Inner tags are gone by now: more than one child means a nested table, whose cells must not run together.
    child = node.first_child
    if child is None:
        return ""
    if child.next is None and child.tag == "-text":
        return " ".join(child.text_content.split())
    texts = [part.text_content for part in node.traverse(include_text=True) if part.tag == "-text"]
    return " ".join(" ".join(texts).split())
