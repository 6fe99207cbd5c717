"""Finding the JSON object in an information extraction answer.

Tried in this order: the whole text; the last code fence that holds an object; everything from the first ``{`` to the
last ``}``. An array with exactly one object is that object. A text that is other JSON holds no object, whatever braces
are inside; nor does a text whose fences hold arrays but no object. A broken object is no object: nothing is guessed from
it.

Raw line breaks inside strings, NaN and Infinity are read, of equal keys the last one counts. Keys are trimmed and NFC
at every level.
"""

import re
from collections.abc import Iterator
from typing import Any

from reward.task_scorers.ie.values import Number
from reward.task_scorers.json_text import NOT_JSON, parse_json
from reward.task_scorers.text_metrics import nfc

_LANGUAGE = re.compile(r"\A[A-Za-z0-9_+\-]*+")


def read_object(text: str) -> dict[str, Any] | None:
    """The JSON object of an answer, or None.

    >>> read_object('Result: {"a": null}'), read_object('[{" a ": "x"}]'), read_object('{"a": 1')
    ({'a': None}, {'a': 'x'}, None)
    """
    text = text.strip().removeprefix("\ufeff")
    value = _parse(text)
    if value is not NOT_JSON:
        return _object(value)
    fenced = [_parse(content) for content in _fences(text)]
    for value in reversed(fenced):
        if _object(value) is not None:
            return _object(value)
    if any(value is not NOT_JSON for value in fenced):
        return None
    start, end = text.find("{"), text.rfind("}")
    return _object(_parse(text[start : end + 1])) if 0 <= start < end else None


def _parse(text: str) -> Any:
    return parse_json(text, strict=False, parse_int=Number, object_pairs_hook=_unique_keys)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {nfc(key.strip()): value for key, value in pairs}


def _object(value: Any) -> dict[str, Any] | None:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return value if isinstance(value, dict) else None


def _fences(text: str) -> Iterator[str]:
    """What code fences hold, without the language name, where it may be an object or an array."""
    for content in text.split("```")[1::2]:
        content = _LANGUAGE.sub("", content, count=1).strip()
        if content.startswith(("{", "[")):
            yield content
