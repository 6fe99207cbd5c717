"""IE (information extraction): field by field comparison of JSON objects.

The fields are the keys of the reference and of the response. A field of the reference scores 1 - edit distance / longer
length of the two values (``values.comparable``), 1 when both are blank; a key that only the response has scores 0, also
when its value is blank. The score is the mean over all fields, 1 when there are none:

    reference {"total": "9.00", "date": "1 May"}, response {"total": "9.0", "tax": ""}: (0.75 + 0 + 0) / 3 = 0.25

How the object is found in an answer is in ``reading``. A reference that holds no object is scored as a document, by the
parsing scorer. A response that holds none scores 0, whatever the reference holds. Keys that differ in case differ.
"""

import json
import math
from dataclasses import dataclass
from typing import Any

from reward.task_scorers.ie.reading import read_object
from reward.task_scorers.ie.values import comparable, display
from reward.task_scorers.text_metrics import normalized_distance, preview

_MISSING = object()
_MAX_LISTED_CHARS = 3000


@dataclass(frozen=True)
class FieldComparison:
    """One field: its values as a person reads them (None: the key is missing), whether they are equal as compared, and
    their similarity in [0, 1]. ``extra``: only the response has the key, and the similarity is 0."""

    name: str
    reference: str | None
    prediction: str | None
    exact: bool
    similarity: float
    extra: bool


def process_ie_task(response: str, ref_answer: str) -> dict[str, Any]:
    """Score an extraction answer.

    Returns:
        ``analysis`` (JSON text that lists the fields, worst first), ``is_valid``, ``reward`` in [0, 1] or -1.0, and
        ``decision`` ("scored" or "empty_reference"; what the parsing scorer decides when the reference is no object).

    >>> process_ie_task('{"total": "9.0", "tax": ""}', '{"total": "9.00", "date": "1 May"}')["reward"]
    0.25
    """
    if not ref_answer.strip():
        return {"analysis": "the reference is empty", "is_valid": False, "reward": -1.0, "decision": "empty_reference"}
    fields = field_table(response, ref_answer)
    if fields is None:
        from reward.task_scorers.parsing import process_parsing_task

        return process_parsing_task(response, ref_answer)
    readable = read_object(response) is not None
    score = _mean(fields) if readable else 0.0
    return {
        "analysis": _analysis(fields, readable),
        "is_valid": True,
        "reward": score,
        "decision": "scored",
    }


def field_table(response: str, ref_answer: str) -> list[FieldComparison] | None:
    """All fields in the order of the reference, then those only the response has; None when the reference is no object.

    A response that holds no object has no field.
    """
    reference = read_object(ref_answer)
    if reference is None:
        return None
    prediction = read_object(response) or {}
    return [
        _compared(name, reference.get(name, _MISSING), prediction.get(name, _MISSING))
        for name in dict.fromkeys([*reference, *prediction])
    ]


def _compared(name: str, reference: Any, prediction: Any) -> FieldComparison:
    extra = reference is _MISSING
    left, right = ("" if value is _MISSING else comparable(value) for value in (reference, prediction))
    return FieldComparison(
        name=name,
        reference=None if extra else display(reference),
        prediction=None if prediction is _MISSING else display(prediction),
        exact=not extra and left == right,
        similarity=0.0 if extra else 1.0 - normalized_distance(left, right),
        extra=extra,
    )


def _mean(fields: list[FieldComparison]) -> float:
    return math.fsum(field.similarity for field in fields) / len(fields) if fields else 1.0


def _analysis(fields: list[FieldComparison], readable: bool) -> str:
    listed = []
    size = 0
    for field in sorted(fields, key=lambda field: field.similarity):
        entry = {
            "field": preview(field.name),
            "ref": field.reference and preview(field.reference, 80),
            "pred": field.prediction and preview(field.prediction, 80),
            "exact": field.exact,
            "similarity": round(field.similarity, 4),
        }
        size += len(json.dumps(entry, ensure_ascii=False)) + 2
        if size > _MAX_LISTED_CHARS:
            break
        listed.append(entry)
    details = {
        "note": "compared" if readable else "the response holds no JSON object",
        "fields": len(fields),
        "exact": sum(field.exact for field in fields),
        "extra": sum(field.extra for field in fields),
        "listed": listed,
    }
    return json.dumps(details, ensure_ascii=False)
