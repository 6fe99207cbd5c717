"""What ``explain`` prints, draws and compares, task by task."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward.ocr_utils import TaskType

if TYPE_CHECKING:
    from PIL.Image import Image


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


def comparison(response: str, reference: str) -> str:
    """An HTML page with both sides of a parsed document."""
    from reward.cli.html_diff import parsing_diff_html
    from reward.task_scorers.parsing import parsing_details

    return parsing_diff_html(parsing_details(response, reference))


def _pretty(analysis: str) -> str:
    try:
        return json.dumps(json.loads(analysis), ensure_ascii=False, indent=2)
    except ValueError:
        return analysis


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


_REPORTS: dict[str, Callable[[str, str], str]] = {
    TaskType.PARSING: _parsing,
}
