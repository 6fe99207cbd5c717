"""Nested lists (mind maps, organisation charts) as the paths of their nodes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from reward.task_scorers.chart_deplot.textlines import split_lines

MAX_PATH_CHARS = 1_000_000
"""Summed length of all paths. Where it is exceeded each path keeps an equal share of its end."""

_BLANK = r"[ \t\u00a0\u3000]"
_ITEM = re.compile(rf"({_BLANK}*)(?:[-*+](?={_BLANK})|[•◦▪]|\d{{1,9}}(?:[.)．）](?!\d)|、))(.*)", re.DOTALL)
_RULER = re.compile(r"[ \t]*(?:(?:-[ \t]*){3,}|(?:\*[ \t]*){3,})")
_COLUMNS = {"\t": 2, "\u3000": 2}
_SEPARATOR = re.compile(r" ?(?:—+|(?<!-)-+>|[:：]) ?")
_ONLY_SEPARATORS = re.compile(r"(?:—|-+>|[:：]| )+")


@dataclass
class _Node:
    name: str
    children: list[_Node] = field(default_factory=list)


def read_items(text: str) -> list[tuple[int, str]]:
    """List items as (indent in columns, text), a tab being two columns. Other lines and empty items are left out.

    Bullets are ``-``, ``*``, ``+`` before a blank, ``•◦▪``, and ``1.``, ``1)``, ``1、``.
    """
    items = []
    for line in split_lines(text):
        match = _ITEM.fullmatch(line)
        if match is None or _RULER.fullmatch(line):
            continue
        name = " ".join(match.group(2).split())
        if name:
            items.append((sum(_COLUMNS.get(char, 1) for char in match.group(1)), name))
    return items


def list_paths(items: Iterable[tuple[int, str]]) -> list[str]:
    """Path of every node from its root, joined with ``/`` and lower-cased, after splitting and joining of names.

    An item is a child of the nearest item above it with a smaller indent. A name with a separator is a parent and its
    child; a node with a single child is one with it.

    >>> list_paths([(0, "Fruit"), (2, "Apple: red"), (2, "Pear")])
    ['fruit', 'fruit/apple/red', 'fruit/pear']
    """
    roots: list[_Node] = []
    open_items: list[tuple[int, _Node]] = []
    for indent, name in items:
        while open_items and open_items[-1][0] >= indent:
            open_items.pop()
        siblings = open_items[-1][1].children if open_items else roots
        for part in split_name(name):
            node = _Node(part)
            siblings.append(node)
            siblings = node.children
        open_items.append((indent, node))
    return _walk(roots)


def split_name(name: str) -> list[str]:
    """Parts of a name around ``—``, ``——``, ``->``, ``-->``, ``:`` and ``：`` that have text on both sides.

    A trailing separator is dropped, a leading one is text.

    >>> split_name("a: b -> c:"), split_name(": a"), split_name("::")
    (['a', 'b', 'c'], [': a'], ['::'])
    """
    leading = _ONLY_SEPARATORS.match(name)
    start = leading.end() if leading else 0
    parts = [part for part in _SEPARATOR.split(name[start:]) if part]
    if not parts:
        return [name]
    return [name[:start] + parts[0], *parts[1:]]


def _walk(roots: list[_Node]) -> list[str]:
    joined = [(-1, root) for root in reversed(roots)]
    entries: list[tuple[int, str]] = []
    lengths: list[int] = []
    while joined:
        parent, node = joined.pop()
        names = [node.name]
        while len(node.children) == 1:
            node = node.children[0]
            names.append(node.name)
        name = "/".join(names).lower()
        lengths.append(len(name) + (lengths[parent] + 1 if parent >= 0 else 0))
        entries.append((parent, name))
        joined.extend((len(entries) - 1, child) for child in reversed(node.children))
    limit = max(lengths, default=0) if sum(lengths) <= MAX_PATH_CHARS else max(1, MAX_PATH_CHARS // len(lengths))
    paths: list[str] = []
    for parent, name in entries:
        path = f"{paths[parent]}/{name}" if parent >= 0 else name
        paths.append(path[-limit:])
    return paths
