"""Reading spotting answers.

Four formats, decided for the whole answer:

1. ``<ref>text</ref><quad>(x1,y1),(x2,y2)</quad>``
2. ``<quad><pos_x1><pos_y1><pos_x2><pos_y2></quad><ref>text</ref>``
3. ``text(x1,y1),(x2,y2)`` items back to back
4. a JSON array of ``{"box": [xmin, ymin, xmax, ymax], "text": …}``; ``bbox`` is an alias

JSON is tried first and must parse as a whole. An answer that holds ``<pos_`` is read as format 2, one that holds
``<ref>`` or ``<quad>`` as format 1, any other as format 3. An answer that opens with a code fence has none of the
formats. Stops (``.``, ``。``) and blanks at the end of the whole answer are ignored.

An item that is complete but whose coordinates cannot be read has no box. Its text is kept for reports. Coordinates
outside [0, 1000] are kept, swapped corners put in order, more than two points of a ``<quad>`` mean their bounding box.
A comma alone between two coordinate pairs of format 3 joins them and is no text.
"""

import re
from collections.abc import Iterator
from typing import Any

from reward.task_scorers.coordinates import NUMBER, POINT, finite_numbers, finite_point, parse_points
from reward.task_scorers.geometry import Point, bounding_box
from reward.task_scorers.json_text import NOT_JSON, parse_json
from reward.task_scorers.region_match import Answer, Region, read_answer, region

_FENCE = re.compile(r"(?:```|~~~)[^\n(`<]*+(?:\n|\Z)")
_TAG = re.compile(r"</?(?:ref|quad)>")
_POSITION = re.compile(rf"\s*+<pos_({NUMBER})>\s*+")
_PAIR = re.compile(rf"{POINT}\s*+,\s*+{POINT}")


def parse_spotting(text: str) -> Answer:
    """Read a spotting answer in whichever format it has; see the module."""
    text = without_final_stops(text)
    return read_answer(text, _regions(text))


def without_final_stops(text: str) -> str:
    """``text`` trimmed, and without stops at its end."""
    text = text.strip()
    end = len(text)
    while end and (text[end - 1] in ".。" or text[end - 1].isspace()):
        end -= 1
    return text[:end]


def opens_with_fence(text: str) -> bool:
    """Whether a trimmed answer starts with the opening line of a code fence."""
    return _FENCE.match(text) is not None


def _regions(text: str) -> list[Region] | None:
    if text.startswith("["):
        value = parse_json(text)
        if isinstance(value, list):
            return [_json_region(item) for item in value]
    if opens_with_fence(text) or (text.startswith("{") and parse_json(text) is not NOT_JSON):
        return None
    if "<pos_" in text:
        found = [region(words, _positions(quad)) for quad, words in _tagged_items(text, "quad", "ref")]
    elif "<ref>" in text or "<quad>" in text:
        found = [region(words, _corners(parse_points(quad))) for words, quad in _tagged_items(text, "ref", "quad")]
    else:
        found = list(_plain_regions(text))
    return found or None


def _json_region(item: Any) -> Region:
    if not isinstance(item, dict):
        return region("", None)
    numbers = finite_numbers(item.get("box", item.get("bbox")))
    points = [(numbers[0], numbers[1]), (numbers[2], numbers[3])] if numbers and len(numbers) == 4 else None
    return region(item.get("text"), _corners(points))


def _tagged_items(text: str, first: str, second: str) -> Iterator[tuple[str, str]]:
    """Contents of each ``<first>…</first><second>…</second>``; anything incomplete is passed over."""
    steps = (f"<{first}>", f"</{first}>", f"<{second}>", f"</{second}>")
    reached: list[re.Match[str]] = []
    for tag in _TAG.finditer(text):
        if tag[0] == steps[0]:
            reached = []
        elif tag[0] != steps[len(reached)] or (len(reached) == 2 and text[reached[1].end() : tag.start()].strip()):
            reached = []
            continue
        reached.append(tag)
        if len(reached) == len(steps):
            yield text[reached[0].end() : reached[1].start()], text[reached[2].end() : reached[3].start()]
            reached = []


def _positions(quad: str) -> list[Point] | None:
    numbers = []
    position = 0
    while match := _POSITION.match(quad, position):
        numbers.append(match[1])
        position = match.end()
    if position != len(quad) or len(numbers) < 4 or len(numbers) % 2:
        return None
    points = [finite_point(x, y) for x, y in zip(numbers[::2], numbers[1::2], strict=True)]
    return None if None in points else _corners(points)


def _plain_regions(text: str) -> Iterator[Region]:
    start = 0
    for pair in _PAIR.finditer(text):
        words = text[start : pair.start()].strip()
        start = pair.end()
        if words and words != ",":
            points = [finite_point(pair[1], pair[2]), finite_point(pair[3], pair[4])]
            yield region(words, None if None in points else _corners(points))


def _corners(points: list[Point] | None) -> list[Point] | None:
    """Lower and upper corner of the bounding box of at least two points, else None."""
    if points is None or len(points) < 2:
        return None
    xmin, ymin, xmax, ymax = bounding_box(points)
    return [(xmin, ymin), (xmax, ymax)]
