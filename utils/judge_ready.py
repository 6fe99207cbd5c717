"""Can every judge task of a dataset be judged?

    python -m utils.judge_ready TRAIN.parquet [VAL.parquet …]

Reads the task types of the files; when one of them is scored by a judge model, the routes file must name a usable server for
RM_SYSTEM_JUDGE_MODEL_NAME. Sends nothing (``python -m reward judge-check`` asks the servers). Exit code 0, or 2 with the
remedy.
"""

from __future__ import annotations

import argparse
import sys

import pyarrow.compute as pc
import pyarrow.parquet as pq


def task_types(path: str) -> set[str]:
    """The distinct task types of a parquet: ``extra_info.task_type``, or ``data_source`` where that is empty.

    Raises:
        OSError, pyarrow.ArrowException: when the file is no readable parquet.
    """
    found: set[str] = set()
    for batch in pq.ParquetFile(path).iter_batches(columns=["data_source", "extra_info"]):
        extra = batch.column("extra_info")
        named = pc.struct_field(extra, "task_type") if extra.type.get_field_index("task_type") >= 0 else None
        sources = batch.column("data_source").to_pylist()
        types = named.to_pylist() if named is not None else [""] * len(sources)
        found.update(name or source for name, source in zip(types, sources))
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+")
    args = parser.parse_args(argv)
    import pyarrow

    from reward.ocr_scorer import needs_judge
    from reward.utils.judge_config import JudgeConfigError
    from reward.utils.routes import usable_routes

    judged: set[str] = set()
    for path in args.files:
        try:
            judged.update(name for name in task_types(path) if needs_judge(name))
        except (OSError, KeyError, pyarrow.ArrowException) as error:
            print(f"judge_ready: {path}: {error}", file=sys.stderr)
            return 2
    if not judged:
        return 0
    try:
        usable_routes()
    except JudgeConfigError as error:
        print(f"judge_ready: {', '.join(sorted(judged))} need a judge: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
