"""JSON from a model, read without surprises: no recursion error, no limit on digits, no evaluation."""

import json
import re
from collections.abc import Callable
from typing import Any

NOT_JSON = object()
MAX_DEPTH = 100

_MAX_INT_DIGITS = 400
_STRUCTURE = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)


def parse_json(
    text: str,
    strict: bool = True,
    parse_int: Callable[[str], Any] | None = None,
    object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> Any:
    """The value of a JSON text, or ``NOT_JSON`` when the whole text is no JSON or nested more than 100 levels deep.

    ``NaN``, ``Infinity`` and ``-Infinity`` are read as floats, a number too large for a double as infinity, of equal
    keys the last one. ``strict=False`` also reads raw control characters (line breaks) inside strings.

    >>> parse_json('[1, 2.5]'), parse_json('[1, 2') is NOT_JSON, parse_json('[' * 60000) is NOT_JSON
    ([1, 2.5], True, True)
    """
    if too_deep(text):
        return NOT_JSON
    try:
        return json.loads(text, strict=strict, parse_int=parse_int or _bounded_int, object_pairs_hook=object_pairs_hook)
    except (json.JSONDecodeError, RecursionError):
        return NOT_JSON


def too_deep(text: str) -> bool:
    """Whether brackets outside JSON strings are nested more than ``MAX_DEPTH`` levels deep."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    depth = 0
    for token in _STRUCTURE.finditer(text):
        mark = token[0]
        if mark in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif mark in "]}":
            depth -= 1
    return False


def _bounded_int(digits: str) -> int | float:
    return int(digits) if len(digits) <= _MAX_INT_DIGITS else float(digits)
