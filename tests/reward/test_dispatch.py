"""Which task a ``task_type`` names, and what of an answer is scored."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reward import ocr_utils
from reward.ocr_scorer import SCORERS
from reward.ocr_utils import TaskType, canonical_tasks, classify_task, extract_answer, matching_tasks, snap_score

ALIASES = {
    "Spotting": "检测识别",
    "Layout": "版面分析",
    "Parsing": "通用解析",
    "IE": "信息抽取",
    "chart_deplot": "图表解析",
    "Translation": "翻译",
    "VQA": "视觉问答",
}
PRECEDENCE = ("IE", "Parsing", "Spotting", "Layout", "chart_deplot", "Translation", "VQA")


@pytest.mark.parametrize("english, chinese", ALIASES.items())
def test_both_aliases_name_the_task_and_its_classifier_agrees(english, chinese):
    classifier = getattr(ocr_utils, f"is_{english.lower()}")
    for name in (
        english,
        english.lower(),
        english.upper(),
        chinese,
        f"rule_{english}_v2",
        f"高难度{chinese}数据",
        TaskType(chinese),
    ):
        assert classify_task(name) == english
        assert classifier(name)
    assert not classifier("ocr")


def test_precedence_covers_every_registered_task():
    assert canonical_tasks() == PRECEDENCE == tuple(str(task) for task in SCORERS)


@pytest.mark.parametrize(
    "name, task",
    [
        ("rule_based_parsing", "Parsing"),
        ("IE-rule", "IE"),
        ("movie_vqa", "VQA"),
        ("docIE", "IE"),
        ("DocVQA", "VQA"),
        ("IEtask", "IE"),
        ("ie2024", "IE"),
        ("2ie", "IE"),
        ("中文IE数据", "IE"),
        ("IE信息", "IE"),
        ("Pie_qa", ""),
        ("movie", ""),
        ("series", ""),
        ("PIE", ""),
        ("IES", ""),
        ("ies_vqas", ""),
        ("docvqa", ""),
        ("éie", ""),
        ("ieé", ""),
        ("ıe", ""),
        ("İE", ""),
        ("movie_ie", "IE"),
        ("ieie_IE", "IE"),
        ("", ""),
        ("  vqa  ", "VQA"),
        ("信息 抽取", ""),
        ("chart-deplot", ""),
    ],
)
def test_short_aliases_count_only_as_tokens(name, task):
    assert classify_task(name) == task


def test_several_tasks_in_one_name_follow_precedence_and_are_reported():
    assert classify_task("translation_vqa") == "Translation"
    assert classify_task("layout_parsing") == "Parsing"
    assert classify_task("检测识别_ie") == "IE"
    assert matching_tasks("vqa_layout_ie") == ("IE", "Layout", "VQA")
    assert matching_tasks("VQA") == ("VQA",)


@pytest.mark.parametrize("value", [None, 3, 3.5, b"IE", ["IE"], {"IE": 1}, object()])
def test_what_is_no_string_names_no_task(value):
    assert classify_task(value) == ""
    assert matching_tasks(value) == ()
    assert not ocr_utils.is_ie(value)


@given(st.text(max_size=40))
def test_classification_is_total_and_is_the_first_match(name):
    hits = matching_tasks(name)
    assert classify_task(name) == (hits[0] if hits else "")
    assert list(hits) == sorted(hits, key=PRECEDENCE.index)


@given(st.sampled_from(sorted(ALIASES)), st.text("_-0123 中文。", max_size=6), st.text("_-0123 中文。", max_size=6))
def test_an_alias_between_delimiters_always_hits(english, before, after):
    assert english in matching_tasks(before + english + after)


@given(
    st.sampled_from(["IE", "VQA"]), st.text("bcdfg", min_size=1, max_size=4), st.text("bcdfg", min_size=1, max_size=4)
)
def test_a_short_alias_inside_a_word_of_one_case_never_hits(alias, before, after):
    word = before + alias.lower() + after
    assert matching_tasks(word) == matching_tasks(word.upper()) == ()


@pytest.mark.parametrize(
    "text, answer",
    [
        ("plain", "plain"),
        ("<answer>a</answer>", "a"),
        ("x<answer>a</answer>y<answer>b</answer>z", "b"),
        ("<answer>a</answer><answer>cut", "a"),
        ("<answer>a</answer> stray </answer>", "a"),
        ("<answer>a<answer>b</answer>", "b"),
        ("<answer></answer>", ""),
        ("<answer>a</answer><answer></answer>", ""),
        ("<think>t</think>rest", "rest"),
        ("<think>t</think>a<think>u</think>b", "ab"),
        ("<think><answer>no</answer></think><answer>yes</answer>", "yes"),
        ("<think><answer>no</answer></think>rest", "rest"),
        ("<answer>a<think>t</think>b</answer>", "ab"),
        ("<think>cut <answer>a</answer>", "a"),
        ("<think>cut", "<think>cut"),
        ("t</think>rest", "t</think>rest"),
        ("<answer>cut", "<answer>cut"),
        ("<ANSWER>a</ANSWER>", "<ANSWER>a</ANSWER>"),
        ("<THINK>t</THINK>a", "<THINK>t</THINK>a"),
        ("</answer><answer>", "</answer><answer>"),
        ("<answer>a\nb</answer>\n", "a\nb"),
    ],
)
def test_the_last_complete_answer_block_counts(text, answer):
    assert extract_answer(text) == answer


@settings(max_examples=200)
@given(st.lists(st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", "x", "y"]), max_size=12).map("".join))
def test_extraction_equals_its_regular_expression(text):
    kept = re.sub("<think>.*?</think>", "", text)
    blocks = re.findall("<answer>((?:(?!</?answer>).)*)</answer>", kept)
    assert extract_answer(text) == (blocks[-1] if blocks else kept)


@pytest.mark.timeout(20)
def test_extraction_is_linear():
    for tag in ("<think>", "<answer>", "</answer>", "<think></think>", "<answer></answer>"):
        extract_answer(tag * 300_000)


@pytest.mark.parametrize(
    "score, snapped", [(1, 1.0), (0.9999, 1.0), (1.00005, 1.0), (-0.0001, 0.0), (0.0001, 0.0), (0.5, 0.5)]
)
def test_scores_snap_to_the_ends(score, snapped):
    assert snap_score(score) == snapped
    assert type(snap_score(score)) is float
    assert str(snap_score(-0.0)) == "0.0"


@pytest.mark.parametrize("score", [float("nan"), float("inf"), -float("inf"), 1.1, -0.1, -1.0])
def test_what_is_no_score_is_refused(score):
    with pytest.raises(ValueError, match="score"):
        snap_score(score)
