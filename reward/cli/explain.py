"""Show why an answer got its score.

python -m reward explain --task spotting --response ANSWER.txt --ref REFERENCE.txt [--image PAGE.png --png OUT.png]
python -m reward explain --task parsing --response ANSWER.txt --ref REFERENCE.txt --html DIFF.html
python -m reward explain --from IN.jsonl --line 17

Prints the result and what it was made of: pairs of regions, fields, rows, similarities. Spotting and layout can draw
the matching (--png), parsing can write a side-by-side comparison of text and tables (--html). ``-`` is standard input.
Exit code: 0 the answer has a score, 1 it was dropped, 2 could not run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from reward.cli import reports
from reward.cli.errors import UsageError, reports_errors
from reward.cli.records import BadLine, parse_line, read_lines
from reward.ocr_scorer import OCRScorer
from reward.ocr_utils import TaskType, canonical_tasks, classify_task, extract_answer

_JUDGE_FIELDS = ("question", "source_lang_text", "target_lang")


def add_parser(subparsers: Any) -> None:
    """Register ``explain``."""
    parser = subparsers.add_parser(
        "explain",
        help="show why an answer got its score",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sample = parser.add_argument_group("sample, from files")
    sample.add_argument("--task", metavar="T", help="task type, as in the data")
    sample.add_argument("--response", metavar="FILE", help="the answer")
    sample.add_argument("--ref", metavar="FILE", help="the reference")
    for field in _JUDGE_FIELDS:
        sample.add_argument(f"--{field.replace('_', '-')}", default="", metavar="TEXT", help="for judge tasks")
    line = parser.add_argument_group("sample, from a line of a file for `score`")
    line.add_argument("--from", dest="source", type=Path, metavar="IN.jsonl")
    line.add_argument("--line", type=int, metavar="N", help="line number, from 1")
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print the result as JSON, without the report")
    output.add_argument("--image", type=Path, metavar="IMG", help="the page, to draw on (with --png)")
    output.add_argument("--png", type=Path, metavar="OUT.png", help="spotting and layout: draw the matching")
    output.add_argument("--html", type=Path, metavar="OUT.html", help="parsing: write a side-by-side comparison")


@reports_errors
def run(options: argparse.Namespace) -> int:
    """Explain one sample; the exit code is described in the module's docstring."""
    sample = _from_line(options) if options.source else _from_files(options)
    task = classify_task(sample["task_type"])
    if not task:
        raise UsageError(f"task type {sample['task_type']!r} names none of {', '.join(canonical_tasks())}")
    _check_outputs(options, task)
    result = OCRScorer().process_scoring(sample)
    response, reference = extract_answer(sample["response"]), extract_answer(sample["ref_answer"])
    if options.json:
        print(json.dumps(result))
    else:
        _print(reports.report(task, result, response, reference))
    if options.png:
        picture = reports.picture(task, response, reference, options.image)
        _write(options.png, lambda path: picture.save(path, format="PNG"))
    if options.html:
        page = reports.comparison(response, reference)
        _write(options.html, lambda path: path.write_text(page, encoding="utf-8"))
    return 0 if result["valid"] else 1


def _from_files(options: argparse.Namespace) -> dict[str, str]:
    missing = [name for name in ("task", "response", "ref") if getattr(options, name) is None]
    if missing:
        raise UsageError(f"--{' and --'.join(missing)} missing (or name a line with --from FILE --line N)")
    if options.response == options.ref == "-":
        raise UsageError("--response and --ref cannot both be read from standard input")
    return {
        "task_type": options.task,
        "response": _read(options.response),
        "ref_answer": _read(options.ref),
        **{field: getattr(options, field) for field in _JUDGE_FIELDS},
    }


def _from_line(options: argparse.Namespace) -> dict[str, Any]:
    if options.line is None:
        raise UsageError("--from needs --line N")
    for number, raw in read_lines(options.source):
        if number == options.line:
            record = parse_line(number, raw)
            if isinstance(record, BadLine):
                raise UsageError(f"{options.source}:{number}: {record.reason}")
            for field in ("response", "ref_answer"):
                if field not in record:
                    raise UsageError(f"{options.source}:{number}: field {field} is missing")
                if not isinstance(record[field], str):
                    record[field] = json.dumps(record[field], ensure_ascii=False)
            task_type = options.task or record.get("task_type") or record.get("data_source")
            return {**record, "task_type": task_type if isinstance(task_type, str) else ""}
    raise UsageError(f"{options.source}: no sample in line {options.line}")


def _read(name: str) -> str:
    try:
        if name == "-":
            return sys.stdin.buffer.read().decode("utf-8")
        return Path(name).read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{name}: not UTF-8 at byte {error.start}") from error


def _check_outputs(options: argparse.Namespace, task: str) -> None:
    if options.png and task not in (TaskType.SPOTTING, TaskType.LAYOUT):
        raise UsageError(f"--png is for spotting and layout, not for {task}")
    if options.html and task != TaskType.PARSING:
        raise UsageError(f"--html is for parsing, not for {task}")
    if options.image and not options.png:
        raise UsageError("--image needs --png OUT.png")


def _print(text: str) -> None:
    # What cannot be shown on this terminal is escaped instead of ending the report.
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))


def _write(path: Path, write: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    write(temporary)
    temporary.replace(path)
    print(f"wrote {os.fspath(path)}", file=sys.stderr)
