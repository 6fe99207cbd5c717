"""Inputs that public scorers and converters of OCR output got wrong, scored through the entry.

``assets/public_cases.json`` holds them: ``id``, ``task``, ``response``, ``reference``, the ``score`` (or the ``decision``
of a dropped sample), the ``fault`` seen elsewhere, and ``source``.
"""

import json
from pathlib import Path

import pytest

from reward.cli.reports import picture
from reward.task_scorers.teds import teds
from reward_ocr import compute_score

CASES = json.loads((Path(__file__).parent / "assets" / "public_cases.json").read_text(encoding="utf-8"))


def score(task, response, reference):
    return compute_score("public", response, reference, {"task_type": task, "id": "public"})


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_right_value(case):
    result = score(case["task"], case["response"], case["reference"])
    if "decision" in case:
        assert (result["decision"], result["score"]) == (case["decision"], -1.0)
    else:
        assert result["score"] == pytest.approx(case["score"], abs=1e-3), result["analysis"]


def test_omitting_a_region_is_never_better_than_reading_it_roughly():
    reference = "ATLANTA (AP)(12,34),(56,78)Second line(90,12),(134,156)"
    omitted = score("Spotting", "Second line(90,12),(134,156)", reference)["score"]
    detected = score("Spotting", "ATLANTA AP(12,34),(56,78)Second line(90,12),(134,156)", reference)["score"]
    assert omitted == 0.5
    assert omitted < detected < 1.0


@pytest.mark.parametrize(
    "name, predicted, reference, value",
    [
        (
            "line breaks in a cell are no nodes",
            '<table border="1"><tr><td>序号</td><td>税率' + "<br/>x500" * 500 + "</td></tr></table>",
            '<table border="1"><tr><td>二</td><td>【增值税】</td><td></td><td>1040450.72</td><td>9%</td></tr>'
            "<tr><td>三</td><td>【税后】</td><td></td><td>12601014.21</td><td></td></tr></table>",
            0.1538,
        ),
        (
            "header texts count",
            "<table><tr><th>WRONG</th><th>XX</th></tr><tr><td>1</td><td>2</td></tr></table>",
            "<table><tr><th>A</th><th>B</th></tr><tr><td>1</td><td>2</td></tr></table>",
            5 / 7,
        ),
        (
            "wrappers are transparent",
            "<table><thead><tr><td>A</td></tr></thead><tbody><tr><td>1</td></tr></tbody></table>",
            "<table><tr><td>A</td></tr><tr><td>1</td></tr></table>",
            1.0,
        ),
        ("two empty tables", "<table></table>", "<table></table>", 1.0),
        (
            "a span reads by HTML's integer rule",
            '<table><tr><td colspan="2px">a</td></tr></table>',
            '<table><tr><td colspan="2">a</td></tr></table>',
            1.0,
        ),
        (
            "a wrapped table is found",
            "<div><table><tr><td>a</td></tr></table></div>",
            "<table><tr><td>a</td></tr></table>",
            1.0,
        ),
        (
            "empty rows without end",
            "<table>" + "<tr><td></td><td></td><td></td><td></td></tr>" * 1000 + "</table>",
            "<table>" + ("<tr>" + "<td>v</td>" * 4 + "</tr>") * 6 + "</table>",
            7 / 5001,
        ),
    ],
)
def test_table_similarity(name, predicted, reference, value):
    assert teds(predicted, reference) == pytest.approx(value, abs=2e-3)


def test_a_large_table_with_few_errors_keeps_its_fractional_costs():
    def table(cells):
        return (
            "<table>" + "".join("<tr>" + "".join(f"<td>{c}</td>" for c in row) + "</tr>" for row in cells) + "</table>"
        )

    cells = [[f"cell {row} {column}" for column in range(10)] for row in range(50)]
    changed = [list(row) for row in cells]
    for row in range(10):
        changed[5 * row][row] += "x"
    changed[3].pop()
    # 551 nodes; one of them missing, ten with one letter too many.
    distance = 1 + sum(1 / len(changed[5 * row][row]) for row in range(10))
    assert teds(table(changed), table(cells)) == pytest.approx(1 - distance / 551, abs=1e-9)


def test_several_tables_are_all_read():
    reference = "<table><tr><td>aaa</td></tr></table><table><tr><td>b</td></tr></table>"
    wrong = "<table><tr><td>aaa</td></tr></table><table><tr><td>Z</td></tr></table>"
    assert 0.5 < score("Parsing", wrong, reference)["score"] < 1.0
    assert score("Parsing", "<table><tr><td>aaa</td></tr></table>", reference)["score"] == 0.0


def test_coordinates_are_thousandths_of_the_page(tmp_path):
    from PIL import Image

    Image.new("RGB", (2000, 1000), "white").save(tmp_path / "page.png")
    item = "ATLANTA (AP) - Human(43,500),(325,512)"
    drawn = picture("Spotting", item, item, tmp_path / "page.png")
    left, top, right, bottom = (86, 500, 650, 512)
    assert drawn.getpixel((left, (top + bottom) // 2)) != (255, 255, 255)
    assert drawn.getpixel((right, (top + bottom) // 2)) != (255, 255, 255)
    assert drawn.getpixel((right + 20, (top + bottom) // 2)) == (255, 255, 255)
