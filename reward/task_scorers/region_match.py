"""What spotting and layout share: regions, their one-to-one match, its cost, and what an empty picture scores.

A region is a text with a place (a box or a polygon). An answer is a list of regions, the statement that there is
nothing in the picture, or a format error.

Cost: a matched pair costs the normalised edit distance of its texts, an unmatched prediction or reference costs 1, also
when its text is empty. Score = 1 - total cost / (matches + unmatched predictions + unmatched references).

What holds, and what does not: the score of a right answer falls with each region taken from it and with each junk
region put in. A junk region that overlaps no reference by half always lowers a score that is above 0. In general a junk
region or a copy of a region can only help where one region overlaps two references by half, because the pairs are chosen
by number and overlap before text: the additional region may then push another one to the reference whose text it has.
References that do not overlap each other leave no room for this.
"""

import dataclasses
import enum
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from reward.task_scorers.matching import WeightedPair
from reward.task_scorers.text_metrics import clean_text, is_no_text, normalized_distance, preview

_SHOWN_PAIRS = 8


class Reading(enum.Enum):
    """How an answer was read."""

    REGIONS = "regions"
    NOTHING = "nothing in the picture"
    FORMAT_ERROR = "format error"


@dataclass(frozen=True)
class Region:
    """One item of an answer.

    Attributes:
        text: as written.
        clean: as compared.
        points: two corners of a box, or the vertices of a polygon, in the answer's units (0 to 1000 by convention);
            None when they could not be read.
        category: canonical block category in layout, "" in spotting.
    """

    text: str
    clean: str
    points: tuple[tuple[float, float], ...] | None
    category: str = ""

    @property
    def sort_key(self) -> tuple:
        return self.category, self.points, self.clean


@dataclass(frozen=True)
class Answer:
    """An answer as read; ``regions`` is empty unless ``reading`` is REGIONS, and then may hold unreadable ones."""

    reading: Reading
    regions: tuple[Region, ...] = ()

    @property
    def readable(self) -> tuple[Region, ...]:
        return tuple(region for region in self.regions if region.points is not None)


@dataclass(frozen=True)
class MatchedPair:
    """Indices into the regions of a match, IoU in [0.5, 1] and text distance in [0, 1]."""

    prediction: int
    reference: int
    iou: float
    text_distance: float


@dataclass(frozen=True)
class RegionMatch:
    """The match of a response with a reference, and the score it earns.

    Attributes:
        predictions: all regions of the response, unreadable ones (``points`` is None) included.
        references: the readable regions of the reference.
        pairs: matched regions in order of the references.
        unmatched_predictions, unmatched_references: indices of the rest.
        total_cost: summed text distances plus 1 for each unmatched region.
        count: matches plus unmatched regions.
        score: in [0, 1], or -1 when the reference is unusable.
        decision: "scored" or "bad_reference".
        note: one line on how the answers were read and compared.
    """

    predictions: tuple[Region, ...]
    references: tuple[Region, ...]
    pairs: tuple[MatchedPair, ...]
    unmatched_predictions: tuple[int, ...]
    unmatched_references: tuple[int, ...]
    total_cost: float
    count: int
    score: float
    decision: str
    note: str


def region(text: Any, points: Sequence[tuple[float, float]] | None, category: str = "") -> Region:
    """A region from a JSON value or a string as its text: null is no text, numbers and booleans are their JSON text.

    A list or an object is no text either: it then differs from any text there is.
    """
    if isinstance(text, int | float):
        text = json.dumps(text)
    elif not isinstance(text, str):
        text = ""
    return Region(text, clean_text(text), None if points is None else tuple(points), category)


def read_answer(text: str, regions: Sequence[Region] | None) -> Answer:
    """The answer made of a trimmed text and the regions found in it (None: it has none of the formats).

    An empty text, an empty list in a known format, and a short statement that there is no text mean an empty picture.
    """
    if regions:
        return Answer(Reading.REGIONS, tuple(regions))
    if not text or regions is not None or is_no_text(text):
        return Answer(Reading.NOTHING)
    return Answer(Reading.FORMAT_ERROR)


Matcher = Callable[[Sequence[Region], Sequence[Region]], list[WeightedPair]]
Scorer = Callable[[RegionMatch], float]


def match_answers(
    response: Answer, reference: Answer, identical: bool, match: Matcher, score: Scorer | None = None
) -> RegionMatch:
    """Score one answer against another.

    Args:
        response, reference: as read.
        identical: the two are the same text, which scores 1 if the reference is usable.
        match: gives ``(prediction, reference, IoU)`` of the chosen pairs of two lists of readable regions.
        score: a score other than 1 - total cost / count.
    """
    references = reference.readable
    predictions = response.regions
    result = _costed(predictions, references, match)
    if reference.reading is Reading.FORMAT_ERROR or (reference.reading is Reading.REGIONS and not references):
        return _with(result, -1.0, "the reference holds no readable item", "bad_reference")
    if identical:
        return _with(result, 1.0, "identical to the reference")
    if reference.reading is Reading.NOTHING:
        right = response.reading is Reading.NOTHING
        return _with(result, float(right), f"nothing in the picture; response: {response.reading.value}")
    if response.reading is not Reading.REGIONS:
        return _with(result, 0.0, f"response: {response.reading.value}")
    return _with(result, result.score if score is None else score(result), "matched")


def report(match: RegionMatch) -> dict[str, Any]:
    """The result of a scorer (``analysis``, ``is_valid``, ``reward``, ``decision``) for a match."""
    details = {
        "note": match.note,
        "predictions": len(match.predictions),
        "references": len(match.references),
        "matches": len(match.pairs),
        "unreadable": sum(region.points is None for region in match.predictions),
        "total_cost": round(match.total_cost, 6),
        "count": match.count,
        "pairs": [
            {
                "ref": preview(match.references[pair.reference].text),
                "pred": preview(match.predictions[pair.prediction].text),
                "iou": round(pair.iou, 4),
                "distance": round(pair.text_distance, 4),
            }
            for pair in match.pairs[:_SHOWN_PAIRS]
        ],
        "unmatched_ref": [preview(match.references[index].text) for index in match.unmatched_references[:_SHOWN_PAIRS]],
        "unmatched_pred": [
            preview(match.predictions[index].text) for index in match.unmatched_predictions[:_SHOWN_PAIRS]
        ],
    }
    return {
        "analysis": json.dumps(details, ensure_ascii=False),
        "is_valid": match.decision == "scored",
        "reward": match.score,
        "decision": match.decision,
    }


def _costed(predictions: tuple[Region, ...], references: tuple[Region, ...], match: Matcher) -> RegionMatch:
    # Sorted lists make the choice between equally good matchings independent of the order of an answer.
    rows = sorted(
        (index for index, item in enumerate(predictions) if item.points is not None),
        key=lambda index: predictions[index].sort_key,
    )
    cols = sorted(range(len(references)), key=lambda index: references[index].sort_key)
    chosen = match([predictions[index] for index in rows], [references[index] for index in cols])
    pairs = []
    for row, col, iou in chosen:
        prediction, reference = rows[row], cols[col]
        distance = normalized_distance(predictions[prediction].clean, references[reference].clean)
        pairs.append(MatchedPair(prediction, reference, iou, distance))
    pairs.sort(key=lambda pair: pair.reference)
    matched_predictions = {pair.prediction for pair in pairs}
    matched_references = {pair.reference for pair in pairs}
    unmatched_predictions = tuple(index for index in range(len(predictions)) if index not in matched_predictions)
    unmatched_references = tuple(index for index in range(len(references)) if index not in matched_references)
    unmatched = len(unmatched_predictions) + len(unmatched_references)
    total_cost = math.fsum([*(pair.text_distance for pair in pairs), unmatched])
    count = len(pairs) + unmatched
    score = max(0.0, 1.0 - total_cost / count) if count else 1.0
    return RegionMatch(
        predictions=predictions,
        references=references,
        pairs=tuple(pairs),
        unmatched_predictions=unmatched_predictions,
        unmatched_references=unmatched_references,
        total_cost=total_cost,
        count=count,
        score=score,
        decision="scored",
        note="",
    )


def _with(match: RegionMatch, score: float, note: str, decision: str = "scored") -> RegionMatch:
    return dataclasses.replace(match, score=score, note=note, decision=decision)
