"""Data preparation at size: a generated input with planted defects, what of them is found, speed and peak memory.

    python benchmarks/bench_data.py                      # 200,000 lines, 1 % defects
    python benchmarks/bench_data.py --rows 5000 --workers 1 --keep /tmp/bench

Fails (exit 1) when a planted defect is missed, misnamed or reported on another line, when a good line is rejected, or
when the memory of all processes together (PSS) passes --max-mb. Prints lines/s for the machine it runs on.
"""

import argparse
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import zstandard
from PIL import Image

_ROOT = Path(__file__).resolve().parent.parent
TASKS = ("Spotting", "Layout", "Parsing", "IE", "chart_deplot", "Translation", "VQA")
_WORDS = ("invoice", "total", "2024", "发票", "金额", "north", "café", "42.5", "Σ", "page", "合计", "date")


@dataclass(frozen=True)
class Planted:
    """Where a defect was put: file name, line from 1, the kind it has to be reported as."""

    file: str
    line: int
    kind: str


def make_images(folder: Path, count: int, seed: int = 0) -> list[str]:
    """`count` different small images, and the broken ones the defects need. Returns the names of the good ones."""
    rng = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for number in range(count):
        size = (rng.randrange(480, 800), rng.randrange(560, 900))
        image = Image.new("RGB", size, (rng.randrange(256), rng.randrange(256), rng.randrange(256)))
        for _ in range(8):
            x, y = rng.randrange(size[0] - 40), rng.randrange(size[1] - 20)
            image.paste((rng.randrange(256), 0, 0), (x, y, x + 40, y + 20))
        name = f"{number:06d}.{'jpg' if number % 2 else 'png'}"
        image.save(folder / name, compress_level=1)
        names.append(name)
    good = (folder / names[0]).read_bytes()
    (folder / "cut_off.png").write_bytes(good[: len(good) // 2])
    (folder / "empty.png").write_bytes(b"")
    (folder / "text.png").write_text("this is no image")
    (folder / "folder.png").mkdir(exist_ok=True)
    Image.new("L", (2100, 10)).save(folder / "narrow.png")
    Image.new("I;16", (600, 600)).save(folder / "deep.png")
    Image.new("1", (10_000, 10_000)).save(folder / "bomb.png")
    return names


def good_record(rng: random.Random, number: int, images: list[str]) -> dict[str, Any]:
    """A valid record of a random task and layout; `number` keeps records apart."""
    task = TASKS[number % len(TASKS)]
    text = " ".join(rng.choices(_WORDS, k=rng.randrange(3, 40))) + f" {number}"
    reference: Any = {
        "Spotting": f"{text}(10,20),(300,400)no {number}(10,500),(300,600)",
        "Layout": f"{text}<hy-meta><layout>paragraph</layout><poly>(1,2),(90,2),(90,40),(1,40)</poly></hy-meta>",
        "Parsing": f"# Page {number}\n\n{text}\n\n<table><tr><td>{number}</td><td>2</td></tr></table>",
        "IE": {"number": number, "text": text},
        "chart_deplot": f"| year | sales |\n|---|---|\n| 2023 | {number} |\n| 2024 | {number + 1} |",
        "Translation": text,
        "VQA": str(number),
    }[task]
    question = f"Read item {number}." if number % 5 else ""
    # Always the same pairs: pairs at random would tie nearly all images into one group, which cannot be split.
    first = rng.randrange(len(images) - 1)
    shown = images[first - first % 2 :][:2] if number % 50 == 0 else [images[first]]
    layout = number % 4
    if layout == 0:
        turns = [{"from": "human", "value": "<image>" * len(shown) + question}, {"from": "gpt", "value": reference}]
        return {"image_path": shown, "conversations": turns, "task_type": task}
    if layout == 1 and len(shown) == 1:
        return {"img_path_sh": shown[0], "conv": [{"question": question, "answer": reference}], "task_type": task}
    record = {"images": shown, "ref_answer": reference, "question": question, "task_type": task, "extra": number}
    if layout == 2:
        parts = [*({"type": "image"} for _ in shown), {"type": "text", "text": question or "Read."}]
        record["prompt"] = [{"role": "user", "content": parts}]
    return record


def _native(record: dict[str, Any], images: list[str]) -> dict[str, Any]:
    """The record reduced to the plain layout, on which every defect can be planted."""
    return {"image": images[0], "ref_answer": "some text", "question": "Read.", "task_type": "Parsing"}


def _with(**changes: Any) -> Callable[[dict[str, Any]], bytes]:
    """A line of the record with these fields; None removes one."""

    def line(record: dict[str, Any]) -> bytes:
        changed = {name: value for name, value in {**record, **changes}.items() if value is not None}
        return json.dumps(changed, ensure_ascii=False).encode("utf-8", "surrogatepass")

    return line


def _raw(change: Callable[[bytes], bytes]) -> Callable[[dict[str, Any]], bytes]:
    return lambda record: change(json.dumps(record, ensure_ascii=False).encode())


_CHAT = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Read."}]}

DEFECTS: dict[str, Callable[[dict[str, Any]], bytes]] = {
    "invalid_utf8": _raw(lambda line: line.replace(b"Read.", b"Re\xff\xfed.")),
    "invalid_json": _raw(lambda line: line[: len(line) // 2]),
    "not_an_object": _raw(lambda line: b"[" + line + b"]"),
    "duplicate_key": _raw(lambda line: line[:-1] + b', "question": "again"}'),
    "invalid_unicode": _raw(lambda line: line.replace(b"some text", b"some \\ud800 text")),
    "missing_image": _with(image=None),
    "image_type": _with(image=7),
    "image_conflict": _with(img_path="another.png"),
    "missing_reference": _with(ref_answer=None),
    "missing_question": _with(question=None),
    "missing_task_type": _with(task_type=None),
    "unknown_task_type": _with(task_type="ocr"),
    "ambiguous_task_type": _with(task_type="layout_parsing"),
    "field_type": _with(target_lang=["de"]),
    "conversation_shape": _with(ref_answer=None, conversations=[{"from": "gpt", "value": "first"}]),
    "prompt_message": _with(prompt=[{"role": "robot", "content": "<image>"}]),
    "prompt_part": _with(prompt=[{"role": "user", "content": [{"type": "audio", "audio": "a.wav"}]}]),
    "prompt_last_role": _with(prompt=[_CHAT, {"role": "assistant", "content": "Done."}]),
    "placeholder_count": _with(prompt="<image><image>Compare."),
    "stray_media_tag": _with(question="What does <video> mean?"),
    "control_token": _with(prompt="<image>Read <｜hy_image▁pad｜>."),
    "image_path": _with(image=" "),
    "image_remote": _with(image="https://example.com/page.png"),
    "image_not_found": _with(image="no_such_file.png"),
    "image_not_file": _with(image="folder.png"),
    "image_empty": _with(image="empty.png"),
    "image_unreadable": _with(image="text.png"),
    "image_undecodable": _with(image="cut_off.png"),
    "image_too_many_pixels": _with(image="bomb.png"),
    "image_aspect_ratio": _with(image="narrow.png"),
    "image_mode": _with(image="deep.png"),
    "reference_empty": _with(ref_answer=""),
    "reference_unusable": _with(ref_answer="no coordinates here", task_type="Spotting"),
}


def generate(folder: Path, rows: int, share: float, images: int, seed: int = 0) -> tuple[list[Path], list[Planted]]:
    """Write inputs of `rows` lines to `folder` (plain, gzip and Zstandard) with `share` of them defective.

    Every kind of `DEFECTS` occurs when the share allows for it. Returns the files and the truth about the defects.
    """
    names = make_images(folder, images, seed)
    rng = random.Random(seed)
    kinds = list(DEFECTS)
    defective = sorted(rng.sample(range(rows), round(rows * share)))
    kind_of = {number: kinds[i % len(kinds)] for i, number in enumerate(defective)}
    files = [folder / "a.jsonl", folder / "b.jsonl.gz", folder / "c.jsonl.zst"]
    bounds = [0, rows // 2, rows * 3 // 4, rows]
    planted = []
    for file, start, stop in zip(files, bounds, bounds[1:]):
        with _opened(file) as handle:
            for number in range(start, stop):
                record, kind = good_record(rng, number, names), kind_of.get(number)
                if kind:
                    planted.append(Planted(str(file), number - start + 1, kind))
                    handle.write(DEFECTS[kind](_native(record, names)) + b"\n")
                else:
                    handle.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
    return files, planted


def _opened(file: Path) -> Any:
    if file.suffix == ".gz":
        return gzip.open(file, "wb", compresslevel=1)
    return zstandard.open(file, "wb") if file.suffix == ".zst" else open(file, "wb")


def read_findings(path: Path) -> Iterator[dict[str, Any]]:
    with open(path, encoding="utf-8") as handle:
        yield from map(json.loads, handle)


class PeakMemory(threading.Thread):
    """Samples the proportional memory (PSS) of a process and its descendants until it ends."""

    def __init__(self, pid: int):
        super().__init__(daemon=True)
        self._process = psutil.Process(pid)
        self.megabytes = 0.0

    def run(self) -> None:
        while True:
            try:
                tree = [self._process, *self._process.children(recursive=True)]
                total = sum(_pss(process) for process in tree)
            except psutil.NoSuchProcess:
                return
            self.megabytes = max(self.megabytes, total / 2**20)
            if self._process.status() == psutil.STATUS_ZOMBIE:
                return
            time.sleep(0.1)


def _pss(process: psutil.Process) -> int:
    try:
        return process.memory_full_info().pss
    except (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
        return 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--defects", type=float, default=0.01, help="share of defective lines (0.01)")
    parser.add_argument("--images", type=int, default=2_000, help="different images the rows share (2000)")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--max-mb", type=float, default=500)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="generate into this folder and keep it")
    parser.add_argument("extra", nargs="*", help="options for prepare_data.py, after --")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        started = time.monotonic()
        files, planted = generate(folder, args.rows, args.defects, args.images)
        print(
            f"generated {args.rows} lines, {len(planted)} defects of {len({p.kind for p in planted})} kinds, "
            f"{args.images} images in {time.monotonic() - started:.0f} s"
        )
        train = folder / "train.parquet"
        command = [sys.executable, str(_ROOT / "data/prepare_data.py"), "--inputs", *map(str, files)]
        command += ["--output_train", str(train), "--output_val", str(folder / "val.parquet"), "--on-error", "skip"]
        command += ["--workers", str(args.workers), *args.extra]
        started = time.monotonic()
        process = subprocess.Popen(command)
        memory = PeakMemory(process.pid)
        memory.start()
        code = process.wait()
        seconds = time.monotonic() - started
        memory.join()
        found = {(f["file"], f["line"], f["kind"]) for f in read_findings(Path(f"{train}.rejects.jsonl"))}
        truth = {(p.file, p.line, p.kind) for p in planted}
    print(
        f"exit code {code}; {args.rows / seconds:.0f} lines/s with {args.workers} workers ({seconds:.1f} s in all); "
        f"peak memory {memory.megabytes:.0f} MB; defects found {len(found & truth)} of {len(truth)}, "
        f"missed {len(truth - found)}, invented {len(found - truth)}"
    )
    for what, left in (("missed", truth - found), ("invented", found - truth)):
        if left:
            print(f"{what}: {Counter(kind for _, _, kind in left)}; e.g. {sorted(left)[:3]}")
    return int(code != 0 or found != truth or memory.megabytes > args.max_mb)


if __name__ == "__main__":
    sys.exit(main())
