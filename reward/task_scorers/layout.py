"""Layout: page blocks with category, polygon and, for most, text.

Blocks of equal category are matched one to one with polygon IoU of at least 0.5: as many pairs as possible, then the
largest summed IoU, then the least summed text distance. When the reference has any text after
``text_metrics.clean_text``, a pair costs its text distance and every other block costs 1:

    score = 1 - total cost / (matches + unmatched predictions + unmatched references)

When no reference block has text, the score is the F1 of the matching, 2 * matches / (predictions + references), and
texts do not count.

Formats are in ``layout_formats``, categories in ``layout_categories``, polygons and their limits in ``polygons``, the
rules for an empty page in ``region_match``, the sizes up to which matching is exact in ``matching``. Past 400,000 pairs
of blocks of equal category all are matched greedily by their bounding boxes.

An answer identical to a usable reference, apart from blanks around it, scores 1. A reference without a readable block is
dropped ("bad_reference"), unless it states that there is no text. An answer without a block scores 0. In an answer a
complete block that cannot be read is an unmatched prediction, in a reference it is left out.
"""

from collections.abc import Sequence
from typing import Any

from reward.task_scorers.geometry import as_boxes, bounding_box
from reward.task_scorers.layout_formats import parse_layout
from reward.task_scorers.matching import WeightedPair, match_boxes_greedily, match_candidates
from reward.task_scorers.polygons import polygon_candidates
from reward.task_scorers.region_match import Region, RegionMatch, match_answers, report
from reward.task_scorers.text_metrics import distance_matrix

IOU_THRESHOLD = 0.5
MAX_POLYGON_PAIRS = 400_000

LayoutMatch = RegionMatch


def process_layout_task(response: str, ref_answer: str) -> dict[str, Any]:
    """Score a layout answer.

    Returns:
        ``analysis`` (JSON text), ``is_valid``, ``reward`` in [0, 1] or -1.0, and ``decision`` ("scored" or
        "bad_reference").

    >>> block = "Hello<hy-meta><layout>{}</layout><poly>(0,0),(10,0),(10,10),(0,10)</poly></hy-meta>"
    >>> process_layout_task(block.format("para"), block.format("paragraph"))["reward"]
    1.0
    """
    return report(match_details(response, ref_answer))


def match_details(response: str, ref_answer: str) -> LayoutMatch:
    """The blocks of both sides, their pairs with IoU and text distance, what is unmatched, the cost and the score."""
    reference = parse_layout(ref_answer)
    has_text = any(block.clean for block in reference.readable)
    identical = response.strip() == ref_answer.strip()
    return match_answers(parse_layout(response), reference, identical, _match, None if has_text else _f1)


def _f1(match: RegionMatch) -> float:
    return 2 * len(match.pairs) / (len(match.predictions) + len(match.references))


def _match(predictions: Sequence[Region], references: Sequence[Region]) -> list[WeightedPair]:
    def tie_cost(rows, cols):
        return distance_matrix([predictions[row].clean for row in rows], [references[col].clean for col in cols])

    rows_of, cols_of = _by_category(predictions), _by_category(references)
    if sum(len(rows) * len(cols_of.get(category, ())) for category, rows in rows_of.items()) > MAX_POLYGON_PAIRS:
        return _match_bounding_boxes(predictions, references, rows_of, cols_of)
    candidates = polygon_candidates(
        [block.points for block in predictions],
        [block.points for block in references],
        IOU_THRESHOLD,
        [block.category for block in predictions],
        [block.category for block in references],
    )
    labels = [block.sort_key for block in predictions], [block.sort_key for block in references]
    return match_candidates(candidates, (len(predictions), len(references)), tie_cost, labels)


def _by_category(blocks: Sequence[Region]) -> dict[str, list[int]]:
    indices: dict[str, list[int]] = {}
    for index, block in enumerate(blocks):
        indices.setdefault(block.category, []).append(index)
    return indices


def _match_bounding_boxes(
    predictions: Sequence[Region],
    references: Sequence[Region],
    rows_of: dict[str, list[int]],
    cols_of: dict[str, list[int]],
) -> list[WeightedPair]:
    pairs = []
    for category, rows in rows_of.items():
        cols = cols_of.get(category, [])
        boxes_a = as_boxes([bounding_box(predictions[row].points) for row in rows])
        boxes_b = as_boxes([bounding_box(references[col].points) for col in cols])
        labels = [predictions[row].sort_key for row in rows], [references[col].sort_key for col in cols]
        for row, col, iou in match_boxes_greedily(boxes_a, boxes_b, IOU_THRESHOLD, labels):
            pairs.append((rows[row], cols[col], iou))
    return pairs
