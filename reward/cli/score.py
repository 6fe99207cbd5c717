"""Score a file of answers.

python -m reward score IN.jsonl --out OUT.jsonl [--workers N]

IN.jsonl has one object a line: ``response``, ``ref_answer``, ``task_type``; for the judge ``question``,
``source_lang_text``, ``target_lang``; optional ``id`` and ``data_source``. OUT.jsonl gets one object a line, in the
same order: ``line``, ``id``, ``input`` (a fingerprint of the input line) and the result's fields.

The same command again goes on where a killed run stopped. Lines that are no samples go to OUT.jsonl.rejects.jsonl.
Exit code: 0 every line has a score, 1 something was rejected or dropped, 2 could not run.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reward.cli.errors import UsageError, reports_errors
from reward.cli.pool import chunked, map_in_order, positive
from reward.cli.progress import Progress
from reward.cli.records import BadLine, count_lines, parse_line, read_lines
from reward.cli.summary import Summary
from reward.ocr_scorer import OCRScorer, needs_judge

_SHOWN_REJECTS = 10
_RETRIED = ("judge_unavailable", "judge_unparsed", "scorer_error", "timeout")

Sample = tuple[int, str, dict[str, Any]]
"""Line number, fingerprint of the line, its fields."""


def add_parser(subparsers: Any) -> None:
    """Register ``score``."""
    parser = subparsers.add_parser(
        "score",
        help="score a JSON Lines file of answers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    files = parser.add_argument_group("input and output")
    files.add_argument("input", type=Path, metavar="IN.jsonl", help="answers (.jsonl, .jsonl.gz or .jsonl.zst)")
    files.add_argument(
        "--out", type=Path, required=True, metavar="OUT.jsonl", help="results; an existing one is continued"
    )
    files.add_argument("--restart", action="store_true", help="score everything again, replacing OUT.jsonl")
    files.add_argument(
        "--retry-dropped", action="store_true", help=f"score lines again that ended in {', '.join(_RETRIED)}"
    )
    files.add_argument("--json", action="store_true", help="print the summary as JSON")
    scoring = parser.add_argument_group("scoring")
    scoring.add_argument("--task-type", metavar="T", help="task type of lines that have none")
    scoring.add_argument("--workers", type=positive, default=1, metavar="N", help="processes (default: 1)")
    scoring.add_argument(
        "--in-flight",
        type=positive,
        default=64,
        metavar="N",
        help="samples a worker takes at once, so also its judgements in flight (default: 64)",
    )


@reports_errors
def run(options: argparse.Namespace) -> int:
    """Score the file; the exit code is described in the module's docstring."""
    total = count_lines(options.input)
    if options.out.exists() and options.out.samefile(options.input):
        raise UsageError(f"{options.out}: --out is the input file; choose another one")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    if options.restart:
        options.out.unlink(missing_ok=True)
    done = _finished_rows(options.out, _RETRIED if options.retry_dropped else ())
    if done:
        print(f"{options.out}: {len(done)} of {total} lines are done, going on with the rest", file=sys.stderr)

    rejects: list[BadLine] = []
    with Progress(total, "score") as progress, options.out.open("ab") as out:
        samples = _samples(options, done, rejects, progress)
        for rows in map_in_order(_score_chunk, chunked(samples, options.in_flight), options.workers):
            # Whole lines are appended: a kill leaves at most one torn line, which the next run cuts off.
            out.write(b"".join(_json_line(row) for row in rows))
            out.flush()
            progress.add(len(rows))
    summary = _sort_by_line(options.out)
    rejects_path = _write_rejects(options, rejects)
    _report(options, summary, rejects, rejects_path)
    return 1 if rejects or summary.dropped else 0


def _samples(
    options: argparse.Namespace, done: dict[int, str], rejects: list[BadLine], progress: Progress
) -> Iterator[Sample]:
    """The samples that are still to be scored; bad lines are collected, finished ones are compared with the input."""
    unseen = dict(done)
    for number, raw in read_lines(options.input):
        fingerprint = hashlib.sha256(raw).hexdigest()[:12]
        if number in unseen:
            if unseen.pop(number) != fingerprint:
                raise _other_input(options, number)
            progress.add(1)
            continue
        sample = _checked(number, raw, options.task_type)
        if isinstance(sample, BadLine):
            rejects.append(sample)
            progress.add(1)
        else:
            yield number, fingerprint, sample
    if unseen:
        raise _other_input(options, min(unseen))


def _other_input(options: argparse.Namespace, number: int) -> UsageError:
    return UsageError(
        f"{options.out}: the result for line {number} was made from another input than {options.input}; "
        "use --restart to score everything again, or another --out"
    )


def _checked(number: int, raw: bytes, default_task: str | None) -> dict[str, Any] | BadLine:
    record = parse_line(number, raw)
    if isinstance(record, BadLine):
        return record
    text = raw.decode("utf-8")
    for field in ("response", "ref_answer"):
        if field not in record:
            return BadLine(number, field, "missing", text)
    if not isinstance(record["response"], str):
        return BadLine(number, "response", f"must be a string, got {type(record['response']).__name__}", text)
    task_type = record.get("task_type") or default_task or record.get("data_source")
    if not task_type or not isinstance(task_type, str):
        return BadLine(number, "task_type", "missing; add it, or name one for all lines with --task-type", text)
    return {**record, "task_type": task_type}


def _score_chunk(chunk: list[Sample]) -> list[dict[str, Any]]:
    """Rules one after the other, judgements all at once."""
    scorer = OCRScorer()
    judged = [sample for sample in chunk if needs_judge(sample[2]["task_type"])]
    results: dict[int, dict[str, Any]] = {}
    if judged:

        async def judge_all() -> list[dict[str, Any]]:
            return await asyncio.gather(*(scorer.process_scoring_async(fields) for _, _, fields in judged))

        results = dict(zip((number for number, _, _ in judged), asyncio.run(judge_all())))
    for number, _, fields in chunk:
        if number not in results:
            results[number] = scorer.process_scoring({"index": number, **fields})
    return [
        {"line": number, "id": fields.get("id", ""), "input": fingerprint, **results[number]}
        for number, fingerprint, fields in chunk
    ]


def _json_line(row: dict[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=False, default=str).encode("utf-8", "replace") + b"\n"


def _finished_rows(path: Path, retried: tuple[str, ...]) -> dict[int, str]:
    """Line numbers and fingerprints of an earlier run's results; its torn last line and what is retried are cut out."""
    if not path.exists():
        return {}
    kept: dict[int, str] = {}
    rewrite = False
    temporary = path.with_name(path.name + ".tmp")
    with path.open("rb") as old, temporary.open("wb") as new:
        for number, line in enumerate(old, start=1):
            if not line.endswith(b"\n"):
                rewrite = True
                continue
            row = parse_line(number, line)
            if isinstance(row, BadLine) or not {"line", "input", "decision"} <= row.keys():
                raise UsageError(f"{path}:{number}: not written by this command; choose another --out or use --restart")
            if row["decision"] in retried:
                rewrite = True
                continue
            kept[row["line"]] = row["input"]
            new.write(line)
    if rewrite:
        temporary.replace(path)
    else:
        temporary.unlink()
    return kept


def _sort_by_line(path: Path) -> Summary:
    """Summarise the results, and put them in the input's order when a retry appended some behind it."""
    summary = Summary()
    offsets: list[tuple[int, int, int]] = []
    with path.open("rb") as rows:
        position = 0
        for raw in rows:
            row = json.loads(raw)
            summary.add(row)
            offsets.append((row["line"], position, len(raw)))
            position += len(raw)
    if offsets != sorted(offsets):
        temporary = path.with_name(path.name + ".tmp")
        with path.open("rb") as rows, temporary.open("wb") as ordered:
            for _, position, length in sorted(offsets):
                rows.seek(position)
                ordered.write(rows.read(length))
        temporary.replace(path)
    return summary


def _write_rejects(options: argparse.Namespace, rejects: list[BadLine]) -> Path:
    path = options.out.with_name(options.out.name + ".rejects.jsonl")
    if not rejects:
        path.unlink(missing_ok=True)
        return path
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as out:
        for bad in rejects:
            out.write(
                _json_line(
                    {
                        "file": os.fspath(options.input),
                        "line": bad.line,
                        "field": bad.field,
                        "reason": bad.reason,
                        "raw": bad.raw,
                    }
                )
            )
    temporary.replace(path)
    return path


def _report(options: argparse.Namespace, summary: Summary, rejects: list[BadLine], rejects_path: Path) -> None:
    for bad in rejects[:_SHOWN_REJECTS]:
        where = f"field {bad.field}: " if bad.field else ""
        print(f"{options.input}:{bad.line}: {where}{bad.reason}", file=sys.stderr)
    if rejects:
        print(f"{len(rejects)} lines are no samples: all of them are in {rejects_path}", file=sys.stderr)
    if options.json:
        report = {
            "out": os.fspath(options.out),
            "rows": summary.rows,
            "dropped": summary.dropped,
            "rejected": len(rejects),
            "tasks": summary.as_dict(),
        }
        print(json.dumps(report, ensure_ascii=False))
    else:
        print(summary.table())
        print(f"{summary.rows} rows, {summary.dropped} dropped, {len(rejects)} rejected -> {options.out}")
