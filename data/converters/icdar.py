"""ICDAR-style text spotting folders to spotting records.

    python data/converters/icdar.py --images train_images --labels train_gt --output spotting.jsonl

For every image `NAME.jpg` the labels are in `gt_NAME.txt` (or `NAME.txt`): one text a line,
`x1,y1,x2,y2,x3,y3,x4,y4,transcription`, pixels, everything behind the eighth comma is the transcription. Two corners
(`x1,y1,x2,y2,transcription`) are read with `--corners 2`. A transcription `###` marks a text nobody could read: it is left
out of the reference and counted. Coordinates become 0 to 1000 on both axes, a quadrilateral its bounding box.
"""

import argparse
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path

if __package__ in (None, ""):
    # As a script: the packages of the repository instead of the modules of this folder.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from PIL import Image

from data.converters.common import Converted, run_converter, scaled

IMAGE_NAMES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp")
UNREADABLE = "###"
QUESTION = "检测并识别图片中的文字，将文本坐标格式化输出。"
NOTE_ONLY_UNREADABLE = "images with unreadable texts only left out"
NOTE_UNREADABLE = "texts marked unreadable (###) left out"
# Text in front of a coordinate pair is told apart from it by nothing, so a text that looks like one would be misread.
_LIKE_COORDINATES = re.compile(r"\(\s*-?\d+(\.\d+)?\s*,\s*-?\d+(\.\d+)?\s*\)")


class LabelError(ValueError):
    """A label line that cannot be read; the message holds its number."""


def records(images: Path, labels: Path, question: str = QUESTION, corners: int = 4) -> Iterator[Converted]:
    """One result an image, in the order of their names.

    Args:
        images: folder of images.
        labels: folder of label files; may be the same.
        corners: points a label line starts with, 4 or 2.
    """
    for image in sorted(path for path in images.iterdir() if path.suffix.lower() in IMAGE_NAMES):
        label = next((p for p in (labels / f"gt_{image.stem}.txt", labels / f"{image.stem}.txt") if p.exists()), None)
        if label is None:
            yield Converted(str(image), problem=f"no label file gt_{image.stem}.txt in {labels}")
            continue
        try:
            with Image.open(image) as opened:
                width, height = opened.size
            texts = read_labels(label, corners)
            reference = "".join(_item(text, points, width, height) for text, points in texts if text != UNREADABLE)
        except (LabelError, UnicodeDecodeError, OSError) as error:
            yield Converted(str(label), problem=str(error))
            continue
        unreadable = sum(text == UNREADABLE for text, _ in texts)
        if unreadable and unreadable == len(texts):
            # An empty reference would say that there is nothing to read.
            yield Converted(str(image), notes=(NOTE_ONLY_UNREADABLE,))
            continue
        record = {
            "image": str(image.resolve()),
            "question": question,
            "ref_answer": reference,
            "task_type": "Spotting",
        }
        yield Converted(str(image), record, notes=(NOTE_UNREADABLE,) * unreadable)


def read_labels(path: Path, corners: int = 4) -> list[tuple[str, list[tuple[float, float]]]]:
    """Transcriptions and their points of one label file (UTF-8, with or without byte order mark).

    Raises:
        LabelError: a line without the coordinates or the transcription.
    """
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), 1):
        line = line.rstrip("\r")
        if not line.strip():
            continue
        fields = line.split(",", 2 * corners)
        try:
            numbers = [float(value) for value in fields[: 2 * corners]]
        except ValueError as error:
            raise LabelError(f"line {number}: {error}") from error
        if len(fields) != 2 * corners + 1 or not all(map(math.isfinite, numbers)):
            raise LabelError(f"line {number}: {2 * corners} coordinates and a transcription are expected")
        found.append((fields[-1].strip(), list(zip(numbers[::2], numbers[1::2]))))
    return found


def _item(text: str, points: list[tuple[float, float]], width: int, height: int) -> str:
    if not text:
        raise LabelError("a text without transcription; mark unreadable text as ###")
    if _LIKE_COORDINATES.search(text):
        raise LabelError(f"the text {text!r} reads like coordinates in a spotting answer")
    corners = [scaled(x, y, width, height) for x, y in points]
    xs, ys = [x for x, _ in corners], [y for _, y in corners]
    return f"{text}({min(xs)},{min(ys)}),({max(xs)},{max(ys)})"


def main(argv: list[str] | None = None) -> int:
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--images", type=Path, required=True, metavar="DIR")
        parser.add_argument("--labels", type=Path, metavar="DIR", help="label files (default: the images' folder)")
        parser.add_argument("--corners", type=int, choices=(2, 4), default=4, help="points a line starts with (4)")
        parser.add_argument("--question", default=QUESTION, help="prompt of every record")

    def convert(args: argparse.Namespace) -> Iterator[Converted]:
        return records(args.images, args.labels or args.images, args.question, args.corners)

    return run_converter("icdar.py", __doc__, add_arguments, convert, argv)


if __name__ == "__main__":
    sys.exit(main())
