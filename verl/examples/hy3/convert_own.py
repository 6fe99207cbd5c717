"""Turn question-and-answer records of your own into training rows. Copy and change it, or use it as it is.

    python verl/examples/hy3/convert_own.py --inputs mine.jsonl --output_train train.parquet --output_val val.parquet \\
        --question-key problem --answer-key solution --val_ratio 0.02

Inputs are JSON Lines, CSV (with a header) or parquet. The answer must be what the rule compares: for data_source math_dapo
the bare final answer ("42", "\\\\frac{3}{4}"), not a worked solution. The split goes by the question's hash, so that the same
question is never in both files and a later run splits alike. Every bad record is listed with file and line, and nothing is
written then. Exit codes: 0 done, 1 bad records, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent))

from hy3_rows import DataError, problems, read_parquet, write_parquet

TEMPLATE = "{question}\n\nThink first. Then write the result on a line of its own, in this form:\nAnswer: <the result>"


def read_records(path: str) -> Iterator[tuple[int, dict]]:
    """``(number, record)`` of one input; numbers are lines from 1 (JSON Lines, CSV) or rows from 0 (parquet).

    Raises:
        DataError: naming file and line.
    """
    kind = Path(path).suffix.lower()
    if kind == ".parquet":
        yield from enumerate(read_parquet(path))
        return
    if kind not in (".jsonl", ".json", ".csv"):
        raise DataError(f"{path}: unknown kind {kind!r}; use .jsonl, .csv or .parquet")
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            if kind == ".csv":
                reader = csv.DictReader(file)
                for record in reader:
                    yield reader.line_num, record
                return
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    record = json.loads(line)
                except ValueError as error:
                    raise DataError(f"{path}:{number}: no JSON ({error})") from error
                if not isinstance(record, dict):
                    raise DataError(f"{path}:{number}: a line must hold one JSON object")
                yield number, record
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8 ({error})") from error


def convert(record: dict, index: int, args: argparse.Namespace, template: str) -> dict:
    """One training row. This is the function to change for records of another form.

    Raises:
        DataError: when a field is missing or empty.
    """
    texts = {}
    for name, key in (("question", args.question_key), ("answer", args.answer_key)):
        value = record.get(key)
        if value is None or not str(value).strip():
            raise DataError(
                f"field {key!r} is missing or empty; the record has {', '.join(map(str, record)) or 'none'}"
            )
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise DataError(f"field {key!r} is {type(value).__name__}, must be a text or a number")
        texts[name] = str(value).strip()
    messages = [{"role": "system", "content": args.system}] if args.system else []
    messages.append({"role": "user", "content": template.replace("{question}", texts["question"])})
    return {
        "data_source": args.data_source,
        "prompt": messages,
        "ability": args.ability,
        "reward_model": {"style": "rule", "ground_truth": texts["answer"]},
        "extra_info": {"split": "", "index": index, "question": texts["question"]},
    }


def is_validation(question: str, ratio: float, seed: int) -> bool:
    """Whether a question belongs to the validation part, by its hash: about ``ratio`` of all do."""
    digest = hashlib.sha256(f"{seed}\n{' '.join(question.split())}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < ratio * 2**64


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="convert_own.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    files = parser.add_argument_group("files")
    files.add_argument("--inputs", nargs="+", required=True, metavar="FILE")
    files.add_argument("--output_train", required=True, metavar="T.parquet")
    files.add_argument("--output_val", default="", metavar="V.parquet")
    content = parser.add_argument_group("content")
    content.add_argument("--question-key", default="question")
    content.add_argument("--answer-key", default="answer")
    content.add_argument("--data-source", default="math_dapo", help="picks verl's rule (math_dapo)")
    content.add_argument("--ability", default="math")
    content.add_argument("--system", default="", help="system message")
    content.add_argument(
        "--template", default="", metavar="FILE", help="prompt text with {question} (default: built in)"
    )
    split = parser.add_argument_group("split")
    split.add_argument("--val_ratio", type=float, default=0.0)
    split.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    if not 0 <= args.val_ratio < 1:
        parser.error("--val_ratio must be at least 0 and below 1")
    if args.val_ratio and not args.output_val:
        parser.error("--val_ratio needs --output_val")
    template = TEMPLATE
    if args.template:
        try:
            template = Path(args.template).read_text(encoding="utf-8")
        except OSError as error:
            parser.error(f"--template {args.template}: {error.strerror}")
    if "{question}" not in template:
        parser.error("--template has no {question}")

    parts: dict[str, list[dict]] = {"train": [], "val": []}
    errors = []
    try:
        for path in args.inputs:
            for number, record in read_records(path):
                index = len(parts["train"]) + len(parts["val"])
                try:
                    row = convert(record, index, args, template)
                except DataError as error:
                    errors.append(f"{path}:{number}: {error}")
                    continue
                errors += [f"{path}:{number}: {text}" for text in problems(row)]
                part = "val" if is_validation(row["extra_info"]["question"], args.val_ratio, args.seed) else "train"
                row["extra_info"]["split"] = part
                parts[part].append(row)
    except DataError as error:
        errors.append(str(error))
    if errors:
        print(f"convert_own: {len(errors)} problems, nothing written:", file=sys.stderr)
        print("\n".join(f"  {line}" for line in errors[:20]), file=sys.stderr)
        if len(errors) > 20:
            print(f"  … and {len(errors) - 20} more", file=sys.stderr)
        return 1
    try:
        for part, path in (("val", args.output_val), ("train", args.output_train)):
            if path and (parts[part] or part == "train"):
                print(f"{path}: {write_parquet(path, parts[part])} rows")
    except DataError as error:
        print(f"convert_own: {error}", file=sys.stderr)
        return 1
    if args.output_val and not parts["val"]:
        print(f"no validation rows at --val_ratio {args.val_ratio}: {args.output_val} was not written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
