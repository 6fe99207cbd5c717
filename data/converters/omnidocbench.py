"""OmniDocBench-style page annotations to parsing records (text in reading order) or layout records.

    python data/converters/omnidocbench.py --pages OmniDocBench.json --images images --task parsing --output parsing.jsonl

The JSON is a list of pages with `page_info` (`image_path`, `width`, `height`) and `layout_dets`: blocks with
`category_type`, `poly` (eight pixel coordinates), `order`, `ignore` and the recognised `text`, `latex` or `html`.

parsing: blocks in `order`; titles as `# …`, display formulas between `$$`, tables as HTML, figures without their inside.
Paragraphs that a `truncated` relation ties together become one. Running heads and feet, page numbers, blocks marked
`ignore` and masked regions stay out, each with a count.

layout: every block that is not ignored or masked, as `text<hy-meta><layout>category</layout><poly>…</poly></hy-meta>`,
coordinates from 0 to 1000 on both axes.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    # As a script: the packages of the repository instead of the modules of this folder.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from data.converters.common import Converted, run_converter, scaled

QUESTIONS = {
    "parsing": "提取文档图片中正文的所有信息用markdown格式表示，其中页眉、页脚部分忽略，表格用html格式表达，"
    "文档中公式用latex格式表示，按照阅读顺序组织进行解析。",
    "layout": "分析图片的版面，按阅读顺序输出每个区域的文字、类别和坐标。",
}
TASK_TYPES = {"parsing": "Parsing", "layout": "Layout"}
# Not part of the body text.
FURNITURE = ("header", "footer", "page_number", "page_footnote", "abandon")
WITHOUT_TEXT = ("figure",)
# Names that the layout scorer has under another name.
LAYOUT_NAMES = {"text_block": "paragraph", "figure_caption": "figure_title", "table_caption": "table_title"}


class PageError(ValueError):
    """A page that cannot be converted; the message names the block."""


def records(pages: Path, images: Path, task: str, question: str = "") -> Iterator[Converted]:
    """One result a page, in the order of the file.

    Args:
        pages: the annotation file; it is read as a whole.
        images: folder that holds the files that `image_path` names.
        task: "parsing" or "layout".
        question: the prompt; empty takes that of the task.
    """
    try:
        found = json.loads(pages.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        yield Converted(str(pages), problem=f"cannot be read: {error}")
        return
    if not isinstance(found, list):
        yield Converted(str(pages), problem="is not a list of pages")
        return
    for number, page in enumerate(found):
        source = f"{pages}: page {number}"
        try:
            name = _field(_field(page, "page_info", dict), "image_path", str)
            notes: list[str] = []
            reference = (parsing_reference if task == "parsing" else layout_reference)(page, notes)
        except PageError as error:
            yield Converted(source, problem=str(error))
            continue
        record = {
            "image": str((images / name).resolve()),
            "question": question or QUESTIONS[task],
            "ref_answer": reference,
            "task_type": TASK_TYPES[task],
        }
        yield Converted(source, record, notes=tuple(notes))


def parsing_reference(page: dict[str, Any], notes: list[str]) -> str:
    """The body of a page as Markdown. What is left out is added to `notes`.

    Raises:
        PageError: a block of the body has no text, formula or table of its own.
    """
    blocks = _shown(page, notes)
    body = []
    for block in blocks:
        if block["category_type"] in FURNITURE:
            notes.append(f"{block['category_type']} left out")
        elif block["category_type"] not in WITHOUT_TEXT:
            body.append(block)
    continued = _continuations(page)
    texts: dict[Any, list[str]] = {}
    for block in body:
        head = _head(block.get("anno_id"), continued, {other.get("anno_id") for other in body})
        key = id(block) if head is None else head
        texts.setdefault(key, []).append(_body_text(block))
    return "\n\n".join(_joined(pieces) for pieces in texts.values())


def layout_reference(page: dict[str, Any], notes: list[str]) -> str:
    """The blocks of a page in the layout answer format. What is left out is added to `notes`.

    Raises:
        PageError: a block without a polygon, a page without a size.
    """
    info = _field(page, "page_info", dict)
    width, height = info.get("width"), info.get("height")
    if not all(isinstance(side, int | float) and side > 0 for side in (width, height)):
        raise PageError("page_info has no width and height")
    items = []
    for block in _shown(page, notes):
        poly = block.get("poly")
        if not isinstance(poly, list) or len(poly) != 8 or not all(isinstance(v, int | float) for v in poly):
            raise PageError(f"block {block.get('anno_id')} ({block['category_type']}): poly is not eight numbers")
        points = [scaled(x, y, width, height) for x, y in zip(poly[::2], poly[1::2])]
        text = "" if block["category_type"] in WITHOUT_TEXT else _own_text(block)
        category = LAYOUT_NAMES.get(block["category_type"], block["category_type"])
        place = ",".join(f"({x},{y})" for x, y in points)
        items.append(f"{text}<hy-meta><layout>{category}</layout><poly>{place}</poly></hy-meta>")
    return "".join(items)


def _shown(page: dict[str, Any], notes: list[str]) -> list[dict[str, Any]]:
    """Blocks in reading order, without ignored and masked ones; blocks without an order come last, top to bottom."""
    kept = []
    for block in _field(page, "layout_dets", list):
        category = _field(block, "category_type", str)
        if category.endswith("_mask"):
            notes.append("masked regions left out")
        elif block.get("ignore"):
            notes.append("ignored blocks left out")
        else:
            kept.append(block)
    return sorted(kept, key=_order)


def _order(block: dict[str, Any]) -> tuple[bool, float, float]:
    order, poly = block.get("order"), block.get("poly")
    top = poly[1] if isinstance(poly, list) and len(poly) > 1 else 0
    return (order is None, order if order is not None else 0, top)


def _continuations(page: dict[str, Any]) -> dict[Any, Any]:
    """anno_id of each continued paragraph to that of the piece before it."""
    relations = (page.get("extra") or {}).get("relation") or []
    return {
        relation["target_anno_id"]: relation["source_anno_id"]
        for relation in relations
        if relation.get("relation_type") == "truncated"
    }


def _head(anno_id: Any, continued: dict[Any, Any], known: set[Any]) -> Any:
    """The first piece of the paragraph a block belongs to. A relation that runs in a circle ends where it began."""
    seen = set()
    while anno_id in continued and continued[anno_id] in known and anno_id not in seen:
        seen.add(anno_id)
        anno_id = continued[anno_id]
    return anno_id


def _body_text(block: dict[str, Any]) -> str:
    category, text = block["category_type"], _own_text(block)
    if not text:
        raise PageError(f"block {block.get('anno_id')} ({category}) holds no text")
    if category == "title":
        return "# " + " ".join(text.split())
    if category == "equation_isolated":
        return f"$${text.strip().strip('$').strip()}$$"
    return text


def _own_text(block: dict[str, Any]) -> str:
    field = {"table": "html", "equation_isolated": "latex"}.get(block["category_type"], "text")
    text = block.get(field) or ""
    if not isinstance(text, str):
        raise PageError(f"block {block.get('anno_id')}: {field} is not text")
    return text.strip()


def _joined(pieces: list[str]) -> str:
    """Pieces of one paragraph; a blank between pieces only where both sides are written with blanks."""
    text = pieces[0]
    for piece in pieces[1:]:
        spaced = text[-1].isascii() and piece[0].isascii()
        text += (" " if spaced else "") + piece
    return text


def _field(value: Any, name: str, kind: type) -> Any:
    found = value.get(name) if isinstance(value, dict) else None
    if not isinstance(found, kind):
        raise PageError(f"{name} is missing or not a {kind.__name__}")
    return found


def main(argv: list[str] | None = None) -> int:
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--pages", type=Path, required=True, metavar="FILE.json")
        parser.add_argument("--images", type=Path, required=True, metavar="DIR")
        parser.add_argument("--task", choices=tuple(TASK_TYPES), default="parsing", help="kind of records (parsing)")
        parser.add_argument("--question", default="", help="prompt of every record (default: one for the task)")

    def convert(args: argparse.Namespace) -> Iterator[Converted]:
        return records(args.pages, args.images, args.task, args.question)

    return run_converter("omnidocbench.py", __doc__, add_arguments, convert, argv)


if __name__ == "__main__":
    sys.exit(main())
