"""A picture of a matching: reference regions, predicted regions, and lines between those that belong together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont, UnidentifiedImageError

from reward.cli.errors import UsageError

COORDINATE_RANGE = 1000.0
_BLANK_SIZE = 1000
_MATCHED, _MISSED, _INVENTED, _PREDICTED = "#1a9850", "#d73027", "#f46d43", "#2166ac"

Polygon = Sequence[tuple[float, float]]


def draw_matching(
    references: Sequence[Polygon],
    predictions: Sequence[Polygon],
    matches: Sequence[tuple[int, int]],
    image: Path | None = None,
) -> Image.Image:
    """Draw regions in coordinates of 0 to 1000 over an image, or over a blank page.

    Args:
        references, predictions: polygons, each a sequence of (x, y); an empty one counts but is not drawn.
        matches: pairs (prediction index, reference index).
        image: what the coordinates refer to; None draws on white.

    Returns:
        An RGB picture: matched references green, missed ones red (both labelled R1, R2 …), matched predictions blue,
        the others orange (P1, P2 …), a line between the two of a match.

    Raises:
        UsageError: the image is missing or cannot be decoded.
    """
    canvas = _open(image) if image else Image.new("RGB", (_BLANK_SIZE, _BLANK_SIZE), "white")
    pen = ImageDraw.Draw(canvas)
    width = max(2, round(min(canvas.size) / 400))
    font = ImageFont.load_default(max(12, min(canvas.size) // 50))
    scale = (canvas.width / COORDINATE_RANGE, canvas.height / COORDINATE_RANGE)
    matched_predictions = {prediction for prediction, _ in matches}
    matched_references = {reference for _, reference in matches}
    for index, polygon in enumerate(references):
        color = _MATCHED if index in matched_references else _MISSED
        _outline(pen, _scaled(polygon, scale), color, width, f"R{index + 1}", font)
    for index, polygon in enumerate(predictions):
        color = _PREDICTED if index in matched_predictions else _INVENTED
        _outline(pen, _scaled(polygon, scale), color, width, f"P{index + 1}", font, label_below=True)
    for prediction, reference in matches:
        ends = [_center(_scaled(polygon, scale)) for polygon in (predictions[prediction], references[reference])]
        pen.line(ends, fill=_PREDICTED, width=width)
        for x, y in ends:
            pen.ellipse((x - width, y - width, x + width, y + width), fill=_PREDICTED)
    return canvas


def _open(path: Path) -> Image.Image:
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except FileNotFoundError as error:
        raise UsageError(f"{path}: no such image") from error
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
        raise UsageError(f"{path}: cannot be decoded: {error}") from error


def _scaled(polygon: Polygon, scale: tuple[float, float]) -> list[tuple[float, float]]:
    # Far outside the page nothing can be seen, and Pillow overflows.
    limit = 10 * COORDINATE_RANGE
    return [(max(-limit, min(limit, x)) * scale[0], max(-limit, min(limit, y)) * scale[1]) for x, y in polygon]


def _outline(
    pen: ImageDraw.ImageDraw,
    points: list[tuple[float, float]],
    color: str,
    width: int,
    label: str,
    font: ImageFont.FreeTypeFont | ImageFont.ImageFont,
    label_below: bool = False,
) -> None:
    if not points:
        return
    pen.line([*points, points[0]], fill=color, width=width)
    x = min(x for x, _ in points)
    y = max(y for _, y in points) if label_below else min(y for _, y in points)
    anchor = "la" if label_below else "ld"
    left, top, right, bottom = pen.textbbox((x, y), label, font=font, anchor=anchor)
    if top < 0:
        y, top, bottom = y - top, 0, bottom - top
    pen.rectangle((left, top, right, bottom), fill=color)
    pen.text((x, y), label, fill="white", font=font, anchor=anchor)


def _center(points: list[tuple[float, float]]) -> tuple[float, float]:
    return sum(x for x, _ in points) / len(points), sum(y for _, y in points) / len(points)
