"""The report as a table for people and as JSON for programs."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence

from utils.preflight.results import FAIL, PASS, STATUSES, Result

COLOURS = {"PASS": "\033[32m", "WARN": "\033[33m", "FAIL": "\033[31m"}
UNWRAPPED = 1_000_000


def as_json(results: Sequence[Result], not_checked: dict[str, str], seconds: float) -> str:
    """One object: ``summary`` (rows by status), ``results``, ``not_checked`` (check -> why), ``seconds``."""
    counts = Counter(result.status for result in results)
    report = {
        "summary": {status: counts[status] for status in STATUSES},
        "results": [result.as_dict() for result in results],
        "not_checked": not_checked,
        "seconds": round(seconds, 1),
    }
    return json.dumps(report, ensure_ascii=False, indent=1)


def as_table(results: Sequence[Result], not_checked: dict[str, str], seconds: float, width: int, colour: bool) -> str:
    """Status, check and what was found a row, remedies below their row, then one line of counts."""
    name_width = max((len(result.check) for result in results), default=0)
    indent = " " * (name_width + 8)
    lines = []
    for result in results:
        status = f"{COLOURS[result.status]}{result.status}\033[0m" if colour else result.status
        head = f"{status}  {result.check.ljust(name_width)}  "
        found = textwrap.wrap(result.found, max(40, width - len(indent)), break_on_hyphens=False) or [""]
        lines += [head + found[0], *(indent + line for line in found[1:])]
        if result.status != PASS:
            remedy = textwrap.wrap(f"-> {result.remedy}", max(40, width - len(indent)), break_on_hyphens=False)
            lines += [indent + line for line in remedy]
    counts = Counter(result.status for result in results)
    summary = ", ".join(f"{counts[status]} {status}" for status in STATUSES)
    left = f", {len(not_checked)} not applicable" if not_checked else ""
    verdict = "do not start" if counts[FAIL] else "ready"
    return "\n".join([*lines, f"preflight: {summary}{left} in {seconds:.1f} s: {verdict}"])


def print_table(results: Sequence[Result], not_checked: dict[str, str], seconds: float) -> None:
    """The table on stdout: as wide as the terminal, in colour there; one line a row in a log."""
    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if terminal else UNWRAPPED
    print(as_table(results, not_checked, seconds, width, terminal), flush=True)
