"""Get the default data of the Hy3 recipe: DAPO-Math-17k to train on, AIME-2024 to validate with.

    python verl/examples/hy3/prepare_data.py --data-dir DATA_DIR
    python verl/examples/hy3/prepare_data.py --data-dir DATA_DIR --train dapo.parquet --val aime.parquet      (no network)

Each set is a parquet file or the name of a data set on the HuggingFace hub. Rows are checked and written where
run_hy_v3_megatron.sh looks for them: DATA_DIR/DAPO-Math-17k/dapo-math-17k.parquet and DATA_DIR/AIME-2024/aime-2024.parquet.
Both sets repeat their prompts (the hub's DAPO file about a hundred times): --dedup keeps each prompt once.
Exit codes: 0 done, 1 bad rows (nothing is written for that set) or no download, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent))

from hy3_rows import FIELDS, DataError, problems, read_parquet, write_parquet

TRAIN = ("BytedTsinghua-SIA/DAPO-Math-17k", "DAPO-Math-17k/dapo-math-17k.parquet")
VAL = ("BytedTsinghua-SIA/AIME-2024", "AIME-2024/aime-2024.parquet")


def is_hub_name(source: str) -> bool:
    """Whether a source means a data set on the hub: OWNER/NAME, and no such file here."""
    parts = source.split("/")
    return not os.path.exists(source) and len(parts) == 2 and all(parts) and not source.endswith(".parquet")


def read_source(source: str) -> Iterator[dict]:
    """Rows of a parquet file or of a hub data set's ``train`` split.

    Raises:
        DataError: when it cannot be read or downloaded.
    """
    if not is_hub_name(source):
        yield from read_parquet(source)
        return
    import datasets

    try:
        loaded = datasets.load_dataset(source, split="train")
    except Exception as error:
        # The hub client raises dozens of types for "no network", "no such set" and "no permission".
        reason = str(error).strip().splitlines()
        raise DataError(
            f"{source}: cannot be loaded from the HuggingFace hub ({type(error).__name__}: {reason[0] if reason else ''}). "
            "Without network, download its parquet file elsewhere and give that file instead of the name."
        ) from error
    yield from loaded


def checked(rows: Iterable[dict], source: str, dedup: bool, limit: int, counts: dict) -> Iterator[dict]:
    """The five fields of every row; ``counts`` is filled with rows, duplicates and errors.

    Raises:
        DataError: after the last row, listing the first errors, when there were any.
    """
    seen: set[int] = set()
    errors: list[str] = []
    for number, row in enumerate(rows):
        if limit and counts["rows"] >= limit:
            break
        found = problems(row)
        if found:
            counts["errors"] += 1
            errors += [f"row {number}: {text}" for text in found[: max(0, 10 - len(errors))]]
            continue
        key = hash(json.dumps([dict(message) for message in row["prompt"]], sort_keys=True))
        if key in seen:
            counts["duplicates"] += 1
            if dedup:
                continue
        seen.add(key)
        counts["rows"] += 1
        yield {name: row[name] for name in FIELDS}
    if errors:
        raise DataError(f"{source}: {counts['errors']} bad rows:\n  " + "\n  ".join(errors))


def prepare(source: str, target: Path, dedup: bool = False, limit: int = 0, dry_run: bool = False) -> dict[str, int]:
    """Read, check and write one set; returns ``{"rows", "duplicates", "errors"}``.

    Raises:
        DataError: when it cannot be read or has bad rows; then nothing is written.
    """
    from tqdm import tqdm

    counts = {"rows": 0, "duplicates": 0, "errors": 0}
    rows = checked(read_source(source), source, dedup, limit, counts)
    rows = tqdm(rows, desc=target.name, unit=" rows", disable=None)
    if dry_run:
        for _ in rows:
            pass
    else:
        write_parquet(target, rows)
    return counts


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="prepare_data.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", required=True, metavar="DIR", help="DATA_DIR of run_hy_v3_megatron.sh")
    sources = parser.add_argument_group("sources (a parquet file or OWNER/NAME on the hub)")
    sources.add_argument("--train", default=TRAIN[0], metavar="SOURCE", help=f"training set ({TRAIN[0]})")
    sources.add_argument("--val", default=VAL[0], metavar="SOURCE", help=f"validation set ({VAL[0]})")
    sources.add_argument("--only", choices=["train", "val"], help="only one of the two")
    content = parser.add_argument_group("content")
    content.add_argument("--dedup", action="store_true", help="each prompt once")
    content.add_argument("--limit", type=int, default=0, metavar="N", help="at most N rows a set (0: all)")
    content.add_argument("--force", action="store_true", help="replace files that exist")
    content.add_argument("--dry-run", action="store_true", help="read and check, write nothing")
    args = parser.parse_args(argv)
    if args.limit < 0:
        parser.error("--limit must be 0 or more")
    for kind, source, relative in (("train", args.train, TRAIN[1]), ("val", args.val, VAL[1])):
        if args.only not in (None, kind):
            continue
        target = Path(args.data_dir) / relative
        if target.exists() and not args.force and not args.dry_run:
            print(f"{target} exists: kept (--force replaces it)")
            continue
        try:
            counts = prepare(source, target, args.dedup, args.limit, args.dry_run)
        except DataError as error:
            print(f"prepare_data: {error}", file=sys.stderr)
            return 1
        repeated = f", {counts['duplicates']} repeated prompts {'left out' if args.dedup else 'kept'}"
        print(
            f"{source} -> {target}: {counts['rows']} rows{repeated}{' (dry run: not written)' if args.dry_run else ''}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
