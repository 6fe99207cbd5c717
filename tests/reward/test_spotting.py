"""Spotting: what each answer scores, and which faults of other scorers stay fixed."""

import json

import pytest

from reward.task_scorers.region_match import Reading
from reward.task_scorers.spotting import match_details, process_spotting_task
from reward.task_scorers.spotting_formats import parse_spotting

TWO = "Hello(0,0),(100,20)World(0,50),(100,70)"


def score(response, reference):
    result = process_spotting_task(response, reference)
    assert result["is_valid"], result
    assert result["decision"] == "scored"
    return result["reward"]


def dropped(reference, response="x"):
    result = process_spotting_task(response, reference)
    return (result["reward"], result["is_valid"], result["decision"]) == (-1.0, False, "bad_reference")


def as_json(*items):
    return json.dumps([{"box": list(box), "text": text} for text, box in items], ensure_ascii=False)


def items(text):
    """Readable items as ``(text, xmin, ymin, xmax, ymax)``; None for an unreadable one."""
    answer = parse_spotting(text)
    return [
        region.points and (region.text, *(int(c) if c == int(c) else c for point in region.points for c in point))
        for region in answer.regions
    ]


def is_format_error(text):
    return parse_spotting(text).reading is Reading.FORMAT_ERROR


# Formats


@pytest.mark.parametrize(
    "answer",
    [
        "<ref>Hello</ref><quad>(0,0),(100,20)</quad><ref>World</ref><quad>(0,50),(100,70)</quad>",
        "<quad><pos_0><pos_0><pos_100><pos_20></quad><ref>Hello</ref>"
        "<quad><pos_0><pos_50><pos_100><pos_70></quad><ref>World</ref>",
        TWO,
        '[{"box": [0, 0, 100, 20], "text": "Hello"}, {"box": [0, 50, 100, 70], "text": "World"}]',
        '[{"bbox": [0.0, 0.0, 1e2, 20.0], "text": "Hello"}, {"bbox": [0, 50, 100, 70], "text": "World"}]',
        "<ref>Hello</ref>\n<quad> ( 0 , 0 ) , (100,20) </quad>\n<ref>World</ref> <quad>(0,50),(100,70)</quad>",
        "Hello (0, 0), (100, 20)\nWorld (0.0, 50), (100., 70)\n",
        TWO + "。",
        "  " + TWO + " . ",
    ],
)
def test_all_formats_read_the_same_items(answer):
    assert items(answer) == [("Hello", 0, 0, 100, 20), ("World", 0, 50, 100, 70)]
    assert score(answer, TWO) == score(TWO, answer) == 1.0


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        # spot-01, spot-03, spot-04, spot-06: brackets and line breaks belong to the text.
        (
            "ATLANTA (AP)(12,34),(56,78)Second line(90,12),(134,156)",
            [("ATLANTA (AP)", 12, 34, 56, 78), ("Second line", 90, 12, 134, 156)],
        ),
        ("ATLANTA (AP) Second(1,2),(3,4)", [("ATLANTA (AP) Second", 1, 2, 3, 4)]),
        ("金额(小写)(10,20),(30,40)", [("金额(小写)", 10, 20, 30, 40)]),
        ("line1\nline2(1,2),(3,4)", [("line1\nline2", 1, 2, 3, 4)]),
        # spot-07: coordinates are those of the answer, whatever the size of the picture.
        ("ATLANTA (AP) - Human(43,500),(325,512)", [("ATLANTA (AP) - Human", 43, 500, 325, 512)]),
        ("f(1,2)(3,4),(5,6)", [("f(1,2)", 3, 4, 5, 6)]),
        ("a(1,2),(3,4)(5,6),(7,8)b(9,10),(11,12)", [("a", 1, 2, 3, 4), ("b", 9, 10, 11, 12)]),
        ("a(1,2),(3,4),(5,6),(7,8)", [("a", 1, 2, 3, 4)]),
        ("(1,2),(3,4)a(5,6),(7,8)", [("a", 5, 6, 7, 8)]),
        ("a(1,2),(3,4)cut off(5,6),(7", [("a", 1, 2, 3, 4)]),
        ("a(-5,1200),(30,4.5)", [("a", -5, 4.5, 30, 1200)]),
    ],
)
def test_plain_items(answer, expected):
    assert items(answer) == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            "Sure: <ref>a</ref><quad>(1,2),(3,4)</quad> and <ref>b</ref><quad>(5,6),(7,8)</quad> bye",
            [("a", 1, 2, 3, 4), ("b", 5, 6, 7, 8)],
        ),
        ("<ref>a</ref><quad>(1,2),(3,4)</quad><ref>b</ref><quad>(5,6),(7", [("a", 1, 2, 3, 4)]),
        ("<ref>b</ref><ref>a</ref><quad>(1,2),(3,4)</quad>", [("a", 1, 2, 3, 4)]),
        ("<ref>a</ref>x<quad>(1,2),(3,4)</quad><ref>b</ref><quad>(5,6),(7,8)</quad>", [("b", 5, 6, 7, 8)]),
        ("<ref>a (AP)</ref><quad>(10,20),(40,22),(38,60),(8,58)</quad>", [("a (AP)", 8, 20, 40, 60)]),
        ("<ref>a</ref><quad>(1,9),(5,2),(8,4)</quad>", [("a", 1, 2, 8, 9)]),
        ("<ref></ref><quad>(1,2),(3,4)</quad>", [("", 1, 2, 3, 4)]),
        ("<ref>a</ref><quad>(1,2)</quad><ref>b</ref><quad>(5,6),(7,8)</quad>", [None, ("b", 5, 6, 7, 8)]),
        ("<ref>a</ref><quad>somewhere</quad>", [None]),
        ("<ref>a</ref><quad></quad>", [None]),
        ("<ref>a</ref><quad>(1,2),(3,4),</quad>", [None]),
        ("<ref>a</ref><quad>(1,2),(3," + "9" * 400 + ")</quad>", [None]),
        ("text <quad><pos_1><pos_2><pos_3><pos_4></quad><ref>a</ref>", [("a", 1, 2, 3, 4)]),
        ("<quad><pos_1><pos_2><pos_3><pos_4></quad><ref>a</ref><quad><pos_1>", [("a", 1, 2, 3, 4)]),
        ("<quad><pos_1><pos_2><pos_3></quad><ref>a</ref>", [None]),
        ("<quad><pos_1><pos_2></quad><ref>a</ref>", [None]),
        ("<quad><pos_x><pos_2><pos_3><pos_4></quad><ref>a</ref>", [None]),
        ("<quad><pos_9><pos_2><pos_3><pos_4><pos_5><pos_8></quad><ref>a</ref>", [("a", 3, 2, 9, 8)]),
    ],
)
def test_tagged_items(answer, expected):
    assert items(answer) == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ('[{"box": [1, 2, 3, 4], "text": "a(b)"}]', [("a(b)", 1, 2, 3, 4)]),
        ('[{"box": [1, 2, 3, 4]}]', [("", 1, 2, 3, 4)]),
        ('[{"box": [1, 2, 3, 4], "text": null}]', [("", 1, 2, 3, 4)]),
        ('[{"box": [1, 2, 3, 4], "text": 12}]', [("12", 1, 2, 3, 4)]),
        ('[{"box": [1, 2, 3, 4], "text": ["a"]}]', [("", 1, 2, 3, 4)]),
        ('[{"box": [1, 2, 3], "text": "a"}]', [None]),
        ('[{"box": [1, 2, 3, "4"], "text": "a"}]', [None]),
        ('[{"box": [1, 2, 3, true], "text": "a"}]', [None]),
        ('[{"box": [1, 2, 3, NaN], "text": "a"}]', [None]),
        ('[{"box": [1, 2, 3, 1e999], "text": "a"}]', [None]),
        ('[{"box": [1, 2, 3, ' + "9" * 5000 + '], "text": "a"}]', [None]),
        ('[{"text": "a"}, 7, null, [1, 2, 3, 4]]', [None] * 4),
        ("[]", []),
    ],
)
def test_json_items(answer, expected):
    assert items(answer) == expected
    assert not is_format_error(answer)


@pytest.mark.parametrize(
    "answer",
    [
        "just text",
        "a(1,2)",
        '{"box": [1, 2, 3, 4], "text": "a"}',
        '{"text": "a(1,2),(3,4)"}',
        '[{"box": [1, 2, 3, 4], "text": "a"}',
        '```json\n[{"box": [1, 2, 3, 4], "text": "a"}]\n```',
        # spot-09: a fence is a format error here, whatever it holds.
        '```json\n[[1,2,3,4,"a(b)"]]\n```',
        "```\na(1,2),(3,4)\n```",
        "```\n<ref>a</ref><quad>(1,2),(3,4)</quad>\n```",
        "<quad>(1,2),(3,4)",
        "<ref>a(1,2),(3,4)",
        "a<quad>(1,2),(3,4)",
        "a<pos_1>(1,2),(3,4)",
        "(1,2),(3,4)",
        "[" * 60_000,
    ],
)
def test_anything_else_is_a_format_error(answer):
    assert is_format_error(answer)
    assert score(answer, TWO) == 0.0
    assert dropped(answer, answer)


def test_a_text_may_start_with_a_bracket_or_a_fence():
    assert items("[1] note(1,2),(3,4)") == [("[1] note", 1, 2, 3, 4)]
    assert items("```python(1,2),(3,4)") == [("```python", 1, 2, 3, 4)]


# Score


def test_a_pair_costs_its_text_distance_and_everything_else_costs_1():
    assert score("Hallo(0,0),(100,20)World(0,50),(100,70)", TWO) == pytest.approx(1 - 0.2 / 2)
    assert score("Hello(0,0),(100,20)", TWO) == pytest.approx(1 - 1 / 2)
    assert score(TWO + "Junk(500,500),(600,600)", TWO) == pytest.approx(1 - 1 / 3)
    assert score("Hallo(0,0),(100,20)Junk(500,500),(600,600)", TWO) == pytest.approx(1 - 2.2 / 3)
    assert score("Hello(200,0),(300,20)World(200,50),(300,70)", TWO) == 0.0


def test_boxes_match_from_an_iou_of_one_half():
    assert score("a(0,0),(10,5)", "a(0,0),(10,10)") == 1.0
    assert score("a(0,0),(10,4.9)", "a(0,0),(10,10)") == 0.0


def test_text_is_compared_without_tags_blanks_and_subscripts():
    assert score("H2O <b>x</b>(0,0),(9,9)", "H₂O\nx(0,0),(9,9)") == 1.0
    assert score("cafe\u0301(0,0),(9,9)", "café(0,0),(9,9)") == 1.0
    assert score("abc(0,0),(9,9)", "ABC(0,0),(9,9)") == 0.0
    assert score("a<b(0,0),(9,9)", "a，b(0,0),(9,9)") == pytest.approx(2 / 3)


def test_comparisons_in_a_text_are_not_dropped_as_tags():
    # Dropping "< b and c >" left "ad" on both sides, so that the wrong text scored 1.
    assert score("a < x and y > d(0,0),(9,9)", "a < b and c > d(0,0),(9,9)") == pytest.approx(1 - 2 / 9)


def test_swapped_corners_are_put_in_order():
    # Taken as written, the box had no area and matched nothing.
    assert score("a(100,20),(0,0)", "a(0,0),(100,20)") == 1.0
    assert score(as_json(("a", (100, 0, 0, 20))), "a(0,0),(100,20)") == 1.0


def test_the_first_prediction_does_not_take_the_reference_of_another():
    # Greedy in output order, "wide" took reference "right" (IoU 0.6 > 0.5), and "right" found nothing left: 0.07.
    reference = as_json(("wide", (0, 0, 50, 10)), ("right", (40, 0, 100, 10)))
    response = as_json(("wide", (0, 0, 100, 10)), ("right", (40, 0, 100, 10)))
    assert score(response, reference) == 1.0


def test_the_summed_iou_decides_between_matchings_of_equal_number():
    # Each prediction overlaps both references by half; the nearer one is its own.
    reference = as_json(("a", (0, 0, 100, 10)), ("b", (0, 0, 100, 12)))
    response = as_json(("b", (0, 0, 100, 12)), ("a", (0, 0, 100, 10)))
    assert score(response, reference) == 1.0
    wrong = as_json(("b", (0, 0, 100, 10)), ("a", (0, 0, 100, 12)))
    assert score(wrong, reference) == 0.0


def test_the_text_distance_decides_between_matchings_of_equal_number_and_iou():
    same = (0, 0, 100, 10)
    assert score(as_json(("a", same), ("b", same), ("c", same)), as_json(("c", same), ("a", same), ("b", same))) == 1.0
    assert score(as_json(("b", same), ("x", same)), as_json(("a", same), ("b", same))) == pytest.approx(1 / 2)


def test_unmatched_items_without_text_cost_1():
    # They used to cost the length of their text, which is 0: an answer could be padded with empty boxes for free.
    assert score(TWO + "<br>(500,500),(600,600)", TWO) == pytest.approx(2 / 3)
    assert score(as_json(("a", (0, 0, 9, 9)), ("", (50, 50, 60, 60))), "a(0,0),(9,9)") == pytest.approx(1 / 2)
    assert score("a(0,0),(9,9)", as_json(("a", (0, 0, 9, 9)), ("", (50, 50, 60, 60)))) == pytest.approx(1 / 2)
    assert score("b(0,0),(9,9)", as_json(("", (50, 50, 60, 60)))) == 0.0


def test_identical_boxes_without_area_match():
    assert score("b(5,5),(5,5)a(0,7),(9,7)", "a(0,7),(9,7)b(5,5),(5,5)") == 1.0
    assert score("a(5,5),(5,5)", "a(0,0),(10,10)") == 0.0


def test_items_that_cannot_be_read_are_unmatched_predictions():
    good = '{"box": [0, 0, 9, 9], "text": "a"}'
    for junk in ("1", "null", '{"text": "b"}', '{"box": [1, 2, 3, 1e999], "text": "b"}'):
        assert score(f"[{good}, {junk}]", "a(0,0),(9,9)") == pytest.approx(1 / 2)
    assert score("<ref>a</ref><quad>(0,0),(9,9)</quad><ref>b</ref><quad>?</quad>", "a(0,0),(9,9)") == pytest.approx(
        1 / 2
    )


def test_items_that_cannot_be_read_are_left_out_of_a_reference():
    assert score("a(0,0),(9,9)", '[{"box": [0, 0, 9, 9], "text": "a"}, 7]') == 1.0
    assert score("a(0,0),(9,9)", "<ref>a</ref><quad>(0,0),(9,9)</quad><ref>b</ref><quad>?</quad>") == 1.0
    assert dropped("[1, 2]")
    assert dropped("<ref>a</ref><quad>?</quad>")


def test_a_region_left_out_scores_lower_than_one_found():
    # spot-02: the bracketed region vanished from both sides, so leaving it out scored 1.
    reference = "ATLANTA (AP)(12,34),(56,78)Second line(90,12),(134,156)"
    omitted = score("Second line(90,12),(134,156)", reference)
    detected = score("ATLANTA AP(12,34),(56,78)Second line(90,12),(134,156)", reference)
    assert omitted < detected < 1.0


def test_the_whole_picture_is_not_a_good_answer():
    # iou-03
    assert score("cat(0,0),(1000,1000)", "cat(45,118),(421,995)") == 0.0


def test_a_wrong_pair_costs_exactly_as_much_as_a_region_left_out():
    # The sum of costs was rounded twice, which let the answer without the pair score 2e-16 higher.
    boxes = [(text, (20 * i, 0, 20 * i + 9, 9)) for i, text in enumerate(["", "", "", "111a1", "11111b"])]
    found = [("ab", box) for _, box in boxes]
    assert score(as_json(*found[1:]), as_json(*boxes)) == score(as_json(*found), as_json(*boxes))


# Identity, stops, empty pictures, unusable references


@pytest.mark.parametrize("end", ["", ".", "。", " . 。\n"])
def test_identical_answers_score_1_without_stops_at_the_end(end):
    assert score(TWO + end, TWO) == score(TWO, TWO + end) == 1.0


def test_stops_inside_an_answer_count():
    # Removing every stop made 3.14 equal to 314.
    assert score("314(0,0),(9,9)", "3.14(0,0),(9,9)") == pytest.approx(0.75)


def test_an_answer_identical_to_a_reference_with_unreadable_items_scores_1():
    reference = '[{"box": [0, 0, 9, 9], "text": "a"}, 7]'
    assert score(reference, reference) == 1.0


@pytest.mark.parametrize(
    "reference", ["", " \n", "[]", "没有文字", "无文字。", "No text", "The picture holds no text."]
)
def test_an_empty_picture(reference):
    for right in ("", " ", ".", "[]", "图中没有文字。", "无文字", "NO TEXT", "There is no text here.", reference):
        assert score(right, reference) == 1.0
    for wrong in (TWO, "nothing", "[1]", "no text(0,0),(9,9)", "no text " + "x" * 60, '[{"box":[0,0,0,0]}]'):
        assert score(wrong, reference) == 0.0


@pytest.mark.parametrize("response", ["", "[]", "no text", "没有文字"])
def test_an_empty_answer_to_a_picture_with_text_scores_0_and_is_kept(response):
    # Dropping it would let a policy escape by answering nothing.
    assert score(response, TWO) == 0.0


def test_the_reference_is_judged_before_the_answer():
    for reference in ("free text", "```json\n[]\n```", "x" * 61 + " no text"):
        assert dropped(reference, reference)
        assert dropped(reference, "")


# Details


def test_match_details_name_pairs_and_leftovers():
    details = match_details("Hallo(0,0),(100,20)Junk(500,500),(600,600)World(0,50),(100,65)", TWO + "!(7,7),(8,8)")
    assert [(pair.prediction, pair.reference) for pair in details.pairs] == [(0, 0), (2, 1)]
    assert [pair.iou for pair in details.pairs] == pytest.approx([1.0, 0.75])
    assert [pair.text_distance for pair in details.pairs] == pytest.approx([0.2, 0.0])
    assert details.unmatched_predictions == (1,)
    assert details.unmatched_references == (2,)
    assert details.total_cost == pytest.approx(2.2)
    assert details.count == 4
    assert details.score == pytest.approx(1 - 2.2 / 4)


def test_the_analysis_is_short_json_that_can_be_encoded():
    text = "\ud800" * 200
    many = "".join(f"{text}{index}({index},0),({index},9)" for index in range(290))
    analysis = process_spotting_task(many, "a(0,0),(0,9)" * 50)["analysis"]
    assert len(analysis) < 4000
    assert json.loads(analysis.encode())["predictions"] == 290


HOSTILE = {
    "nested arrays": "[" * 64_000,
    "nested objects": '[{"a":' * 10_000,
    "open tags": "<ref>" * 12_800,
    "open quads": "<ref>a</ref><quad>" * 3_500,
    "positions": "<quad>" + "<pos_1>" * 9_000,
    "brackets": "(" * 64_000,
    "half points": "(1," * 21_000,
    "points": "(1,2)," * 10_000,
    "blanks": "(1,2)" + " " * 60_000 + "(",
    "stops": ". " * 32_000 + "x",
    "digits": "a(" + "9" * 60_000 + ",1),(2,3)",
    "numbers": "[" + "1," * 31_000 + "1]",
    "combining marks": "a" + "\u0301\u0323" * 30_000 + "(1,2),(3,4)",
    "lone surrogates": "\ud800\udfff" * 20_000 + "(1,2),(3,4)",
    "same box": "a(0,0),(9,9)" * 5_300,
    "long texts in one box": "".join(f"{'ab' * (index % 60 + 20)}(0,0),(9,9)" for index in range(500)),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_answers_score(name):
    assert 0.0 <= score(HOSTILE[name], TWO) <= 0.5
    assert 0.0 <= score(HOSTILE[name], "a(0,0),(9,9)" * 3_000) <= 3_000 / 5_300


@pytest.mark.timeout(60)
def test_thousands_of_boxes_in_one_place_still_find_their_texts():
    letters = "abcdefghij"
    answer = "".join(f"{letters[index % 10]}(0,0),(9,9)" for index in range(3_000))
    shuffled = "".join(f"{letters[index * 7 % 10]}(0,0),(9,9)" for index in range(3_000))
    assert score(shuffled, answer) == 1.0
