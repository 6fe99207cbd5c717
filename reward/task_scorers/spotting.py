"""Spotting: text lines with their boxes.

Predictions and references are matched one to one with IoU of at least 0.5: as many pairs as possible, then the largest
summed IoU, then the least summed text distance. A pair costs its text distance (edit distance over the longer length,
after ``text_metrics.clean_text``), every other item costs 1:

    score = 1 - total cost / (matches + unmatched predictions + unmatched references)

Formats are in ``spotting_formats``, the rules for an empty picture in ``region_match``, the sizes up to which matching
is exact in ``matching``. Between equally good matchings of long texts (past 500 million products of characters in one
group of overlapping boxes) the text distance is taken over the first 64 characters; costs are always exact.

An answer identical to a usable reference, apart from blanks around it and stops at its end, scores 1. A reference
without a readable item is dropped ("bad_reference"), unless it states an empty picture. An answer in none of the formats
scores 0. In an answer an item that cannot be read is an unmatched prediction, in a reference it is left out.
"""

from collections.abc import Sequence
from typing import Any

from reward.task_scorers.geometry import as_boxes
from reward.task_scorers.matching import WeightedPair, match_boxes
from reward.task_scorers.region_match import Region, RegionMatch, match_answers, report
from reward.task_scorers.spotting_formats import parse_spotting, without_final_stops
from reward.task_scorers.text_metrics import distance_matrix

IOU_THRESHOLD = 0.5

SpottingMatch = RegionMatch


def process_spotting_task(response: str, ref_answer: str) -> dict[str, Any]:
    """Score a spotting answer.

    Returns:
        ``analysis`` (JSON text), ``is_valid``, ``reward`` in [0, 1] or -1.0, and ``decision`` ("scored" or
        "bad_reference").

    >>> process_spotting_task("Hallo(0,0),(10,10)", "Hello(0,0),(10,10)World(0,20),(10,30)")["reward"]
    0.4
    """
    return report(match_details(response, ref_answer))


def match_details(response: str, ref_answer: str) -> SpottingMatch:
    """The items of both sides, their pairs with IoU and text distance, what is unmatched, the cost and the score."""
    identical = without_final_stops(response) == without_final_stops(ref_answer)
    return match_answers(parse_spotting(response), parse_spotting(ref_answer), identical, _match)


def _match(predictions: Sequence[Region], references: Sequence[Region]) -> list[WeightedPair]:
    def tie_cost(rows, cols):
        return distance_matrix([predictions[row].clean for row in rows], [references[col].clean for col in cols])

    labels = [item.sort_key for item in predictions], [item.sort_key for item in references]
    return match_boxes(_boxes(predictions), _boxes(references), IOU_THRESHOLD, tie_cost, labels)


def _boxes(regions: Sequence[Region]):
    return as_boxes([item.points[0] + item.points[1] for item in regions])
