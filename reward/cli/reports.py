"""What ``explain`` prints, draws and compares, task by task."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward.cli.summary import text_table
from reward.ocr_utils import TaskType

if TYPE_CHECKING:
    from PIL.Image import Image

    from reward.task_scorers.region_match import Region, RegionMatch

_SHOWN_CHARS = 48


def report(task: str, result: dict[str, Any], response: str, reference: str) -> str:
    """The result and, where it was scored, what the score was made of."""
    lines = [
        f"task      {result['task']}",
        f"score     {result['score']:g}" + ("" if result["valid"] else " (dropped)"),
        f"decision  {result['decision']}",
    ]
    details = _REPORTS.get(task)
    if details is None or not result["valid"]:
        lines.append(f"analysis  {_pretty(result['analysis'])}")
    else:
        lines += ["", details(response, reference)]
    return "\n".join(lines)


def picture(task: str, response: str, reference: str, image: Path | None) -> Image:
    """The matching of a spotting or layout answer, drawn on the page or on white.

    Raises:
        UsageError: the image is missing or cannot be decoded.
    """
    from reward.cli.drawing import draw_matching

    match = _region_match(task, response, reference)
    # What has no place cannot be drawn, so the numbers of what can be are kept by an empty polygon.
    return draw_matching(
        [_polygon(region) for region in match.references],
        [_polygon(region) for region in match.predictions],
        [(pair.prediction, pair.reference) for pair in match.pairs],
        image,
    )


def comparison(response: str, reference: str) -> str:
    """An HTML page with both sides of a parsed document."""
    from reward.cli.html_diff import parsing_diff_html
    from reward.task_scorers.parsing import parsing_details

    return parsing_diff_html(parsing_details(response, reference))


def _region_match(task: str, response: str, reference: str) -> RegionMatch:
    if task == TaskType.SPOTTING:
        from reward.task_scorers.spotting import match_details
    else:
        from reward.task_scorers.layout import match_details
    return match_details(response, reference)


def _polygon(region: Region) -> Sequence[tuple[float, float]]:
    points = region.points or ()
    if len(points) != 2:
        return points
    (left, top), (right, bottom) = points
    return (left, top), (right, top), (right, bottom), (left, bottom)


def _spotting(response: str, reference: str) -> str:
    return _regions(_region_match(TaskType.SPOTTING, response, reference))


def _layout(response: str, reference: str) -> str:
    return _regions(_region_match(TaskType.LAYOUT, response, reference))


def _regions(match: RegionMatch) -> str:
    rows: list[list[object]] = []
    for pair in match.pairs:
        ours, theirs = match.predictions[pair.prediction], match.references[pair.reference]
        rows.append(
            [
                f"P{pair.prediction + 1}",
                f"R{pair.reference + 1}",
                f"{pair.iou:.3f}",
                f"{pair.text_distance:.3f}",
                _label(ours),
                _label(theirs),
            ]
        )
    for index in match.unmatched_predictions:
        region = match.predictions[index]
        rows.append(
            [f"P{index + 1}", "-", "-", "1.000", _label(region) + ("" if region.points else " (unreadable)"), "-"]
        )
    for index in match.unmatched_references:
        rows.append(["-", f"R{index + 1}", "-", "1.000", "-", _label(match.references[index])])
    lines = [
        f"{match.note}: {len(match.pairs)} matches, {len(match.unmatched_predictions)} predictions and "
        f"{len(match.unmatched_references)} references without a match; total cost {match.total_cost:.4f} of {match.count}",
    ]
    if rows:
        lines.append(text_table(["pred", "ref", "IoU", "cost", "prediction", "reference"], rows))
    return "\n".join(lines)


def _label(region: Region) -> str:
    return _shorten(f"[{region.category}] {region.text}" if region.category else region.text)


def _parsing(response: str, reference: str) -> str:
    from reward.task_scorers.parsing import parsing_details

    details = parsing_details(response, reference)
    ours, theirs = details.response, details.reference
    lines = [
        f"decided by       {details.reason}",
        f"text similarity  {details.text_similarity:.4f}",
        f"characters       {len(ours.text)} in the response, {len(theirs.text)} in the reference",
        f"tables           {len(ours.tables)} in the response, {len(theirs.tables)} in the reference",
    ]
    for pair in details.table_pairs:
        lines.append(
            f"  reference table {pair.reference_index + 1} with response table {pair.response_index + 1}: "
            f"TEDS {pair.teds:.4f}, structure only {pair.structure_teds:.4f}"
        )
    return "\n".join(lines)


def _ie(response: str, reference: str) -> str:
    from reward.task_scorers.ie.eval import field_table

    fields = field_table(response, reference)
    if fields is None:
        return "the reference is no JSON object: scored as in parsing\n" + _parsing(response, reference)
    rows = [
        [
            _shorten(field.name),
            "(missing)" if field.reference is None else _shorten(field.reference),
            "(missing)" if field.prediction is None else _shorten(field.prediction),
            "yes" if field.exact else "no",
            f"{field.similarity:.4f}",
        ]
        for field in fields
    ]
    return text_table(["field", "reference", "prediction", "exact", "similarity"], rows)


def _chart(response: str, reference: str) -> str:
    from reward.task_scorers.chart_deplot import chart_details

    details = chart_details(response, reference)
    kind = details["kind"]
    lines = [f"kind             {kind['response']} in the response, {kind['reference']} in the reference"]
    lines += [f"{f'similarity, {name}':<16} {value:.4f}" for name, value in details["similarity"].items()]
    lines += [f"counts           {details['counts']}"] if "counts" in details else []
    lines += [f"note             {note}" for note in details.get("notes", ())]
    for title, items in (
        ("agreeing", [f"{ours}  =  {theirs}" for ours, theirs in details.get("agreeing", ())]),
        ("only in the reference", details.get("missing", ())),
        ("only in the response", details.get("extra", ())),
    ):
        if items:
            lines += [f"{title}:", *(f"  {item}" for item in items)]
    return "\n".join(lines)


def _pretty(analysis: str) -> str:
    try:
        return json.dumps(json.loads(analysis), ensure_ascii=False, indent=2)
    except ValueError:
        return analysis


def _shorten(text: str) -> str:
    line = " ".join(text[: 4 * _SHOWN_CHARS].split())
    return line if len(line) <= _SHOWN_CHARS else line[: _SHOWN_CHARS - 1] + "…"


_REPORTS: dict[str, Callable[[str, str], str]] = {
    TaskType.SPOTTING: _spotting,
    TaskType.LAYOUT: _layout,
    TaskType.PARSING: _parsing,
    TaskType.IE: _ie,
    TaskType.CHART_DEPLOT: _chart,
}
