"""The textbook definition of the ordered tree edit distance, for tests: slow, general, and nothing clever.

d(F, G) over forests, by what happens to the rightmost roots v of F and w of G: delete v, insert w, or map v to w
(Zhang and Shasha, 1989, lemma 4). Any labels, any depth; memory grows with the fourth power of the size.
"""

from dataclasses import dataclass
from functools import cache

from reward.task_scorers.table_tree import Table


@dataclass(frozen=True)
class Node:
    tag: str
    children: tuple["Node", ...] = ()
    spans: tuple[int, int] = (1, 1)
    text: str = ""


def tree_of(table: Table) -> Node:
    return Node(
        "table",
        tuple(
            Node("tr", tuple(Node("td", (), (cell.colspan, cell.rowspan), cell.text) for cell in row))
            for row in table.rows
        ),
    )


def size(forest: tuple[Node, ...]) -> int:
    return sum(1 + size(node.children) for node in forest)


def levenshtein(a: str, b: str) -> int:
    line = list(range(len(b) + 1))
    for i, char in enumerate(a, 1):
        previous, line[0] = line[0], i
        for j, other in enumerate(b, 1):
            previous, line[j] = line[j], min(line[j] + 1, line[j - 1] + 1, previous + (char != other))
    return line[-1]


def rename_cost(v: Node, w: Node, structure_only: bool) -> float:
    if v.tag != w.tag or v.spans != w.spans:
        return 1.0
    if structure_only or not (v.text or w.text):
        return 0.0
    return levenshtein(v.text, w.text) / max(len(v.text), len(w.text))


def tree_edit_distance(first: Node, second: Node, structure_only: bool = False) -> float:
    @cache
    def distance(f: tuple[Node, ...], g: tuple[Node, ...]) -> float:
        if not f or not g:
            return float(size(f) + size(g))
        *f_rest, v = f
        *g_rest, w = g
        return min(
            distance((*f_rest, *v.children), g) + 1.0,
            distance(f, (*g_rest, *w.children)) + 1.0,
            distance(tuple(f_rest), tuple(g_rest))
            + distance(v.children, w.children)
            + rename_cost(v, w, structure_only),
        )

    return distance((first,), (second,))


def reference_teds(first: Table, second: Table, structure_only: bool = False) -> float:
    trees = tree_of(first), tree_of(second)
    longer = max(size((tree,)) for tree in trees)
    return max(0.0, 1.0 - tree_edit_distance(*trees, structure_only) / longer)
