"""Text helpers that several scorers share: cleaning, edit distance, "no text" phrases, degenerate repetition.

Everything here is a pure function over ``str``, accepts lone surrogates and runs in linear time, except for the edit
distance, which is bit-parallel (about 0.2 s for two strings of 64,000 characters), and its matrix.
"""

import re
import unicodedata
from collections.abc import Sequence

import numpy as np
from rapidfuzz import process
from rapidfuzz.distance import Levenshtein

_TAG = re.compile(r"</?[A-Za-z][A-Za-z0-9_:.\-]*+(?:\s[^<>]*+|/)?>")
_SUBSCRIPT_DIGITS = {0x2080 + digit: str(digit) for digit in range(10)}
_NO_TEXT = re.compile(r"没有文字|无文字|(?<![a-z])no\s+text")
_NO_TEXT_MAX_CHARS = 60
_LONG_TEXT = 2048
_MAX_COMBINING_RUN = 30
_MAX_CHARACTER_PRODUCTS = 500_000_000
_COMPARED_PREFIX = 64


def normalized_distance(a: str, b: str) -> float:
    """Levenshtein distance over code points divided by the longer length, in [0, 1]; two empty strings have 0.

    >>> normalized_distance("kitten", "sitting")
    0.42857142857142855
    >>> normalized_distance("", "")
    0.0
    """
    return Levenshtein.normalized_distance(a, b)


def distance_matrix(a: Sequence[str], b: Sequence[str]) -> np.ndarray:
    """Normalised distances (N, M) of every string of ``a`` to every string of ``b``.

    Past 500 million products of characters (about 0.2 s) only the first 64 characters of each string are compared.

    >>> distance_matrix(["ab", ""], ["ab"]).tolist()
    [[0.0], [1.0]]
    """
    if sum(map(len, a)) * sum(map(len, b)) > _MAX_CHARACTER_PRODUCTS:
        a, b = [text[:_COMPARED_PREFIX] for text in a], [text[:_COMPARED_PREFIX] for text in b]
    return process.cdist(a, b, scorer=Levenshtein.normalized_distance, dtype=np.float64)


def nfc(text: str) -> str:
    """Canonical composition (NFC) in linear time.

    ``unicodedata.normalize`` sorts a run of combining marks by insertion, which takes seconds for one run of 64,000
    marks. Longer texts are therefore composed in pieces that hold at most 30 marks in a row, the limit of the
    Stream-Safe Text Format (Unicode Standard Annex 15, section 13).
    """
    if text.isascii():
        return text
    if len(text) <= _LONG_TEXT:
        return unicodedata.normalize("NFC", text)
    pieces, start, run = [], 0, 0
    for index, combining_class in enumerate(map(unicodedata.combining, text)):
        if not combining_class:
            run = 0
        elif run == _MAX_COMBINING_RUN:
            pieces.append(text[start:index])
            start, run = index, 1
        else:
            run += 1
    pieces.append(text[start:])
    return "".join(unicodedata.normalize("NFC", piece) for piece in pieces)


def drop_whitespace(text: str) -> str:
    """``text`` without any Unicode whitespace."""
    return "".join(text.split())


def clean_text(text: str) -> str:
    """Text as spotting and layout compare it.

    Well-formed tags (``<name>``, ``<name …>``, ``<name/>``, ``</name>``) and all whitespace go, subscript digits become
    digits, the rest is composed to NFC. Case, full width and punctuation stay.

    >>> clean_text("<b>H₂ O</b><br/>")
    'H2O'
    >>> clean_text("a < b and c > d")
    'a<bandc>d'
    """
    if "<" in text:
        text = _TAG.sub("", text)
    return nfc(drop_whitespace(text).translate(_SUBSCRIPT_DIGITS))


def is_no_text(text: str) -> bool:
    """Whether a short answer (at most 60 characters after trimming) says that a picture holds no text.

    The phrases are 没有文字, 无文字 and "no text" (any case, not inside a longer word). Whether the answer also holds
    items is for the caller to check.

    >>> is_no_text("There is no text in this image."), is_no_text("casino text")
    (True, False)
    """
    text = text.strip()
    return len(text) <= _NO_TEXT_MAX_CHARS and _NO_TEXT.search(text.lower()) is not None


def ends_in_repetition(text: str, min_repeats: int = 10, min_unit: int = 2) -> bool:
    """Whether ``text`` ends in at least ``min_repeats`` copies of one unit of at least ``min_unit`` characters.

    Linear time for any unit length: the Z function of the reversed text gives, for each candidate period ``p``, how far
    the text read from its end agrees with itself shifted by ``p`` (Gusfield, Algorithms on Strings, Trees, and
    Sequences, 1997, section 1.4).

    >>> ends_in_repetition("intro " + "ab " * 10), ends_in_repetition("ab " * 9)
    (True, False)
    """
    length = len(text)
    longest_unit = length // min_repeats
    if longest_unit < min_unit:
        return False
    reverse = text[::-1]
    z = [0] * (longest_unit + 1)
    left = right = 0
    for start in range(1, longest_unit + 1):
        match = min(right - start, z[start - left]) if start < right else 0
        while start + match < length and reverse[match] == reverse[start + match]:
            match += 1
        if start + match > right:
            left, right = start, start + match
        z[start] = match
        if start >= min_unit and match >= (min_repeats - 1) * start:
            return True
    return False


def preview(text: str, limit: int = 40) -> str:
    """``text`` cut to ``limit`` characters for a report, with lone surrogates replaced so that it can be encoded."""
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return text.encode("utf-8", "replace").decode("utf-8") if not text.isascii() else text
