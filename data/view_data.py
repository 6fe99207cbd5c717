"""Look at a prepared set the way a person would: samples of each task with image, prompt, reference and self-score.

    python data/view_data.py train.parquet                    # in the terminal
    python data/view_data.py train.parquet --html page.html   # one self-contained page with thumbnails

Exit codes: 0 done, 1 the file cannot be read, 2 wrong usage.
"""

import argparse
import base64
import hashlib
import html
import io
import os
import re
import sys
import textwrap
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    # As a script: the packages of the repository instead of the modules of this folder.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from reward.ocr_scorer import SCORERS, JudgeScorer
from reward.ocr_utils import classify_task

_NEEDED = ("data_source", "prompt", "images", "reward_model", "extra_info")
# What would act on a terminal instead of showing on it.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_STYLE = """
body { font-family: system-ui, sans-serif; margin: 2em auto; max-width: 72em; padding: 0 1em; color: #222 }
article { border: 1px solid #ccc; border-radius: 6px; padding: 1em; margin: 1em 0; display: flex; gap: 1em }
figure { margin: 0; max-width: 340px } figcaption { font-size: 80%; color: #666; overflow-wrap: anywhere }
img { max-width: 320px; border: 1px solid #ddd } pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #f6f6f6;
padding: .5em; max-height: 24em; overflow-y: auto } .text { flex: 1; min-width: 0 } .bad { color: #b00020 }
h3 { margin: .2em 0; font-size: 90%; color: #555 } table { border-collapse: collapse }
td, th { padding: .2em .8em; text-align: right }
"""


class ViewError(ValueError):
    """The file is not a prepared set; the message says what is missing."""


@dataclass(frozen=True)
class Sample:
    """A row with its place in the file and what its reference scores against itself."""

    number: int
    row: dict[str, Any]
    self_score: str

    @property
    def is_faulty(self) -> bool:
        return self.self_score not in ("1.0000", "judge")


def choose(path: str, per_task: int, seed: int, tasks: list[str]) -> tuple[Counter[str], dict[str, list[Sample]]]:
    """Rows per task, and up to `per_task` samples of each task chosen by id and seed, in file order.

    Raises:
        ViewError: the file lacks a column of a prepared set.
        OSError, pyarrow.ArrowException: the file cannot be read.
    """
    counts: Counter[str] = Counter()
    kept: dict[str, list[tuple[bytes, int, dict[str, Any]]]] = defaultdict(list)
    number = 0
    with pq.ParquetFile(path) as file:
        missing = [name for name in _NEEDED if name not in file.schema_arrow.names]
        if missing:
            raise ViewError(f"{path}: no column {', '.join(missing)}; data/prepare_data.py writes such files")
        for batch in file.iter_batches(batch_size=512):
            for row in batch.to_pylist():
                task = classify_task(row["extra_info"]["task_type"]) or "unknown task"
                counts[task] += 1
                if not tasks or task in tasks:
                    lot = hashlib.blake2b(f"{seed} {row['extra_info'].get('id')} {number}".encode()).digest()
                    kept[task] = sorted([*kept[task], (lot, number, row)], key=lambda entry: entry[0])[:per_task]
                number += 1
    samples = {
        task: [Sample(place, row, self_score(row)) for _, place, row in sorted(entries, key=lambda entry: entry[1])]
        for task, entries in sorted(kept.items())
    }
    return counts, samples


def self_score(row: dict[str, Any]) -> str:
    """What the reference scores against itself: a number, "judge" for tasks of a judge model, or why it has no score."""
    info, reference = row["extra_info"], row["reward_model"]["ground_truth"]
    if isinstance(SCORERS.get(classify_task(info["task_type"])), JudgeScorer):
        return "judge" if reference.strip() else "empty_reference"
    from reward_ocr import compute_score

    result = compute_score(
        data_source=row["data_source"], solution_str=reference, ground_truth=reference, extra_info=info
    )
    return f"{result['score']:.4f}" if result["decision"] == "scored" else result["decision"]


def terminal_text(counts: Counter[str], samples: dict[str, list[Sample]], width: int) -> str:
    """The samples as plain text of `width` columns; long texts are shortened."""
    lines = [f"{task}: {count} rows" for task, count in sorted(counts.items())]
    for task, chosen in samples.items():
        for sample in chosen:
            info = sample.row["extra_info"]
            lines += ["", "─" * width, f"{task}  row {sample.number}  id {info.get('id', '')}"]
            lines += [f"image      {path} ({_image_size(path)})" for path in sample.row["images"]]
            for message in sample.row["prompt"]:
                lines += _block(message["role"], message["content"], width)
            lines += _block("reference", sample.row["reward_model"]["ground_truth"], width)
            lines.append(f"self-score {sample.self_score}")
    return "\n".join(_CONTROL.sub("�", line) for line in lines)


def html_page(path: str, counts: Counter[str], samples: dict[str, list[Sample]], side: int) -> str:
    """One page without outside references; images as thumbnails of at most `side` pixels a side."""
    name = html.escape(os.path.basename(path))
    total = "".join(f"<tr><th>{html.escape(task)}</th><td>{count}</td></tr>" for task, count in sorted(counts.items()))
    articles = []
    for task, chosen in samples.items():
        articles.append(f"<h2>{html.escape(task)}</h2>")
        articles += [_article(sample, side) for sample in chosen]
    return (
        f'<!doctype html><html><head><meta charset="utf-8"><title>{name}</title><style>{_STYLE}</style></head>'
        f"<body><h1>{name}</h1><table>{total}</table>{''.join(articles)}</body></html>\n"
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="view_data.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", metavar="DATA.parquet")
    choice = parser.add_argument_group("choice")
    choice.add_argument("--samples", type=int, default=3, metavar="N", help="samples a task (3)")
    choice.add_argument("--task", action="append", default=[], metavar="X", help="only this task (may be repeated)")
    choice.add_argument("--seed", type=int, default=0, metavar="N", help="other samples (0)")
    output = parser.add_argument_group("output")
    output.add_argument("--html", metavar="OUT.html", help="write a page instead of printing")
    output.add_argument("--thumbnail", type=int, default=320, metavar="PIXELS", help="longest side of images (320)")
    output.add_argument("--width", type=int, default=100, metavar="N", help="columns of the terminal view (100)")
    args = parser.parse_args(argv)
    tasks = [classify_task(task) for task in args.task]
    if not all(tasks) or min(args.samples, args.thumbnail, args.width) < 1:
        parser.error("--task has to name a task; --samples, --thumbnail and --width have to be at least 1")
    try:
        counts, samples = choose(args.data, args.samples, args.seed, tasks)
        if args.html:
            _write(args.html, html_page(args.data, counts, samples, args.thumbnail))
        else:
            print(terminal_text(counts, samples, args.width), flush=True)
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ViewError, OSError, pa.ArrowException) as error:
        print(f"view_data.py: {error}", file=sys.stderr)
        return 1
    return 0


def _article(sample: Sample, side: int) -> str:
    info = sample.row["extra_info"]
    figures = "".join(_figure(path, side) for path in sample.row["images"])
    turns = "".join(
        f"<h3>{html.escape(m['role'])}</h3><pre>{html.escape(m['content'])}</pre>" for m in sample.row["prompt"]
    )
    reference = html.escape(sample.row["reward_model"]["ground_truth"])
    score = f"<p{' class=bad' * sample.is_faulty}>self-score {html.escape(sample.self_score)}</p>"
    head = f"row {sample.number} · {html.escape(info['task_type'])} · {html.escape(str(info.get('id', '')))}"
    return (
        f"<article><div>{figures}</div><div class=text><h3>{head}</h3>{turns}"
        f"<h3>reference</h3><pre>{reference}</pre>{score}</div></article>"
    )


def _figure(path: str, side: int) -> str:
    caption = f"<figcaption>{html.escape(path)}<br>{_image_size(path)}</figcaption>"
    try:
        data = _thumbnail(path, side)
    except Exception as error:  # shown in the image's place, whatever is wrong with it
        return f"<figure><p class=bad>{html.escape(f'{type(error).__name__}: {error}')}</p>{caption}</figure>"
    return f'<figure><img alt="" src="data:image/jpeg;base64,{data}">{caption}</figure>'


def _thumbnail(path: str, side: int) -> str:
    with Image.open(path) as image:
        image.draft("RGB", (side, side))
        small = image.convert("RGB")
    small.thumbnail((side, side))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=80)
    return base64.b64encode(buffer.getvalue()).decode()


def _image_size(path: str) -> str:
    try:
        with Image.open(path) as image:
            return f"{image.width}x{image.height}"
    except Exception as error:  # a viewer shows what is there, a broken image too
        return f"cannot be read: {type(error).__name__}"


def _block(title: str, text: str, width: int, most: int = 12) -> list[str]:
    wrapped = [piece for line in text.splitlines() for piece in (textwrap.wrap(line, width - 11) or [""])] or [
        "(empty)"
    ]
    shown = wrapped[:most] + ([f"… {len(wrapped) - most} more lines"] if len(wrapped) > most else [])
    return [f"{title if number == 0 else '':<10} {line}" for number, line in enumerate(shown)]


def _write(path: str, text: str) -> None:
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        Path(temporary).write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
