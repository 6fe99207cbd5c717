"""What every converter shares: the result type, coordinates, prompts, and the command line around a generator."""

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

# The longer side of a page is not special: both axes run from 0 to 1000 on their own.
SCALE = 1000


@dataclass(frozen=True)
class Converted:
    """What became of `source`: a record, a `problem`, or neither when it was left out on purpose. `notes` are counted."""

    source: str
    record: dict[str, Any] | None = None
    problem: str = ""
    notes: tuple[str, ...] = ()


def scaled(x: float, y: float, width: int, height: int) -> tuple[int, int]:
    """A pixel position on the grid of 0 to 1000, clipped to the image.

    Args:
        x, y: pixels from the top left corner.
        width, height: of the image, in pixels, positive.
    """
    return (
        min(SCALE, max(0, round(x / width * SCALE))),
        min(SCALE, max(0, round(y / height * SCALE))),
    )


def run_converter(
    name: str,
    description: str,
    add_arguments: Callable[[argparse.ArgumentParser], None],
    convert: Callable[[argparse.Namespace], Iterator[Converted]],
    argv: list[str] | None,
) -> int:
    """Parse arguments, convert, write the records to `--output` (renamed into place when complete).

    Returns:
        0 when everything was converted; 1 when something was not and `--on-error stop` (nothing is written then), or
        when nothing was found.
    """
    parser = argparse.ArgumentParser(
        prog=name, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument("--output", required=True, metavar="OUT.jsonl", help="records for data/prepare_data.py")
    parser.add_argument(
        "--on-error", choices=("stop", "skip"), default="stop", help="what to do when something cannot be converted"
    )
    args = parser.parse_args(argv)
    temporary = f"{args.output}.{os.getpid()}.tmp"
    written, problems, notes = 0, 0, Counter()
    try:
        with open(temporary, "w", encoding="utf-8") as handle:
            for converted in convert(args):
                notes.update(converted.notes)
                if converted.problem:
                    problems += 1
                    print(f"{converted.source}: {converted.problem}", file=sys.stderr)
                elif converted.record is not None:
                    written += 1
                    handle.write(json.dumps(converted.record, ensure_ascii=False) + "\n")
        complete = written > 0 and (problems == 0 or args.on_error == "skip")
        if complete:
            os.replace(temporary, args.output)
    except OSError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)
    for note, count in sorted(notes.items()):
        print(f"{note}: {count}", file=sys.stderr)
    state = args.output if complete else "nothing written" + (" (--on-error skip goes on)" if problems else "")
    print(f"{written} records, {problems} not converted: {state}", file=sys.stderr)
    return 0 if complete else 1
