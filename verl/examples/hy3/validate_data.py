"""Check parquet files for training Hy3: the five fields of every row, and that the rule can score its reference.

    python verl/examples/hy3/validate_data.py train.parquet val.parquet [--json] [--max-shown 20] [--no-rewards]

A row fails when a field is missing or has another form (errors), or when no rule of verl's knows its data_source (an error,
unless you bring a reward function: --no-rewards). A reference that not even its own text scores is a warning: no answer
can be right. Exit codes: 0 no errors, 1 errors, 2 a file cannot be read.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import lru_cache
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent))

from hy3_rows import DataError, perfect_answer, problems, read_parquet, routed_score


def check_file(path: str, rewards: bool, progress: bool = False) -> dict:
    """Counts and findings of one file.

    Returns:
        ``{"file", "rows", "errors": [{"row", "problem"}], "warnings": [...], "data_sources": {name: rows}}``; rows count
        from 0.

    Raises:
        DataError: when the file cannot be read.
    """
    report = {"file": str(path), "rows": 0, "errors": [], "warnings": [], "data_sources": {}}

    @lru_cache(maxsize=200_000)
    def reference_score(source: str, truth: str) -> float | str:
        try:
            return routed_score(source, perfect_answer(truth), truth)
        except NotImplementedError:
            return (
                f"data_source: verl has no rule for {source!r}; use math_dapo, or bring REWARD_FN_PATH (--no-rewards)"
            )
        except Exception as error:
            return f"reward_model.ground_truth: verl's rule for {source!r} fails on {truth!r}: {error!r}"

    rows = read_parquet(path)
    if progress:
        from tqdm import tqdm

        rows = tqdm(rows, desc=Path(path).name, unit=" rows", disable=None)
    for number, row in enumerate(rows):
        report["rows"] += 1
        found = problems(row)
        if not found:
            source, truth = row["data_source"], row["reward_model"]["ground_truth"]
            report["data_sources"][source] = report["data_sources"].get(source, 0) + 1
            if rewards:
                score = reference_score(source, truth)
                if isinstance(score, str):
                    found.append(score)
                elif score <= 0:
                    report["warnings"].append(
                        {
                            "row": number,
                            "problem": f"reward_model.ground_truth: {truth!r} does not score as its own answer",
                        }
                    )
        report["errors"] += [{"row": number, "problem": text} for text in found]
    if not report["rows"]:
        report["errors"].append({"row": -1, "problem": "the file has no rows"})
    return report


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="validate_data.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", metavar="FILE.parquet")
    parser.add_argument("--no-rewards", action="store_true", help="only the fields; for a reward function of your own")
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="one JSON object a file, with every finding")
    output.add_argument("--max-shown", type=int, default=20, metavar="N", help="findings shown a file (20)")
    args = parser.parse_args(argv)
    code = 0
    for path in args.files:
        try:
            report = check_file(path, rewards=not args.no_rewards, progress=not args.json)
        except DataError as error:
            print(f"validate_data: {error}", file=sys.stderr)
            return 2
        code = max(code, 1 if report["errors"] else 0)
        if args.json:
            print(json.dumps(report, ensure_ascii=False))
            continue
        sources = ", ".join(f"{name} {count}" for name, count in sorted(report["data_sources"].items())) or "none"
        print(
            f"{path}: {report['rows']} rows, {len(report['errors'])} errors, {len(report['warnings'])} warnings; "
            f"data_source: {sources}"
        )
        for kind in ("errors", "warnings"):
            for finding in report[kind][: args.max_shown]:
                print(f"  {kind[:-1]}: row {finding['row']}: {finding['problem']}")
            if len(report[kind]) > args.max_shown:
                print(f"  … and {len(report[kind]) - args.max_shown} more {kind}; --json lists all")
    return code


if __name__ == "__main__":
    sys.exit(main())
