"""Score every reference of a dataset against itself: the first thing to run on new data.

python -m reward audit DATA.parquet [--workers N]

Lists the rows whose reference is unusable or does not score 1 as its own answer, and the task types that name no task
or several. DATA is a parquet file of data/prepare_data.py, or a JSON Lines file with ``ref_answer`` and ``task_type``.
References of judge tasks are not judged: they must be there, and so must the question (VQA) or the question or source
text (translation).

Exit code: 0 nothing found, 1 something found, 2 could not run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from reward.cli.errors import UsageError, reports_errors
from reward.cli.pool import chunked, map_in_order, positive
from reward.cli.progress import Progress
from reward.cli.records import BadLine, count_rows, read_references
from reward.cli.summary import text_table
from reward.ocr_scorer import OCRScorer, needs_judge
from reward.ocr_utils import TaskType, canonical_tasks, classify_task, extract_answer, matching_tasks

_CHUNK_ROWS = 64
_SHOWN_CHARS = 80

PROBLEMS = {
    "unreadable_row": "the line is no sample",
    "unknown_task": "the task type names no task",
    "ambiguous_task": "the task type names several tasks, the first by precedence is taken",
    "empty_reference": "the reference is empty",
    "bad_reference": "the reference cannot be read in any format of its task",
    "self_score": "the reference as its own answer does not score 1",
    "empty_question": "a judge task without the text that its judge needs",
    "scorer_error": "the scorer failed on it",
    "timeout": "the scorer did not finish",
}


@dataclass(frozen=True)
class Finding:
    """One problem of one row. ``row`` counts from 0 in parquet files; in JSON Lines files it is the line, from 1."""

    row: int
    id: str
    task_type: str
    task: str
    problem: str
    detail: str
    reference: str


def add_parser(subparsers: Any) -> None:
    """Register ``audit``."""
    parser = subparsers.add_parser(
        "audit",
        help="score every reference of a dataset against itself",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    files = parser.add_argument_group("input and output")
    files.add_argument("data", type=Path, metavar="DATA", help=".parquet, or .jsonl, .jsonl.gz, .jsonl.zst")
    files.add_argument("--out", type=Path, metavar="FINDINGS.jsonl", help="write every finding, one object a line")
    files.add_argument("--json", action="store_true", help="print counts and every finding as one JSON object")
    files.add_argument("--show", type=int, default=50, metavar="N", help="findings to print as text (default: 50)")
    parser.add_argument_group("scoring").add_argument(
        "--workers", type=positive, default=1, metavar="N", help="processes (default: 1)"
    )


@reports_errors
def run(options: argparse.Namespace) -> int:
    """Audit the file; the exit code is described in the module's docstring."""
    total = count_rows(options.data)
    if not total:
        raise UsageError(f"{options.data}: no rows")
    rows: Counter[str] = Counter()
    findings: list[Finding] = []
    with Progress(total, "audit") as progress:
        chunks = chunked(read_references(options.data), _CHUNK_ROWS)
        for chunk in map_in_order(_audit_chunk, chunks, options.workers):
            for task, found in chunk:
                rows[task or "(unknown)"] += 1
                findings.extend(found)
            progress.add(len(chunk))
    if options.out:
        _write(options.out, findings)
    _report(options, rows, findings)
    return 1 if findings else 0


def audit_row(row: int, fields: dict[str, Any] | BadLine) -> tuple[str, list[Finding]]:
    """Canonical task ("" when unknown) and findings of one row."""
    if isinstance(fields, BadLine):
        where = f"field {fields.field}: " if fields.field else ""
        return "", [Finding(row, "", "", "", "unreadable_row", where + fields.reason, _shorten(fields.raw))]
    task_type = _task_type(fields)
    task = classify_task(task_type)
    reference = fields.get("ref_answer")

    def finding(problem: str, detail: str) -> Finding:
        return Finding(row, str(fields.get("id") or ""), task_type, task, problem, detail, _shorten(reference))

    found = []
    matches = matching_tasks(task_type)
    if len(matches) > 1:
        found.append(finding("ambiguous_task", f"it names {', '.join(matches)}; taken as {task}"))
    if task and needs_judge(task):
        problem = _judge_problem(task, fields)
        if problem:
            found.append(finding(*problem))
        return task, found
    result = OCRScorer().process_scoring({"index": row, **fields, "response": reference})
    if result["decision"] == "unknown_task":
        known = ", ".join(canonical_tasks())
        found.append(finding("unknown_task", f"{task_type!r} names none of {known}"))
    elif result["decision"] != "scored":
        found.append(finding(result["decision"], result["analysis"]))
    elif result["score"] < 1.0:
        found.append(finding("self_score", f"scores {result['score']:.4f} against itself"))
    return task, found


def _task_type(fields: dict[str, Any]) -> str:
    for name in ("task_type", "data_source"):
        value = fields.get(name)
        if isinstance(value, str) and value.strip():
            return value
    return ""


def _judge_problem(task: str, fields: dict[str, Any]) -> tuple[str, str] | None:
    if not _given(fields, "ref_answer"):
        return "empty_reference", "the judge has nothing to compare with"
    needed = ("question", "source_lang_text") if task == TaskType.TRANSLATION else ("question",)
    if not any(_given(fields, name) for name in needed):
        return "empty_question", f"{' and '.join(needed)} empty: the judge cannot know what was asked"
    return None


def _given(fields: dict[str, Any], name: str) -> bool:
    value = fields.get(name)
    return bool(extract_answer(value).strip()) if isinstance(value, str) else value is not None


def _audit_chunk(chunk: list[tuple[int, dict[str, Any] | BadLine]]) -> list[tuple[str, list[Finding]]]:
    return [audit_row(row, fields) for row, fields in chunk]


def _shorten(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = " ".join(text[: 4 * _SHOWN_CHARS].split())
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"


def _objects(findings: list[Finding]) -> Iterator[dict[str, Any]]:
    return map(asdict, findings)


def _write(path: Path, findings: list[Finding]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8", errors="replace") as out:
        for entry in _objects(findings):
            out.write(json.dumps(entry, ensure_ascii=False) + "\n")
    temporary.replace(path)


def _report(options: argparse.Namespace, rows: Counter[str], findings: list[Finding]) -> None:
    problems = Counter(finding.problem for finding in findings)
    if options.json:
        report = {
            "data": os.fspath(options.data),
            "rows": rows.total(),
            "tasks": dict(sorted(rows.items())),
            "problems": dict(sorted(problems.items())),
            "findings": list(_objects(findings)),
        }
        print(json.dumps(report, ensure_ascii=True))
        return
    unit = "row" if options.data.suffix == ".parquet" else "line"
    for finding in findings[: options.show]:
        name = f" ({finding.id})" if finding.id else ""
        print(f"{options.data}: {unit} {finding.row}{name}: {finding.problem}: {finding.detail}: {finding.reference}")
    if len(findings) > options.show:
        hint = "" if options.out else "; --out writes all of them"
        print(f"... and {len(findings) - options.show} more{hint}", file=sys.stderr)
    if problems:
        print(
            text_table(
                ["problem", "rows", "meaning"], [[name, problems[name], PROBLEMS[name]] for name in sorted(problems)]
            )
        )
    print(text_table(["task", "rows"], [[task, count] for task, count in sorted(rows.items())]))
    print(f"{rows.total()} rows, {len({finding.row for finding in findings})} with findings")
