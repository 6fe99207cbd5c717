"""IE: what each answer scores, and which faults of other scorers stay fixed."""

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reward.task_scorers.ie.eval import field_table, process_ie_task
from reward.task_scorers.ie.reading import read_object
from reward.task_scorers.ie.values import comparable
from reward.task_scorers.parsing import process_parsing_task


def score(response, reference):
    result = process_ie_task(response, reference)
    assert (result["is_valid"], result["decision"]) == (True, "scored"), result
    return result["reward"]


def value_score(response, reference):
    """Score of one field ``a`` with these JSON values."""
    return score(f'{{"a": {response}}}', f'{{"a": {reference}}}')


# Finding the object


@pytest.mark.parametrize(
    "text",
    [
        '{"a": "1"}',
        ' \n{"a": "1"}\n ',
        '\ufeff{"a": "1"}',
        '```json\n{"a": "1"}\n```',
        '```\n{"a": "1"}\n```',
        '```json {"a": "1"} ```',
        'Here it is:\n```json\n{"a": "1"}\n```\nDone.',
        '```json\n{"a": "1"}',
        'The result is {"a": "1"}.',
        '[{"a": "1"}]',
        '```json\n[{"a": "1"}]\n```',
        'Answer: [{"a": "1"}]',
        '```json\n{"a": "0"}\n```\nCorrected:\n```json\n{"a": "1"}\n```',
        '```json\n{"a": "1"}\n```\nCut off:\n```json\n{"a": "0"',
        '{"a": "0", "a": "1"}',
        '{" a ": "0", "a": "2", "a\\n": "1"}',
    ],
)
def test_the_object_of_an_answer(text):
    assert read_object(text) == {"a": "1"}
    assert score(text, '{"a": "1"}') == score('{"a": "1"}', text) == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "no json",
        # ie-01: a cut-off value is never guessed.
        '{"total":"9.00","company":"A, B Ltd","addr":"12',
        "{'a': '1'}",
        '{"a": 1,}',
        '{"a": 1} and {"b": 2}',
        '[{"a": 1}, {"b": 2}]',
        '[1, {"a": 1}]',
        '"{}"',
        "[]",
        "7",
        '```json\n[1, {"a": 1}]\n```',
        '{"a":' * 12_000,
        "[" * 64_000,
        '{"a":' + "[" * 200 + "]" * 200 + "}",
    ],
)
def test_no_object(text):
    assert read_object(text) is None
    assert score(text, '{"total": "9.00"}') == 0.0
    # Whatever the reference holds: it is not even a match of blanks.
    assert score(text, '{"a": ""}') == score(text, "{}") == 0.0


def test_keys_are_trimmed_and_composed_and_keep_their_case():
    assert score('{" cafe\u0301 ": 1}', '{"café": 1}') == 1.0
    assert score('{"Total": 1}', '{"total": 1}') == 0.0
    assert score('{"x": {"cafe\u0301 ": 1}}', '{"x": {"café": 1}}') == 1.0


def test_lenient_json():
    assert score('{"a": "x\ny"}', '{"a": "x y"}') == 1.0
    assert score('{"a": NaN, "b": -Infinity}', '{"a": "nan", "b": "-infinity"}') == 1.0
    assert value_score("9" * 10_000, "9" * 10_000) == 1.0
    assert value_score("9" * 10_000, "9" * 9_999) == pytest.approx(0.9999)
    assert value_score("1e999", "Infinity") == 1.0
    assert value_score('"\\ud800"', '"\ud800"') == 1.0


# Values


@pytest.mark.parametrize(
    ("response", "reference", "expected"),
    [
        ('"9.00"', '"9.00"', 1.0),
        ('"9.0"', '"9.00"', 0.75),
        ("9.00", '"9.0"', 1.0),
        ("1e2", "100.0", 1.0),
        ("-0", '"0"', 1.0),
        ("12", '"12"', 1.0),
        ("true", '"True"', 1.0),
        ("false", "true", pytest.approx(0.2)),
        ('"A  B\\u3000c"', '"ab C"', 1.0),
        ('"cafe\\u0301"', '"CAFÉ"', 1.0),
        ("null", '""', 1.0),
        ("[]", "null", 1.0),
        ("{}", '" "', 1.0),
        ('{"x": ["", null, {}]}', '""', 1.0),
        ("null", '"x"', 0.0),
        ('"x"', "null", 0.0),
        ("0", "null", 0.0),
        ("false", "null", 0.0),
        ('{"y": 2, "x": "A b"}', '{"x": "ab", "y": 2}', 1.0),
        ('{"y": 2, "x": 1, "z": ""}', '{"x": 1, "y": 2}', 1.0),
        ('["a", null, "b"]', '["a", "b"]', 1.0),
        ('["b", "a"]', '["a", "b"]', pytest.approx(1 - 2 / 9)),
        ("[1]", '["1"]', pytest.approx(3 / 5)),
        ('[{"x": 1}, {"x": 2}]', '[{"x": 1}, {"x": 3}]', pytest.approx(16 / 17)),
    ],
)
def test_values(response, reference, expected):
    assert value_score(response, reference) == expected
    assert value_score(reference, response) == expected


# Score


def test_the_score_is_the_mean_over_all_keys():
    reference = '{"name": "Ann", "total": "9.00"}'
    assert score('{"name": "Ann", "total": "9.0"}', reference) == pytest.approx((1 + 0.75) / 2)
    assert score('{"name": "Ann", "total": "9.00", "tax": "1"}', reference) == pytest.approx(2 / 3)
    # ie-06: a field that is not found counts.
    assert score('{"name": "Ann"}', reference) == pytest.approx(1 / 2)
    assert score("{}", reference) == 0.0


def test_the_answers_of_public_cases():
    # ie-02, ie-04
    assert score('[{"a":"1"}]', '{"a":"1"}') == 1.0
    assert score("{}", "{}") == 1.0


def test_blank_keys_that_only_the_response_has_do_not_raise_the_mean():
    # Blank against missing counted as 1: padding with such keys raised 0.5 to 0.75.
    reference = '{"name": "Ann", "total": "9.00"}'
    for blank in ('""', "null", "[]", "{}", '" "'):
        response = f'{{"name": "Ann", "b": {blank}, "c": {blank}}}'
        assert score(response, reference) == pytest.approx(1 / 4)
        assert score(f'{{"b": {blank}}}', "{}") == 0.0


def test_missing_equals_blank_for_keys_of_the_reference():
    reference = '{"name": "Ann", "fax": ""}'
    assert score('{"name": "Ann"}', reference) == score('{"name": "Ann", "fax": null}', reference) == 1.0
    assert score('{"name": "Ann", "fax": "5"}', reference) == pytest.approx(1 / 2)


def test_an_empty_reference_is_dropped():
    for reference in ("", " \n"):
        result = process_ie_task('{"a": 1}', reference)
        assert (result["reward"], result["is_valid"], result["decision"]) == (-1.0, False, "empty_reference")


@pytest.mark.parametrize("reference", ["Total: 9.00 EUR", '["a", "b"]', '[{"a": 1}, {"b": 2}]', "12", '{"a": 1'])
def test_any_other_reference_is_scored_as_a_document(reference):
    for response in (reference, "Total: 9.10 EUR", "", '{"a": 1}'):
        assert process_ie_task(response, reference) == process_parsing_task(response, reference)
    assert process_ie_task(reference, reference)["reward"] == 1.0


def test_the_field_table():
    table = field_table('{"Name": "ANN", "total": 9.5, "tax": ""}', '{"total": "9.00", "Name": "Ann", "fax": null}')
    assert [(row.name, row.reference, row.prediction, row.exact, row.extra) for row in table] == [
        ("total", "9.00", "9.5", False, False),
        ("Name", "Ann", "ANN", True, False),
        ("fax", "", None, True, False),
        ("tax", None, "", False, True),
    ]
    assert [row.similarity for row in table] == [0.5, 1.0, 1.0, 0.0]
    assert field_table("x", "not an object") is None
    assert [row.prediction for row in field_table("x", '{"a": 1}')] == [None]


def test_the_analysis_lists_fields_and_stays_short():
    details = json.loads(process_ie_task('{"a": "x", "c": 1}', '{"a": "xy", "b": ""}')["analysis"])
    assert (details["fields"], details["exact"], details["extra"]) == (3, 1, 1)
    assert details["listed"] == [
        {"field": "c", "ref": None, "pred": "1", "exact": False, "similarity": 0.0},
        {"field": "a", "ref": "xy", "pred": "x", "exact": False, "similarity": 0.5},
        {"field": "b", "ref": "", "pred": None, "exact": True, "similarity": 1.0},
    ]
    many = json.dumps({f"\ud800 key {index}" * 9: "value " * 50 for index in range(200)}, ensure_ascii=False)
    analysis = process_ie_task(many, many)["analysis"]
    assert len(analysis) < 4000
    assert json.loads(analysis.encode())["fields"] == 200


# Properties

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text("aB 1汉é", max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab ", max_size=2), inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.text("abc", min_size=1, max_size=2), VALUES, max_size=5)


@settings(max_examples=150, deadline=None)
@given(OBJECTS, st.data())
def test_an_object_scores_1_against_itself_in_any_order(fields, data):
    shuffled = dict(data.draw(st.permutations(list(fields.items()))))
    assert score(json.dumps(shuffled), json.dumps(fields)) == 1.0
    assert score(json.dumps(shuffled, indent=2, ensure_ascii=False), json.dumps(fields)) == 1.0


@settings(max_examples=150, deadline=None)
@given(OBJECTS, OBJECTS, st.data())
def test_range_order_and_junk(response, reference, data):
    expected = score(json.dumps(response), json.dumps(reference))
    assert 0.0 <= expected <= 1.0
    shuffled = dict(data.draw(st.permutations(list(response.items()))))
    assert score(json.dumps(shuffled), json.dumps(reference)) == expected
    blank = data.draw(st.sampled_from(["", None, [], {}]))
    padded = score(json.dumps({**response, "junk": blank}), json.dumps(reference))
    assert padded <= expected
    assert padded < expected or expected == 0.0


@settings(max_examples=150, deadline=None)
@given(OBJECTS, st.data())
def test_leaving_out_fields_of_a_right_answer_never_helps(fields, data):
    kept = dict(data.draw(st.permutations(list(fields.items())))[1:])
    lost = [value for key, value in read_object(json.dumps(fields)).items() if key not in kept]
    result = score(json.dumps(kept), json.dumps(fields))
    if any(comparable(value) for value in lost):
        assert result < 1.0
    else:
        assert result == 1.0


@settings(max_examples=100, deadline=None)
@given(st.text('{}[]":,a1`\n\\\ud800 ', max_size=40))
def test_any_text_scores_the_same_way_each_time(text):
    result = process_ie_task(text, '{"a": 1, "b": ""}')
    assert result == process_ie_task(text, '{"a": 1, "b": ""}')
    assert 0.0 <= result["reward"] <= 1.0
    own = process_ie_task(text, text)
    assert own["reward"] == (1.0 if own["is_valid"] else -1.0)


HOSTILE = {
    "fields": "{" + ",".join(f'"{index}":1' for index in range(8_000)) + "}",
    "deep": '{"a":' * 99 + "1" + "}" * 99,
    "fences": "```" * 21_000,
    "fenced objects": "```{}" * 12_800,
    "fenced arrays": "```[1]```{" * 6_400,
    "braces": "{}" * 32_000,
    "escapes": '{"a":"' + '\\"' * 29_000,
    "quotes": '"\\' * 20_000 + "[" * 200,
    "long array": '{"a":[' + "1," * 30_000 + "1]}",
    "blank array": '{"a":[' + "[]," * 20_000 + "[]]}",
    "combining marks": '{"a":"a' + "\u0301\u0323" * 30_000 + '"}',
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_answers_score(name):
    assert 0.0 <= score(HOSTILE[name], '{"x": "1", "y": "2"}') < 0.1
    if read_object(HOSTILE[name]) is not None:
        assert score(HOSTILE[name], HOSTILE[name]) == 1.0


PROBE = """
import json
from reward.task_scorers.ie.eval import process_ie_task
from reward.task_scorers.layout import process_layout_task
from reward.task_scorers.spotting import process_spotting_task
box = [{"box": [i % 3, 0, 50 + i % 7, 50], "text": "ab"[i % 2] * (i % 5)} for i in range(40)]
page = [{"layout_type": "para" if i % 2 else "table", "bbox": b["box"], "text": b["text"]} for i, b in enumerate(box)]
fields = {b["text"] + str(i): b for i, b in enumerate(box)}
print(json.dumps([
    process_spotting_task(json.dumps(box[5:]), json.dumps(box[::-1])),
    process_layout_task(json.dumps(page[5:]), json.dumps(page[::-1])),
    process_ie_task(json.dumps(fields), json.dumps({**fields, "x": 1, "0": 2})),
]))
"""


def test_results_do_not_depend_on_the_process_or_its_hash_seed():
    results = set()
    for seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        run = subprocess.run([sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True, check=True)
        results.add(run.stdout)
    assert len(results) == 1
    assert all(0 < result["reward"] < 1 for result in json.loads(results.pop()))
