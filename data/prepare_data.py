"""Convert raw OCR records to the parquet files that training reads.

    python data/prepare_data.py --inputs a.jsonl b.jsonl --output_train train.parquet --output_val val.parquet \\
        --val_ratio 0.02

A record is a JSON object on a line of its own:

    {"image": "page.png", "ref_answer": "...", "question": "...", "task_type": "Parsing"}

Every line is checked first. When one is rejected nothing is written but the list of rejects, and the exit code is 1;
`--on-error skip` goes on without them. Exit codes: 0 done, 1 rejects or a failure, 2 wrong usage. docs/data.md has the
formats, the checks and the files.
"""

import argparse
import json
import os
import signal
import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

if __package__ in (None, ""):
    # As a script: the packages of the repository instead of the modules of this folder.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from data.checks import CheckOptions
from data.images import CHECKS, PILLOW_LIMIT
from data.pipeline import PrepareOptions, Report, prepare
from data.readers import InputError, expand_inputs
from reward.ocr_utils import canonical_tasks, classify_task, matching_tasks


class UsageError(ValueError):
    """The command line asks for something impossible."""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="prepare_data.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    files = parser.add_argument_group("files")
    files.add_argument(
        "--inputs",
        nargs="+",
        required=True,
        metavar="FILE",
        help="JSON Lines (plain, .gz, .zst), parquet, a glob in quotes, or - for standard input",
    )
    _add(files, "--output_train", required=True, metavar="T.parquet", help="training rows; findings go beside it")
    _add(files, "--output_val", default="", metavar="V.parquet", help="validation rows; without it all rows train")
    files.add_argument(
        "--image-root", default="", metavar="DIR", help="start of relative image paths (default: the input's folder)"
    )
    files.add_argument(
        "--max-line-mb", type=_positive, default=64, metavar="N", help="longest accepted line in MiB (64)"
    )

    content = parser.add_argument_group("content")
    _add(
        content,
        "--task-type",
        default="",
        metavar="X",
        help=f"task of records that name none ({', '.join(canonical_tasks())}, or a name that contains one)",
    )
    _add(
        content,
        "--data_source",
        default="",
        metavar="S",
        help="data_source of every row (default: the row's task type)",
    )
    content.add_argument(
        "--escape-media-tags",
        action="store_true",
        help="write stray <image>, <video>, <audio> and control tokens as '< image>' instead of rejecting them",
    )
    content.add_argument(
        "--ambiguous-task",
        choices=("reject", "warn"),
        default="reject",
        help="task types that hit several tasks (reject)",
    )

    split = parser.add_argument_group("split")
    _add(
        split,
        "--val_ratio",
        type=_ratio,
        default=0.02,
        metavar="R",
        help="share of validation rows of each task (0.02); rows of one image stay together",
    )
    split.add_argument("--seed", type=int, default=0, metavar="N", help="another seed, another split and order (0)")
    split.add_argument(
        "--group-by",
        choices=("content", "path"),
        default="content",
        help="two images are the same by their bytes (content) or by their path, which spares reading whole files",
    )

    checks = parser.add_argument_group("checks")
    checks.add_argument(
        "--on-error",
        choices=("stop", "skip"),
        default="stop",
        help="rejected lines: write nothing and exit 1 (stop), or go on without them (skip)",
    )
    checks.add_argument(
        "--check-images",
        choices=CHECKS,
        default="decode",
        help="none: paths are not touched; open: header; decode: every pixel (decode)",
    )
    checks.add_argument(
        "--max-image-pixels",
        type=_positive,
        default=89_478_485,
        metavar="N",
        help=f"largest image area (89478485; training itself fails over {PILLOW_LIMIT})",
    )
    checks.add_argument(
        "--resized-images",
        choices=("warn", "reject"),
        default="warn",
        help="images whose area the model's processor would change (warn)",
    )
    checks.add_argument("--no-check-references", action="store_true", help="do not score references against themselves")
    checks.add_argument(
        "--duplicates",
        choices=("warn", "drop", "reject"),
        default="warn",
        help="equal samples: keep and report, drop and report, or reject (warn)",
    )

    model = parser.add_argument_group("statistics")
    model.add_argument("--stats", action="store_true", help="print a table of sizes per task")
    model.add_argument(
        "--model",
        default="",
        metavar="DIR",
        help="checkpoint folder: lengths in its tokens, image bounds of its processor",
    )
    model.add_argument(
        "--max-prompt-length",
        type=_positive,
        metavar="N",
        help="also print the share of prompts over N tokens, which training drops (needs --model)",
    )

    run = parser.add_argument_group("run")
    run.add_argument(
        "--workers",
        type=_positive,
        default=len(os.sched_getaffinity(0)),
        metavar="N",
        help="processes that check lines (one a core)",
    )
    run.add_argument("--dry-run", action="store_true", help="check and report, write no file")
    run.add_argument("--json", action="store_true", help="print the report as JSON on standard output")
    run.add_argument("--quiet", action="store_true", help="no progress, no summary; errors only")
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    try:
        options = options_from(args)
    except (UsageError, InputError) as error:
        print(f"prepare_data.py: {error}", file=sys.stderr)
        return 2
    try:
        report = prepare(options)
    except (InputError, OSError) as error:
        print(f"prepare_data.py: {error}", file=sys.stderr)
        return 1
    except BrokenProcessPool:
        print(
            "prepare_data.py: a worker died (out of memory?); nothing was written. Try fewer --workers", file=sys.stderr
        )
        return 1
    except KeyboardInterrupt:
        print("prepare_data.py: interrupted; nothing was written", file=sys.stderr)
        return 130
    _show(report, options, args)
    return 1 if report.failure else 0


def options_from(args: argparse.Namespace) -> PrepareOptions:
    """Raises `UsageError` or `InputError` for what the parser cannot tell."""
    if args.task_type and len(matching_tasks(args.task_type)) != 1:
        hit = ", ".join(matching_tasks(args.task_type)) or "no task"
        if not (classify_task(args.task_type) and args.ambiguous_task == "warn"):
            raise UsageError(f"--task-type {args.task_type} hits {hit}; use one of {', '.join(canonical_tasks())}")
    if args.max_prompt_length and not args.model:
        raise UsageError("--max-prompt-length counts tokens, which needs --model")
    if args.model and not os.path.isdir(args.model):
        raise UsageError(f"--model {args.model}: no such folder (a local checkpoint is needed)")
    if args.image_root and not os.path.isdir(args.image_root):
        raise UsageError(f"--image-root {args.image_root}: no such folder")
    if args.max_image_pixels > PILLOW_LIMIT:
        raise UsageError(f"--max-image-pixels over {PILLOW_LIMIT}: Pillow refuses such images in training")
    inputs = expand_inputs(args.inputs)
    outputs = [path for path in (args.output_train, args.output_val) if path]
    if len({os.path.realpath(path) for path in outputs}) < len(outputs):
        raise UsageError("--output_train and --output_val name the same file")
    for path in outputs:
        if os.path.isdir(path):
            raise UsageError(f"{path}: is a folder; name a parquet file")
        if not path.endswith(".parquet"):
            raise UsageError(f"{path}: verl tells the format by the name, which has to end in .parquet")
        if os.path.realpath(path) in {os.path.realpath(name) for name in inputs}:
            raise UsageError(f"{path}: is also an input and would be overwritten")
    checks = CheckOptions(
        task_type=args.task_type,
        data_source=args.data_source,
        image_root=os.path.abspath(args.image_root) if args.image_root else "",
        escape_media_tags=args.escape_media_tags,
        allow_ambiguous_task=args.ambiguous_task == "warn",
        check_images=args.check_images,
        max_image_pixels=args.max_image_pixels,
        group_by_path=args.group_by == "path",
        reject_resized=args.resized_images == "reject",
        check_references=not args.no_check_references,
        model=args.model,
    )
    return PrepareOptions(
        inputs=inputs,
        output_train=args.output_train,
        output_val=args.output_val,
        val_ratio=args.val_ratio,
        seed=args.seed,
        on_error=args.on_error,
        duplicates=args.duplicates,
        workers=args.workers,
        dry_run=args.dry_run,
        max_line_bytes=args.max_line_mb << 20,
        max_prompt_length=args.max_prompt_length,
        quiet=args.quiet,
        checks=checks,
    )


def _show(report: Report, options: PrepareOptions, args: argparse.Namespace) -> None:
    if args.json:
        print(json.dumps(report.to_json() | {"seconds": round(report.seconds, 3)}, ensure_ascii=False, indent=2))
    for found in report.first_rejects if not args.quiet else []:
        field = f" {found['field']}:" if found["field"] else ""
        print(f"{found['file']}:{found['line']}:{field} [{found['kind']}] {found['reason']}", file=sys.stderr)
    if report.failure:
        print(f"prepare_data.py: nothing written: {report.failure}", file=sys.stderr)
    if args.quiet:
        return
    _show_counts(report, options)
    if args.stats and report.stats:
        print(report.stats.table(), file=sys.stderr if args.json else sys.stdout)


def _show_counts(report: Report, options: PrepareOptions) -> None:
    def say(text: str) -> None:
        print(text, file=sys.stderr)

    paths = options.finding_paths()
    say(f"{report.lines} lines in {report.seconds:.1f} s ({report.lines / max(report.seconds, 1e-9):.0f} lines/s)")
    for title, kinds, path in (("rejected", report.rejected, "rejects"), ("warnings", report.warned, "warnings")):
        if kinds:
            where = "" if options.dry_run else f" ({paths[path]})"
            say(
                f"{title}: {kinds.total()}{where}: "
                + ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
            )
    for split, path in options.split_paths().items():
        state = path if report.written else f"{path} not written"
        wanted = sum(report.val_targets.values())
        short = split == "val" and report.rows[split] < wanted
        say(f"{split}: {report.rows[split]} rows ({state})" + f", {wanted} wanted: image groups stay whole" * short)


def _add(group: argparse._ArgumentGroup, name: str, **settings) -> None:
    """Options of more than one word are accepted with dashes and with underscores."""
    words = name.removeprefix("--")
    group.add_argument(name, *{"--" + words.replace("_", "-"), "--" + words.replace("-", "_")} - {name}, **settings)


def _positive(text: str) -> int:
    value = int(text)
    if value <= 0:
        raise argparse.ArgumentTypeError("has to be at least 1")
    return value


def _ratio(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError("has to be at least 0 and under 1")
    return value


if __name__ == "__main__":
    # So that temporary files go when the run is ended politely, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
