"""Render a small OCR dataset as raw JSONL, for ``data/prepare_data.py``.

    python -m utils.demo.make_data OUT [--count 12] [--width 96] [--height 64] [--seed 0]

Writes ``OUT/images/*.png`` and ``OUT/raw.jsonl`` with the fields that people have: image, question, ref_answer, task_type. Most
samples are Parsing (lines of 0 and 1, the alphabet of the demo model), some Spotting and IE, so that several scorers run.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path

from PIL import Image, ImageDraw

LINE_HEIGHT = 14
MARGIN = 4


def render(lines: list[str], width: int, height: int) -> tuple[Image.Image, list[tuple[int, int, int, int]]]:
    """Black text on white; returns the image and each line's box in pixels (x1, y1, x2, y2)."""
    image = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(image)
    boxes = []
    for index, line in enumerate(lines):
        corner = (MARGIN, MARGIN + index * LINE_HEIGHT)
        draw.text(corner, line, fill="black")
        boxes.append(tuple(int(value) for value in draw.textbbox(corner, line)))
    return image, boxes


def _reference(
    task: str, lines: list[str], boxes: list[tuple[int, int, int, int]], width: int, height: int
) -> str | dict:
    if task == "Spotting":
        return "".join(
            f"{line}({x1 * 1000 // width},{y1 * 1000 // height}),({x2 * 1000 // width},{y2 * 1000 // height})"
            for line, (x1, y1, x2, y2) in zip(lines, boxes)
        )
    if task == "IE":
        return {"code": lines[0]}
    return "\n".join(lines)


QUESTIONS = {"Parsing": "Read the text.", "Spotting": "Find and read the text.", "IE": "Extract the code as JSON."}


def make(out: Path, count: int, width: int, height: int, seed: int, lines: int = 1) -> Path:
    """Write the dataset; deterministic in its arguments. Returns the path of ``raw.jsonl``."""
    rng = random.Random(seed)
    (out / "images").mkdir(parents=True, exist_ok=True)
    rows = []
    for index in range(count):
        task = "Spotting" if index % 6 == 4 else "IE" if index % 6 == 5 else "Parsing"
        text = [" ".join("".join(rng.choice("01") for _ in range(4)) for _ in range(2)) for _ in range(lines)]
        image, boxes = render(text, width, height)
        path = out / "images" / f"{index:05d}.png"
        image.save(path)
        rows.append(
            {
                "image": str(path.resolve()),
                "question": QUESTIONS[task],
                "ref_answer": _reference(task, text, boxes, width, height),
                "task_type": task,
            }
        )
    raw = out / "raw.jsonl"
    raw.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return raw


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=12, help="samples (default 12)")
    parser.add_argument("--width", type=int, default=96, help="page width in pixels")
    parser.add_argument("--height", type=int, default=64, help="page height in pixels")
    parser.add_argument("--lines", type=int, default=1, help="text lines a page")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    print(make(args.out, args.count, args.width, args.height, args.seed, args.lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
