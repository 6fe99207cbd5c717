"""Chart-to-text scorer: Mermaid flowcharts, nested Markdown lists, and tables (Markdown, loose pipes, HTML).

The score of a sample is the mean over the thresholds 0.50, 0.55 … 0.95 of [similarity >= threshold], the similarity
being measured at the *slight* tolerance. See ``tolerance`` for the numbers, and by kind of chart:

* tables: ``markdown_table`` and ``html_grid`` (to a grid), ``align`` (what may differ), ``triples``, ``agree``;
* lists: ``mdlist`` (to paths), ``assignment``;
* flowcharts: ``mermaid`` (to nodes and edges), ``edges``, ``assignment``.

A reference of no known kind, or one that holds nothing to compare (a table without a value, a flowchart without a
node), is unusable. A response of another kind than the reference scores 0; CSV and JSON are no known kinds.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from itertools import islice
from typing import Any

from reward.task_scorers.chart_deplot.compare import COMPARISONS, Comparison, Item, describe_item
from reward.task_scorers.chart_deplot.kinds import is_usable, read_chart
from reward.task_scorers.chart_deplot.tolerance import SLIGHT, TOLERANCES, threshold_score

__all__ = ["chart_details", "process_chart_deplot_task"]

DISPLAY_ITEMS = 200


def process_chart_deplot_task(response: str, ref_answer: str) -> dict[str, Any]:
    """Score a response against a reference chart.

    Returns a dict with ``reward`` (float, 0.0, 0.1 … 1.0; -1.0 when not valid), ``is_valid`` (bool), ``decision``
    ("scored", "empty_reference" or "bad_reference") and ``analysis`` (JSON text: kinds, similarity in [0, 1] by
    tolerance, counts, what was ignored).

    >>> process_chart_deplot_task("|x|v|\\n|-|-|\\n|A|1.04|\\n|B|9|", "|x|v|\\n|-|-|\\n|A|1|\\n|B|9|\\n|C|7|")["reward"]
    0.4
    """
    details, _ = _score(response, ref_answer)
    return {
        "analysis": json.dumps(details, ensure_ascii=False),
        "is_valid": details["decision"] == "scored",
        "reward": details["score"],
        "decision": details["decision"],
    }


def chart_details(response: str, ref_answer: str) -> dict[str, Any]:
    """Why a response scores what it scores, for people.

    Everything of the analysis, and at the slight tolerance: ``agreeing`` pairs of [response item, reference item],
    ``missing`` reference items and ``extra`` response items, as text, each list cut at DISPLAY_ITEMS. Items are triples
    of a table, paths of a list, edges and nodes of a flowchart.
    """
    details, comparison = _score(response, ref_answer)
    if comparison is not None:
        ours, theirs = zip(*comparison.agreeing) if comparison.agreeing else ((), ())
        details["agreeing"] = [
            [describe_item(ours_item), describe_item(theirs_item)]
            for ours_item, theirs_item in comparison.agreeing[:DISPLAY_ITEMS]
        ]
        details["missing"] = _remaining(comparison.reference, theirs)
        details["extra"] = _remaining(comparison.response, ours)
    return details


def _remaining(items: Iterable[Item], taken: Iterable[Item]) -> list[str]:
    rest = Counter(items) - Counter(taken)
    return [describe_item(item) for item in islice(rest.elements(), DISPLAY_ITEMS)]


def _score(response: str, ref_answer: str) -> tuple[dict[str, Any], Comparison | None]:
    details: dict[str, Any] = {"decision": "scored", "score": -1.0}
    if not ref_answer.strip():
        return details | {"decision": "empty_reference"}, None
    reference = read_chart(ref_answer)
    details["kind"] = {"reference": reference.kind}
    if not is_usable(reference):
        return details | {"decision": "bad_reference"}, None
    identical = response.strip() == ref_answer.strip()
    predicted = reference if identical else read_chart(response)
    details["kind"]["response"] = predicted.kind
    if predicted.kind != reference.kind:
        return details | {"score": 0.0, "similarity": {tolerance.name: 0.0 for tolerance in TOLERANCES}}, None
    comparison = COMPARISONS[reference.kind](predicted, reference)
    similarities = comparison.similarities
    if identical:
        similarities = {tolerance.name: Fraction(1) for tolerance in TOLERANCES}
    details["score"] = threshold_score(similarities[SLIGHT.name])
    details["similarity"] = {name: round(float(value), 6) for name, value in similarities.items()}
    details["counts"] = comparison.counts
    details["notes"] = comparison.notes
    return details, comparison
