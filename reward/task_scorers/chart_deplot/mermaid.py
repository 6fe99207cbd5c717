"""Mermaid flowcharts: a linear scanner for nodes and edges.

Grammar: https://mermaid.js.org/syntax/flowchart.html. Read are all node shapes (the bracket forms and ``@{ … }``), all
links (solid, thick, dotted, invisible; with arrow, circle, cross or open ends; any length), link texts in both
notations, chains, ``&`` groups, ``;`` between statements, edge ids and ``:::`` classes. ``subgraph``, ``end``,
``direction``, ``style``, ``classDef``, ``class``, ``click``, ``linkStyle``, ``accTitle``, ``accDescr`` and comments are
ignored.

More lenient than Mermaid: statements may follow the direction on its line, brackets may nest in unquoted texts, a blank
may stand before a bracket, an unclosed bracket or text ends with its line. As in Mermaid ``A---oB`` ends in a circle.
``A <-- B`` with a head on the left alone is the edge from B to A; ``A <--> B`` is one edge from A to B, as written.
"""

from __future__ import annotations

import html
import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

from reward.task_scorers.chart_deplot.textlines import split_lines

MAX_EDGES = 20_000
"""Edges that are compared; more (``&`` groups multiply) are only counted."""
MAX_LABEL_CHARS = 1_000
"""Longer texts are cut."""

Edge = tuple[str, str, str]
"""(text of the source node, text of the target node, text of the edge), all lower-cased."""

_HEADER = re.compile(
    r"[ \t]*(?:```[ \t]*mermaid[ \t]+)?(?:flowchart(?:-elk)?|graph)(?:[ \t]+(?:TD|TB|LR|RL|BT)\b(.*)|[ \t]*(?:;(.*))?)",
    re.IGNORECASE | re.DOTALL,
)
_ARROW = re.compile(r"--[->xo]|\.->?|==[=>xo]|~~~")
_FENCE = "```"

_IGNORED = re.compile(
    r"(?:(?:subgraph|end|direction|style|classDef|class|click|linkStyle)(?=[\s;]|$)|accTitle ?:|accDescr ?[:{])"
)
_IDENTIFIER = re.compile(r'(?:[^\s\[\](){}<>|;&@"\-=~.:]|-(?![-.>])|=(?!=)|\.(?![-.])|~(?!~)|:(?!::))+')
_CLASS = re.compile(r":::[\w-]+")
_EDGE_ID = re.compile(r'([^\s"@\[\](){}<>|;&]{1,64})@(?=[xo<]?(?:--|==|-\.|~~~))')
_LINK = re.compile(r"([xo<]?)(?:--+([->xo])|==+([=>xo])|-?\.+-([>xo]?)|~~~+)")
_LINK_START = re.compile(r"([xo<]?)(--|==|-\.)")
_LINK_END = {
    "--": re.compile(r"(?:(?<=\s)[xo<])?--+[->xo]"),
    "==": re.compile(r"(?:(?<=\s)[xo<])?==+[=>xo]"),
    "-.": re.compile(r"(?:(?<=\s)[xo<])?\.+-[>xo]?"),
}
_SHAPE_LABEL = re.compile(r"""(?:^|[,{\s])["']?label["']?[ \t]*:[ \t]*(?:"([^"]*)"|'([^']*)'|([^,}]*))""")
_STOP = re.compile(r'[;"\[({]')
_BRACKET = re.compile(r'["\[\](){}]')
_CLOSER = {"[": "]", "(": ")", "{": "}", ">": "]"}
_OPENER = {"]": "[", ")": "(", "}": "{"}
_QUOTE_OPENS_AFTER = frozenset("[({|>/\\-=.~:,")
_QUOTE_CLOSES_BEFORE = frozenset("])}|/\\-=.~,")
_MULTILINE = re.compile(r'"|@\{')

_BREAK = re.compile(r"<br[ \t]*/?>|\\n", re.IGNORECASE)
_ENTITY = re.compile(r"#(\w{1,32});")


@dataclass
class Flowchart:
    """A flowchart without its ids.

    Attributes:
        nodes: text of every node, lower-cased; its id where it has no text.
        edges: the first MAX_EDGES edges in the order they are written.
        edge_count: number of all edges.
    """

    nodes: list[str] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    edge_count: int = 0


def is_flowchart(text: str) -> bool:
    """Whether ``text`` has a ``flowchart`` or ``graph`` line (direction optional) with an arrow after it."""
    return any(_ARROW.search(block) for block in _blocks(text))


def read_flowchart(text: str) -> Flowchart:
    """Read all flowcharts of ``text`` as one graph; ids of different flowcharts are different nodes."""
    chart = Flowchart()
    for block in _blocks(text):
        scanner = _Scanner()
        for line in split_lines(_join_multiline(block)):
            scanner.read_line(line)
        scanner.add_to(chart)
    return chart


def _blocks(text: str) -> Iterator[str]:
    """Body of each flowchart: from behind its header line to the end of its fence, the next header or the end."""
    body: list[str] | None = None
    for line in split_lines(text):
        header = _HEADER.fullmatch(line)
        if header is not None:
            if body is not None:
                yield "\n".join(body)
            body = []
            line = header.group(1) or header.group(2) or ""
        if body is None:
            continue
        before, fence, _ = line.partition(_FENCE)
        body.append(before)
        if fence:
            yield "\n".join(body)
            body = None
    if body is not None:
        yield "\n".join(body)


def clean_label(text: str) -> str:
    """Text of a node or edge: quotes and backticks dropped, entities decoded, line breaks a blank, lower-cased.

    >>> clean_label('"`Say #quot;Hi#quot;<br/>now`"')
    'say "hi" now'
    """
    text = text.strip()
    for mark in '"`':
        if len(text) >= 2 and text[0] == text[-1] == mark:
            text = text[1:-1].strip()
    if "<" in text or "\\" in text:
        text = _BREAK.sub(" ", text)
    if ";" in text:
        text = html.unescape(_ENTITY.sub(_decode_entity, text))
    return " ".join(text.split()).lower()[:MAX_LABEL_CHARS]


def _decode_entity(match: re.Match[str]) -> str:
    name = match.group(1)
    decoded = html.unescape(f"&#{name};" if name.isdecimal() else f"&{name};")
    return match.group() if decoded.startswith("&") and name != "amp" else decoded


def _opens_quote(text: str, position: int) -> bool:
    """Whether the ``"`` at ``position`` starts a quoted text rather than standing within one (5" pipe)."""
    before = text[:position].rstrip(" \t") if position < 200 else text[position - 200 : position].rstrip(" \t")
    return not before or before[-1] in _QUOTE_OPENS_AFTER or before[-1] == "\n"


def _join_multiline(text: str) -> str:
    """Put quoted texts and ``@{ … }`` that span lines on one line."""
    parts: list[str] = []
    done = position = 0
    while (match := _MULTILINE.search(text, position)) is not None:
        start = match.start()
        if match.group() == "@{":
            end = _shape_data_end(text, start + 2)
            replacement = ","
        else:
            end = text.find('"', start + 1)
            replacement = " "
        if end < 0:
            break
        if "\n" not in text[start:end]:
            position = end + 1 if match.group() == "@{" or _opens_quote(text, start) else start + 1
            continue
        if match.group() == '"' and not (_opens_quote(text, start) and _closes_quote(text, end)):
            position = start + 1
            continue
        parts.append(text[done:start] + text[start:end].replace("\n", replacement))
        done = position = end
        position += 1
    return "".join(parts) + text[done:]


def _closes_quote(text: str, position: int) -> bool:
    rest = text[position + 1 : position + 100].lstrip(" \t\r\n")
    return rest[:1] in _QUOTE_CLOSES_BEFORE if rest else False


def _shape_data_end(text: str, position: int) -> int:
    """Index of the ``}`` that closes ``@{``, quoted braces skipped; -1 when there is none."""
    end = text.find("}", position)
    while end >= 0:
        quote = text.find('"', position, end)
        if quote < 0:
            return end
        position = text.find('"', quote + 1) + 1
        if position == 0:
            return end
        if position > end:
            end = text.find("}", position)
    return -1


class _Scanner:
    """Statements of one flowchart, line by line."""

    def __init__(self) -> None:
        self._labels: dict[str, str] = {}
        self._links: list[tuple[list[str], list[str], str]] = []
        self._edge_ids: set[str] = set()
        self._line = ""
        self._closing: dict[int, int] = {}
        self._ends: dict[str, list[re.Match[str]]] = {}

    def add_to(self, chart: Flowchart) -> None:
        """Append what was read to ``chart``, with the latest text of each node."""
        chart.nodes.extend(self._labels.values())
        for sources, targets, label in self._links:
            chart.edge_count += len(sources) * len(targets)
            for source in sources:
                room = max(0, MAX_EDGES - len(chart.edges))
                chart.edges.extend((self._labels[source], self._labels[target], label) for target in targets[:room])

    def read_line(self, line: str) -> None:
        self._line = line
        self._closing = _bracket_pairs(line) if _BRACKET.search(line) else {}
        self._ends = {}
        position = 0
        while True:
            position = self._skip(position, " \t;")
            if position >= len(line) or line.startswith("%%", position):
                return
            ignored = _IGNORED.match(line, position)
            position = self._statement_end(position) if ignored else self._statement(position)

    def _skip(self, position: int, blanks: str = " \t") -> int:
        while position < len(self._line) and self._line[position] in blanks:
            position += 1
        return position

    def _statement_end(self, position: int) -> int:
        """Index of the next ``;`` outside brackets and quotes, or the length of the line."""
        while (match := _STOP.search(self._line, position)) is not None:
            position = match.start()
            if match.group() == ";":
                return position
            if match.group() == '"':
                close = self._line.find('"', position + 1)
                position = close + 1 if close >= 0 else len(self._line)
            else:
                position = self._closing.get(position, position) + 1
        return len(self._line)

    def _statement(self, position: int) -> int:
        nodes, end = self._group(position)
        if not nodes:
            return self._statement_end(position + 1)
        position = end
        links = []
        sources = list(nodes)
        while (link := self._link(position)) is not None:
            label, reverse, position = link
            targets, end = self._group(position)
            if not targets:
                break
            position = end
            ends = (targets, sources) if reverse else (sources, targets)
            links.append(([name for name, _ in ends[0]], [name for name, _ in ends[1]], label))
            nodes.extend(targets)
            sources = targets
        position = self._skip(position)
        clean = position >= len(self._line) or self._line[position] == ";"
        for name, label in nodes:
            # A lone word before something unreadable is prose, not a node.
            if label is not None:
                self._labels[name] = clean_label(label)
            elif (links or clean) and name not in self._labels:
                self._labels[name] = clean_label(name)
        self._links.extend(links)
        return position if clean else self._statement_end(position)

    def _group(self, position: int) -> tuple[list[tuple[str, str | None]], int]:
        """Nodes joined by ``&`` as (id, text or None), and the index behind them."""
        nodes: list[tuple[str, str | None]] = []
        while True:
            node, end = self._node(self._skip(position))
            if node is None:
                return nodes, position
            nodes.append(node)
            position = end
            ampersand = self._skip(position)
            if not self._line.startswith("&", ampersand):
                return nodes, position
            position = ampersand + 1

    def _node(self, position: int) -> tuple[tuple[str, str | None] | None, int]:
        line = self._line
        match = _IDENTIFIER.match(line, position)
        name = match.group() if match else ""
        label: str | None = None
        end = match.end() if match else position
        bracket = self._skip(end)
        if line.startswith("@{", bracket) and name:
            if name in self._edge_ids:
                return None, position
            close = _shape_data_end(line, bracket + 2)
            close = close if close >= 0 else len(line)
            found = _SHAPE_LABEL.search(line, bracket + 1, close)
            label = next((text for text in found.groups() if text is not None), None) if found else None
            end = close + 1
        elif line[bracket : bracket + 1] in ("[", "(", "{"):
            label, end = self._bracket_text(bracket)
        elif name and line.startswith(">", end) and "]" in line[end : end + MAX_LABEL_CHARS]:
            close = line.index("]", end)
            label, end = line[end + 1 : close], close + 1
        elif not name and line.startswith('"', position):
            close = line.find('"', position + 1)
            close = close if close >= 0 else len(line)
            name, end = line[position + 1 : close], close + 1
        if not name and label is None:
            return None, position
        end = min(end, len(line))
        klass = _CLASS.match(line, end)
        return (name or f"[{label}]", label), klass.end() if klass else end

    def _bracket_text(self, position: int) -> tuple[str, int]:
        """Text within the bracket at ``position``, inner brackets of the shape dropped, and the index behind it."""
        line = self._line
        close = self._closing.get(position, -1)
        if close < 0:
            close = line.find(_CLOSER[line[position]], position + 1)
        if close < 0:
            return line[position + 1 :], len(line)
        first, last = position + 1, close
        while last - first >= 2:
            opener, closer = line[first], line[last - 1]
            brackets = opener in "[({" and self._closing.get(first) == last - 1
            slanted = line[position] == "[" and opener in "/\\" and closer in "/\\" and first == position + 1
            dashed = line[position] == "(" and opener == "-" and closer == "-" and first == position + 1
            if not (brackets or slanted or dashed) or first - position > 2:
                break
            first, last = first + 1, last - 1
        return line[first:last], close + 1

    def _link(self, position: int) -> tuple[str, bool, int] | None:
        """Text of the link at ``position``, whether it points backwards, and the index behind it; None for no link."""
        line = self._line
        position = self._skip(position)
        named = _EDGE_ID.match(line, position)
        if named is not None:
            self._edge_ids.add(named.group(1))
            position = named.end()
        match = _LINK.match(line, position)
        if match is not None:
            tail = match.group(2) or match.group(3) or match.group(4) or "-"
            label, end = self._pipe_text(match.end())
            return clean_label(label), match.group(1) == "<" and tail in "-=", end
        match = _LINK_START.match(line, position)
        if match is None:
            return None
        style = match.group(2)
        end = self._link_end(style, self._behind_quote(match.end()))
        if end is None:
            label, behind = self._pipe_text(match.end())
            return clean_label(label), match.group(1) == "<", behind
        return (
            clean_label(line[match.end() : end.start()]),
            match.group(1) == "<" and end.group()[-1] in "-=.",
            end.end(),
        )

    def _behind_quote(self, position: int) -> int:
        start = self._skip(position)
        close = self._line.find('"', start + 1) if self._line.startswith('"', start) else -1
        return close + 1 if close >= 0 else position

    def _link_end(self, style: str, position: int) -> re.Match[str] | None:
        if style not in self._ends:
            self._ends[style] = list(_LINK_END[style].finditer(self._line))
        ends = self._ends[style]
        index = bisect_left(ends, position, key=lambda match: match.start())
        return ends[index] if index < len(ends) else None

    def _pipe_text(self, position: int) -> tuple[str, int]:
        start = self._skip(position)
        if not self._line.startswith("|", start):
            return "", position
        close = self._line.find("|", self._behind_quote(start + 1))
        return (self._line[start + 1 : close], close + 1) if close >= 0 else (self._line[start + 1 :], len(self._line))


def _bracket_pairs(line: str) -> dict[int, int]:
    """Index of the closing bracket by that of its opening one; each kind on its own, quoted texts skipped."""
    pairs: dict[int, int] = {}
    open_brackets: dict[str, list[int]] = {"[": [], "(": [], "{": []}
    position = 0
    while (match := _BRACKET.search(line, position)) is not None:
        index, char = match.start(), match.group()
        position = index + 1
        if char == '"':
            close = line.find('"', index + 1) if _opens_quote(line, index) else -1
            position = close + 1 if close >= 0 else position
        elif char in open_brackets:
            open_brackets[char].append(index)
        elif open_brackets[_OPENER[char]]:
            pairs[open_brackets[_OPENER[char]].pop()] = index
    return pairs
