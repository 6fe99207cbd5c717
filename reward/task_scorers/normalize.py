"""The normaliser of the parsing scorer: two answers that read the same become the same string.

In order:

1. end-of-text tokens, `<hy-meta>`/`<quad>`/`<pFig>`/`<pSeal>` spans, `<br>` and caption tags go;
2. tables are cut out and read as a browser reads them (`table_tree.py`); they come back as bare `<table><tr><td>` tags,
   `th` written `td`, with the attributes `colspan="n" rowspan="n"` where they are not 1. Their cells pass steps 3 to 6;
3. entities are decoded, full-width ASCII, 【】 and curly quotes become ASCII, the rest NFC;
4. a paragraph break (a blank line) becomes one private separator, any other white space nothing;
5. outside tables and formulas, layout coordinates go: two or more points `(int,int)` joined by commas;
6. LaTeX commands become what they show (`latex.py`).

All steps are linear in the length of the text.
"""

import re
from dataclasses import dataclass

from reward.task_scorers.latex import PARAGRAPH, flatten_latex, math_spans
from reward.task_scorers.latex_symbols import SAME_SIGN
from reward.task_scorers.markup import decode_entities, drop_invisible_markup, drop_wrapper_tags, split_at_tables
from reward.task_scorers.table_tree import Table, read_html
from reward.task_scorers.text_metrics import nfc

_CHARACTERS = {
    # Full-width ASCII variants, then what has no ASCII twin at a fixed distance.
    **{0xFF01 + i: 0x21 + i for i in range(94)},
    **str.maketrans("【】“”„‟‘’‚‛", "[]\"\"\"\"''''"),
    **str.maketrans(SAME_SIGN),
    # Invisible: zero-width space, word joiner, byte order mark, soft hyphen; and our own separator, so that no
    # text can forge it.
    **dict.fromkeys((0x200B, 0x2060, 0xFEFF, 0xAD, ord(PARAGRAPH)), None),
}
_PARAGRAPH_BREAK = re.compile(r"\n\s*\n\s*|\u2029\s*")
_PARAGRAPH_RUN = re.compile(f"{PARAGRAPH}{{2,}}")
_POINT = r"\(\s*-?[0-9]+\s*,\s*-?[0-9]+\s*\)"
_COORDINATES = re.compile(rf"{_POINT}(?:\s*,\s*{_POINT})+")


@dataclass(frozen=True)
class NormalizedDocument:
    """A document ready for comparison: its whole text, and its top-level tables with normalised cell texts."""

    text: str
    tables: tuple[Table, ...]


def normalize_document(text: str) -> NormalizedDocument:
    """Normalise an answer or a reference (see the module's docstring).

    >>> normalize_document("a  b\\n\\nc <TABLE border=1><th>x<td rowspan=2>y").text.replace(PARAGRAPH, "¶")
    'ab¶c<table><tr><td>x</td><td rowspan="2">y</td></tr></table>'
    """
    parts: list[str] = []
    tables: list[Table] = []
    cells = _CellTexts()
    for is_table, part in split_at_tables(drop_invisible_markup(text.strip())):
        if not is_table:
            parts.append(normalize_text(decode_entities(drop_wrapper_tags(part))))
            continue
        for piece in read_html(part):
            if isinstance(piece, str):
                parts.append(normalize_text(piece))
            else:
                table = piece.map_texts(cells.__getitem__)
                tables.append(table)
                parts.append(table.to_html())
    joined = _PARAGRAPH_RUN.sub(PARAGRAPH, "".join(parts))
    return NormalizedDocument(joined.strip(PARAGRAPH), tuple(tables))


def normalize_text(text: str) -> str:
    """Normalise text outside tables whose entities are decoded (steps 3 to 6)."""
    text = _characters(text).replace("\r\n", "\n").replace("\r", "\n")
    text = _PARAGRAPH_BREAK.sub(PARAGRAPH, text)
    text = _drop_coordinates(text)
    return nfc(flatten_latex(text))


def normalize_cell(text: str) -> str:
    """Normalise the text of a table cell: no paragraphs, and coordinates are content."""
    if text.isascii() and text.isalnum():
        return text
    return nfc(flatten_latex(_characters(text)))


class _CellTexts(dict[str, str]):
    """Normalised cell texts of one document; most tables repeat some."""

    def __missing__(self, text: str) -> str:
        self[text] = normalize_cell(text)
        return self[text]


def _characters(text: str) -> str:
    return text if text.isascii() else nfc(text).translate(_CHARACTERS)


def _drop_coordinates(text: str) -> str:
    if not _COORDINATES.search(text):
        return text
    parts, position = [], 0
    for start, end in math_spans(text):
        parts += [_COORDINATES.sub("", text[position:start]), text[start:end]]
        position = end
    parts.append(_COORDINATES.sub("", text[position:]))
    return "".join(parts)
