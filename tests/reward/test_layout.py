"""Layout: what each answer scores, and which faults of other scorers stay fixed."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reward.task_scorers.layout import MAX_POLYGON_PAIRS, match_details, process_layout_task
from reward.task_scorers.layout_categories import canonical_category
from reward.task_scorers.layout_formats import parse_layout
from reward.task_scorers.region_match import Reading


def block(text, category, *points):
    return f"{text}<hy-meta><layout>{category}</layout><poly>{written(points)}</poly></hy-meta>"


def written(points):
    return ",".join(f"({x},{y})" for x, y in points)


def square(left, top, size=100):
    return (left, top), (left + size, top), (left + size, top + size), (left, top + size)


TITLE = block("Report", "title", *square(0, 0))
BODY = block("Some words", "para", *square(0, 200))
FIGURE = block("", "figure", *square(0, 400))
PAGE = TITLE + BODY


def score(response, reference):
    result = process_layout_task(response, reference)
    assert result["is_valid"], result
    assert result["decision"] == "scored"
    return result["reward"]


def dropped(reference, response="x"):
    result = process_layout_task(response, reference)
    return (result["reward"], result["is_valid"], result["decision"]) == (-1.0, False, "bad_reference")


def blocks(text):
    return [(region.text, region.category, region.points) for region in parse_layout(text).regions]


# Formats


@pytest.mark.parametrize(
    ("bbox", "points"),
    [
        ('"(1,2),(3,4),(5,6),(7,8)"', ((1, 2), (3, 4), (5, 6), (7, 8))),
        ('" (1, 2) , (3.5, -4) "', ((1, 2), (3.5, -4))),
        ('"[[1,2],[3,4],[5,6],[7,8]]"', ((1, 2), (3, 4), (5, 6), (7, 8))),
        ("[[1,2],[3,4],[5,6],[7,8]]", ((1, 2), (3, 4), (5, 6), (7, 8))),
        ("[[1,2],[3,4]]", ((1, 2), (3, 4))),
        ("[[1,2],[3,4],[5,6]]", ((1, 2), (3, 4), (5, 6))),
        ("[1,2,3,4]", ((1, 2), (3, 4))),
        ("[1,2,3,4,5,6,7,8]", ((1, 2), (3, 4), (5, 6), (7, 8))),
        ('"[1,2,3,4]"', ((1, 2), (3, 4))),
        ("[1,2,3,4,5,6]", None),
        ("[1,2]", None),
        ("[[1,2]]", None),
        ('"(1,2)"', None),
        ('"1,2,3,4"', None),
        ("[[1,2],[3,4,5]]", None),
        ('[[1,2],["3",4]]', None),
        ("[1,2,3,NaN]", None),
        ("[1,2,3,1e999]", None),
        ("[[1,2],[3,true]]", None),
        ('"' + "[" * 2000 + '"', None),
        ("null", None),
        ("7", None),
        ("[]", None),
    ],
)
def test_polygons_in_json(bbox, points):
    assert blocks(f'[{{"layout_type": "para", "bbox": {bbox}, "text": "x"}}]') == [("x", "paragraph", points)]


def test_json_blocks_that_cannot_be_read_have_no_points():
    assert blocks('[{"bbox": [1,2,3,4]}, {"layout_type": 7, "bbox": [1,2,3,4]}, 5, null]') == [("", "", None)] * 4
    assert blocks('[{"layout_type": "table", "bbox": [1,2,3,4]}]') == [("", "table", ((1, 2), (3, 4)))]
    assert blocks('[{"layout_type": "table", "bbox": [1,2,3,4], "text": 12}]')[0][0] == "12"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            "A<hy-meta><layout>title</layout><quad>(1,2),(3,4)</quad></hy-meta>\n"
            "B\nC<hy-meta> <layout>Para</layout> <poly>(5,6),(7,8),(9,9)</poly> </hy-meta>\n tail",
            [("A", "section_title", ((1, 2), (3, 4))), ("B\nC", "paragraph", ((5, 6), (7, 8), (9, 9)))],
        ),
        ("A<hy-meta><layout>table</layout><poly>[[1,2],[3,4]]</poly></hy-meta>", [("A", "table", ((1, 2), (3, 4)))]),
        (
            "A<hy-meta><layout>table</layout><poly>(1,2),(3,4)</poly></hy-meta>B<hy-meta><layout>table</lay",
            [("A", "table", ((1, 2), (3, 4)))],
        ),
        ("A<hy-meta><layout>table</layout></hy-meta>", [("A", "table", None)]),
        ("A<hy-meta><poly>(1,2),(3,4)</poly></hy-meta>", [("A", "", None)]),
        ("A<hy-meta><layout> </layout><poly>(1,2),(3,4)</poly></hy-meta>", [("A", "", None)]),
        ("A<hy-meta></hy-meta>", [("A", "", None)]),
        ("A<hy-meta><layout>table</layout><poly>(1,2),(3,4)</poly>", []),
        ("A</hy-meta>", []),
    ],
)
def test_tagged_blocks(answer, expected):
    assert blocks(answer) == expected


@pytest.mark.parametrize(
    "answer",
    [
        "just text",
        f"```\n{PAGE}\n```",
        '```json\n[{"layout_type": "table", "bbox": [1,2,3,4]}]\n```',
        '{"layout_type": "table", "bbox": [1,2,3,4]}',
        '[{"layout_type": "table", "bbox": [1,2,3,4]}',
        "<hy-meta>" * 7_000,
        "[" * 64_000,
    ],
)
def test_an_answer_without_a_block_scores_0(answer):
    assert parse_layout(answer).reading is Reading.FORMAT_ERROR
    assert score(answer, PAGE) == 0.0


def test_a_reference_without_a_readable_block_is_dropped():
    # Scored as "nothing to find", such a reference paid 1 for an answer without blocks.
    for reference in ("just text", f"```\n{PAGE}\n```", "A<hy-meta></hy-meta>", "[7]", '[{"layout_type": "table"}]'):
        assert dropped(reference, "")
        assert dropped(reference, reference)


@pytest.mark.parametrize(
    "group",
    [
        ("para_title",),
        ("table_of_contents", "Table of Contents", "table-of-figures", "table_of", "TABLE_OF_CONTENT"),
        ("table_title", "Table Title"),
        ("table",),
        ("figure_title", "chart_title", "Chart-Title"),
        ("figure", "chart", " Figure "),
        ("paragraph", "para", "paragraph_span", "Paragraph Span"),
        ("section_title", "title", "heading", "Section-Title"),
        ("header", "page_header", "Page Header"),
        ("footer", "page_footer", "page-footer"),
    ],
)
def test_categories_of_a_group_are_one(group):
    assert {canonical_category(name) for name in group} == {group[0]}


def test_other_categories_differ():
    names = ["para_title", "table_title", "table", "figure_title", "figure", "paragraph", "section_title", "header"]
    names += ["footer", "table_of_contents", "formula", "page_number", "list"]
    assert len({canonical_category(name) for name in names}) == len(names)


# Score


def test_a_pair_costs_its_text_distance_and_everything_else_costs_1():
    assert score(PAGE, PAGE + FIGURE) == pytest.approx(2 / 3)
    assert score(BODY + TITLE, PAGE) == 1.0
    wrong = TITLE + block("Some wards", "para", *square(0, 200))
    assert score(wrong, PAGE) == pytest.approx(1 - (1 / 9) / 2)
    assert score(TITLE, PAGE) == pytest.approx(1 / 2)
    assert score(block("", "title", *square(0, 0)) + BODY, PAGE) == pytest.approx(1 / 2)


def test_only_equal_categories_match():
    assert score(block("Report", "heading", *square(0, 0)), TITLE) == 1.0
    assert score(block("Report", "table", *square(0, 0)), TITLE) == 0.0


def test_without_text_in_the_reference_the_score_is_f1():
    reference = block("", "figure", *square(0, 0)) + block(" <br> ", "table", *square(0, 200))
    assert score(block("caption", "chart", *square(0, 0)), reference) == pytest.approx(2 / 3)
    response = block("x", "chart", *square(0, 0)) + block("", "table", *square(500, 500)) + "<hy-meta></hy-meta>"
    assert score(response, reference) == pytest.approx(2 / 5)
    assert score(block("", "para", *square(0, 0)), reference) == 0.0


def test_blocks_without_text_beside_blocks_with_text():
    assert score(PAGE + FIGURE, PAGE + FIGURE.replace("figure", "chart")) == 1.0
    assert score(PAGE + block("words", "figure", *square(0, 400)), PAGE + FIGURE) == pytest.approx(2 / 3)
    # An unmatched block without text costs 1 too.
    assert score(PAGE + FIGURE, PAGE) == pytest.approx(2 / 3)


def test_polygons_are_compared_as_polygons():
    # As bounding boxes the two are the same.
    diamond = block("x", "table", (50, 0), (100, 50), (50, 100), (0, 50))
    kite = block("x", "table", (50, 0), (100, 10), (50, 100), (0, 10))
    boxed = block("x", "table", (0, 0), (100, 100))
    assert match_details(diamond, boxed).pairs[0].iou == pytest.approx(0.5)
    assert match_details(kite, boxed).pairs[0].iou == pytest.approx(0.5)
    assert score(kite, block("x", "table", (0, 0), (100, 0), (50, 100))) == 1.0
    assert score(block("x", "table", (50, 0), (99, 50), (50, 99), (1, 50)), boxed) == 0.0


def test_iou_of_crossed_corners_is_at_most_1():
    crossed = block("x", "table", (0, 0), (100, 0), (0, 100), (100, 100))
    details = match_details(crossed, block("x", "table", *square(0, 0)))
    assert [pair.iou for pair in details.pairs] == [1.0]


def test_the_first_prediction_does_not_take_the_reference_of_another():
    reference = block("wide", "para", (0, 0), (50, 10)) + block("right", "para", (40, 0), (100, 10))
    response = block("wide", "para", (0, 0), (100, 10)) + block("right", "para", (40, 0), (100, 10))
    assert score(response, reference) == 1.0


def test_text_decides_between_equal_overlaps():
    def page(*texts):
        return "".join(block(text, "para", *square(0, 0)) for text in texts)

    assert score(page("a", "b", "c"), page("c", "a", "b")) == 1.0
    assert score(page("b", "x"), page("a", "b")) == pytest.approx(1 / 2)


def test_blocks_that_cannot_be_read():
    assert score(PAGE + "x<hy-meta></hy-meta>", PAGE) == pytest.approx(2 / 3)
    assert score(PAGE, PAGE + "x<hy-meta></hy-meta>") == 1.0
    assert score(PAGE + "cut off<hy-meta><layout>para", PAGE + "tail") == 1.0


@pytest.mark.parametrize("reference", ["", " ", "[]", "没有文字", "No text."])
def test_an_empty_page(reference):
    for right in ("", "[]", "图中无文字", "There is no text here.", reference):
        assert score(right, reference) == 1.0
    for wrong in (PAGE, "nothing", "[1]", block("no text", "para", *square(0, 0))):
        assert score(wrong, reference) == 0.0


@pytest.mark.parametrize("response", ["", "[]", "no text", "free text"])
def test_an_empty_answer_to_a_page_with_blocks_scores_0_and_is_kept(response):
    assert score(response, PAGE) == 0.0


def test_identical_answers_score_1():
    for reference in (PAGE, FIGURE, PAGE + "x<hy-meta></hy-meta>", '[{"layout_type":"table","bbox":[0,0,5,5]},7]'):
        assert score(f" {reference}\n", reference) == 1.0


def test_match_details_name_pairs_and_leftovers():
    details = match_details(BODY + FIGURE + block("Repair", "title", (0, 0), (100, 80)), PAGE)
    assert [(pair.prediction, pair.reference) for pair in details.pairs] == [(2, 0), (0, 1)]
    assert [pair.iou for pair in details.pairs] == pytest.approx([0.8, 1.0])
    assert details.unmatched_predictions == (1,)
    assert details.unmatched_references == ()
    assert details.total_cost == pytest.approx(3 / 6 + 1)
    assert json.loads(process_layout_task(BODY, PAGE)["analysis"])["matches"] == 1


# Properties


@st.composite
def pages(draw):
    cells = draw(st.lists(st.integers(0, 15), min_size=1, max_size=6, unique=True))
    names = st.sampled_from(["para", "table", "figure"])
    texts = st.text("ab 汉<>", max_size=4)
    return [(draw(texts), draw(names), square(cell % 4 * 200, cell // 4 * 200)) for cell in cells]


def page_text(page):
    return json.dumps([{"text": text, "layout_type": name, "bbox": points} for text, name, points in page])


@settings(max_examples=100, deadline=None)
@given(pages(), st.data())
def test_a_right_page_scores_1_in_any_order_and_less_when_blocks_are_missing_or_added(page, data):
    reference = page_text(page)
    shuffled = data.draw(st.permutations(page))
    assert score(page_text(shuffled), reference) == 1.0
    assert score(page_text(shuffled[1:]), reference) < 1.0
    assert score(page_text([*shuffled, shuffled[0]]), reference) < 1.0
    assert score(page_text([*shuffled, ("", "para", square(5000, 5000))]), reference) < 1.0


@settings(max_examples=150, deadline=None)
@given(pages(), pages(), st.data())
def test_order_changes_nothing_and_junk_or_copies_never_help(response, reference, data):
    expected = score(page_text(response), page_text(reference))
    assert 0.0 <= expected <= 1.0
    assert score(page_text(data.draw(st.permutations(response))), page_text(reference)) == expected
    assert score(page_text(response), page_text(data.draw(st.permutations(reference)))) == expected
    assert score(page_text([*response, response[0]]), page_text(reference)) <= expected
    assert score(page_text([*response, ("a", "para", square(5000, 5000))]), page_text(reference)) <= expected


@settings(max_examples=100, deadline=None)
@given(st.text('a(1,2)[]{}":<hy-meta>/layout poly\ud800', max_size=60), st.sampled_from([PAGE, "", "x"]))
def test_any_text_scores_or_drops_the_same_way_each_time(text, other):
    for response, reference in ((text, other), (other, text), (text, text)):
        result = process_layout_task(response, reference)
        assert result == process_layout_task(response, reference)
        assert result["reward"] == -1.0 if result["decision"] == "bad_reference" else 0.0 <= result["reward"] <= 1.0
        if response == reference and result["is_valid"]:
            assert result["reward"] == 1.0


HOSTILE = {
    "same block": block("a", "p", (1, 1), (9, 9)) * 900,
    "tilted blocks": "".join(block("a", "p", (0, index % 9), (60, 5), (60, 60), (0, 55)) for index in range(700)),
    "crossed blocks": "".join(block("a", "p", (0, 0), (50, 50 + index % 9), (50, 0), (0, 50)) for index in range(700)),
    "boxes": json.dumps([{"layout_type": "p", "bbox": [0, index % 9, 50, 50]} for index in range(1_300)]),
    "polygon of 6,000 points": block(
        "a", "p", *((index * 7919 % 1000, index * 104729 % 997) for index in range(6_000))
    ),
    "combs": "".join(
        block("a", "p", *((x * 10, 900 * (x % 2)) for x in range(60)), (900, 901), (-1, 901)) for _ in range(90)
    ),
    "nested bbox": '[{"layout_type":"p","bbox":' + "[" * 30_000 + "]" * 30_000 + "}]",
    "nested bbox string": '[{"layout_type":"p","bbox":"' + "[" * 60_000 + '"}]',
    "empty blocks": "<hy-meta></hy-meta>" * 3_300,
    "open layouts": "<hy-meta>" + "<layout>" * 7_000 + "</hy-meta>",
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_answers_score(name):
    assert 0.0 <= score(HOSTILE[name], PAGE) <= 0.5
    many = "".join(block("b", "p", (0, 0), (60, index % 5), (60, 60), (0, 55)) for index in range(600))
    assert score(HOSTILE[name], many) == 0.0


@pytest.mark.timeout(60)
def test_past_the_limit_blocks_match_by_bounding_boxes():
    count = int(MAX_POLYGON_PAIRS**0.5) + 5
    page = [(str(index % 3), "para", square(0, 0)) for index in range(count)]
    assert score(page_text(page[::-1]), page_text(page)) == 1.0
    tilted = [("x", "para", ((50, 0), (99, 50), (50, 99), (1, 50)))] * count
    boxed = [("x", "para", square(0, 0, 110))] * count
    assert score(page_text(tilted), page_text(boxed)) == 1.0
    assert score(page_text(tilted[:9]), page_text(boxed[:9])) == 0.0
