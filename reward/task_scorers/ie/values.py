"""Values of extracted fields as strings: one for comparison, one for a person.

For comparison null, ``""``, ``[]``, ``{}`` and strings of blanks are blank at every level: as a field they equal a missing
one, inside an object or array they are left out. A string stands for itself, numbers and booleans for their JSON text as
it is written anew (``1e2`` is ``100.0``), objects and arrays for JSON with sorted keys. Whitespace goes, the rest is NFC
and lower case.
"""

import json
from collections.abc import Callable
from typing import Any

from reward.task_scorers.text_metrics import drop_whitespace, nfc


class Number(str):
    """An integer of a JSON text, kept as its digits: no limit on their number, no loss."""

    __slots__ = ()

    def __new__(cls, digits: str) -> "Number":
        return super().__new__(cls, "0" if digits == "-0" else digits)


def comparable(value: Any) -> str:
    """The string by which a value (any JSON value of bounded depth) is compared; "" for a blank one.

    >>> comparable(" Total  9.00 "), comparable({"b": None, "a": [True, "X y"]}), comparable([{}, ""])
    ('total9.00', '{"a":[true,"xy"]}', '')
    """
    return _written(_without_blanks(value), _folded)


def display(value: Any) -> str:
    """The value as written: a string as it is, anything else as JSON."""
    return _written(value, str)


def _folded(text: str) -> str:
    return nfc(drop_whitespace(text)).lower()


def _without_blanks(value: Any) -> Any:
    """The value without blank parts, or None when nothing is left."""
    if isinstance(value, dict):
        parts = {key: _without_blanks(item) for key, item in value.items()}
        return {key: item for key, item in parts.items() if item is not None} or None
    if isinstance(value, list):
        return [item for item in map(_without_blanks, value) if item is not None] or None
    if isinstance(value, str) and not value.strip():
        return None
    return value


def _written(value: Any, fold: Callable[[str], str]) -> str:
    if value is None:
        return ""
    if isinstance(value, str) and not isinstance(value, Number):
        return fold(value)
    return _json(value, fold)


def _json(value: Any, fold: Callable[[str], str]) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{_json(key, fold)}:{_json(value[key], fold)}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_json(item, fold) for item in value) + "]"
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, str):
        return json.dumps(fold(value), ensure_ascii=False)
    return fold(json.dumps(value))
