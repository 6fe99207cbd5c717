"""The markup of a model's answer outside its tables: tokens and spans that carry no text, and the tables' extents.

Everything here works on the raw answer, before entities are decoded: an escaped `&lt;table&gt;` is text. All functions
are linear in the length of their input.
"""

import html
import re
from bisect import bisect_left
from collections.abc import Iterator

_END_TOKENS = re.compile(r"<[|｜][^<>|｜\n]{1,100}[|｜]>|</s>|<eos>")
# What may stand between a tag's name and its end. A "<" or ">" is allowed inside a quoted value only, so a lone "<" in
# front of a tag never swallows that tag. The possessive loop gives up at the first "<": linear.
ATTRIBUTES = r"""(?=[\s/>])(?:[^<>="']|=\s*+"[^"]*+"|=\s*+'[^']*+'|[="'])*+>"""
_LINE_BREAK = re.compile(rf"</?br{ATTRIBUTES}", re.IGNORECASE)
_SPAN_TAG = re.compile(rf"<(/?)(hy-meta|quad|pFig|pSeal){ATTRIBUTES}", re.IGNORECASE)
# Tags of captions, and wrappers that models put around figures and tables: they place text and carry none.
_WRAPPER_TAG = re.compile(
    rf"</?(?:caption|figcaption|figure|center|div|html|body){ATTRIBUTES}|<!doctype[^<>]{{0,200}}>", re.IGNORECASE
)
_TABLE_TAG = re.compile(r"<(/?)table(?=[\s/>])", re.IGNORECASE)
_LONG_NUMBER = re.compile(r"&#0*[0-9]{8,};?")


def drop_invisible_markup(text: str) -> str:
    """Remove end-of-text tokens, metadata spans with their content, `<br>` (which leaves a blank) and caption tags.

    The spans are `<hy-meta>`, `<quad>`, `<pFig>` and `<pSeal>`; of a span that is never closed only the tag goes.
    Caption tags inside a table stay for the HTML reader.

    >>> drop_invisible_markup("Title<quad>(1,2),(3,4)</quad><br/>text<|im_end|>")
    'Title text'
    """
    if "<" not in text:
        return text
    text = _END_TOKENS.sub("", text)
    text = _drop_spans(text)
    return _LINE_BREAK.sub(" ", text)


def drop_wrapper_tags(text: str) -> str:
    """Remove the tags of captions and of wrappers (`<div>`, `<center>`, `<figure>`, `<html>`, `<body>`)."""
    return _WRAPPER_TAG.sub("", text) if "<" in text else text


def decode_entities(text: str) -> str:
    """Decode HTML character references once, with or without their semicolon, as a browser does in text."""
    if "&" not in text:
        return text
    # Python refuses to read numbers of thousands of digits; none of them is a character.
    return html.unescape(_LONG_NUMBER.sub("\ufffd", text))


def split_at_tables(text: str) -> Iterator[tuple[bool, str]]:
    """Yield (is_table, part) pairs that together are `text`.

    A table part reaches from a `<table>` tag to the `</table>` that balances it, or to the end of the text when the
    answer was cut off; what a browser makes of the inside is the HTML reader's business.
    """
    position, start, depth = 0, 0, 0
    for match in _TABLE_TAG.finditer(text):
        if not match[1]:
            if depth == 0:
                if match.start() > position:
                    yield False, text[position : match.start()]
                start = match.start()
            depth += 1
        elif depth:
            depth -= 1
            if depth == 0:
                position = text.find(">", match.end()) + 1
                yield True, text[start:position]
    if depth:
        yield True, text[start:]
    elif position < len(text):
        yield False, text[position:]


def _drop_spans(text: str) -> str:
    tags = list(_SPAN_TAG.finditer(text))
    if not tags:
        return text
    closers: dict[str, list[int]] = {}
    for index, tag in enumerate(tags):
        if tag[1]:
            closers.setdefault(tag[2].lower(), []).append(index)
    kept, position, index = [], 0, 0
    while index < len(tags):
        tag = tags[index]
        kept.append(text[position : tag.start()])
        if not tag[1]:
            candidates = closers.get(tag[2].lower(), [])
            at = bisect_left(candidates, index)
            if at < len(candidates):
                index = candidates[at]
        position = tags[index].end()
        index += 1
    kept.append(text[position:])
    return "".join(kept)
