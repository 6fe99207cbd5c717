"""Reading layout answers.

Two formats, decided for the whole answer:

1. blocks ``text<hy-meta><layout>category</layout><poly>(x1,y1),…</poly></hy-meta>``; ``<quad>`` for ``<poly>`` too
2. a JSON array of ``{"layout_type": …, "bbox": …, "text": …}``, whose text may be missing

A polygon is written ``(x1,y1),(x2,y2),…`` or ``[[x1,y1],[x2,y2],…]``, in JSON also as a list; two points are the
corners of an axis-aligned box, a flat list of four or eight numbers is two or four points.

JSON is tried first and must parse as a whole. An answer that opens with a code fence has none of the formats. The text of
a block is everything since the previous block; a cut-off block and text behind the last block are ignored. A complete
block without a category or without a readable polygon has no points.
"""

import re
from collections.abc import Iterator
from typing import Any

from reward.task_scorers.coordinates import finite_numbers, parse_points
from reward.task_scorers.geometry import Point
from reward.task_scorers.json_text import parse_json
from reward.task_scorers.layout_categories import canonical_category
from reward.task_scorers.region_match import Answer, Region, read_answer, region
from reward.task_scorers.spotting_formats import opens_with_fence

_META = re.compile(r"</?hy-meta>")


def parse_layout(text: str) -> Answer:
    """Read a layout answer in whichever format it has; see the module."""
    text = text.strip()
    return read_answer(text, _blocks(text))


def _blocks(text: str) -> list[Region] | None:
    if text.startswith("["):
        value = parse_json(text)
        if isinstance(value, list):
            return [_json_block(item) for item in value]
    if opens_with_fence(text):
        return None
    return list(_tagged_blocks(text)) or None


def _json_block(item: Any) -> Region:
    if not isinstance(item, dict):
        return region("", None)
    return _block(item.get("text"), item.get("layout_type"), _polygon(item.get("bbox")))


def _tagged_blocks(text: str) -> Iterator[Region]:
    previous_end = 0
    opening = None
    for tag in _META.finditer(text):
        if tag[0] == "<hy-meta>":
            opening = tag
        elif opening is not None:
            body = text[opening.end() : tag.start()]
            polygon = _between(body, "poly")
            polygon = _between(body, "quad") if polygon is None else polygon
            yield _block(text[previous_end : opening.start()], _between(body, "layout"), _polygon(polygon))
            previous_end = tag.end()
            opening = None


def _between(text: str, name: str) -> str | None:
    start = text.find(f"<{name}>")
    end = text.find(f"</{name}>", start + 1)
    return None if start < 0 or end < 0 else text[start + len(name) + 2 : end]


def _block(text: Any, category: Any, points: list[Point] | None) -> Region:
    name = canonical_category(category) if isinstance(category, str) else ""
    return region(text.strip() if isinstance(text, str) else text, points if name else None, name)


def _polygon(value: Any) -> list[Point] | None:
    if isinstance(value, str):
        value = value.strip()
        if not value.startswith("["):
            points = parse_points(value)
            return points if points and len(points) >= 2 else None
        value = parse_json(value)
    numbers = finite_numbers(value)
    if numbers is not None:
        return list(zip(numbers[::2], numbers[1::2], strict=True)) if len(numbers) in (4, 8) else None
    if not isinstance(value, list) or len(value) < 2:
        return None
    points = []
    for pair in value:
        point = finite_numbers(pair)
        if point is None or len(point) != 2:
            return None
        points.append((point[0], point[1]))
    return points
