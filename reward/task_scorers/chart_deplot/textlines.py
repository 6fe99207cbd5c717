"""Lines of an answer, and the width folding that tables share."""

from __future__ import annotations

import re
import unicodedata

_LINE_BREAK = re.compile(r"\r\n?|\n")
_SURROGATE = re.compile(r"[\ud800-\udfff]")

# Full-width ASCII, the ideographic space and the full-width currency signs. Not NFKC: that would turn 10² into 102.
_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
_WIDTH |= {0x3000: " ", 0xFFE0: "¢", 0xFFE1: "£", 0xFFE5: "¥", 0xFFE6: "₩"}


def split_lines(text: str) -> list[str]:
    """Lines of ``text`` at ``\\n``, ``\\r\\n`` and ``\\r`` only; other control characters stay in their line."""
    return _LINE_BREAK.split(text)


def replace_surrogates(text: str) -> str:
    """``text`` with each lone surrogate replaced by U+FFFD, so that it can be encoded."""
    return _SURROGATE.sub("\ufffd", text)


def fold_width(text: str) -> str:
    """Full width to half width, then canonical composition (NFC).

    >>> fold_width("（％）１２")
    '(%)12'
    """
    return text if text.isascii() else unicodedata.normalize("NFC", text.translate(_WIDTH))
