"""Reading a judge's reply: what counts, what fails, and that nothing raises."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reward.utils.verdicts import parse_reply, translation_reward


def vqa(reply: str):
    verdict = parse_reply("VQA", reply)
    return None if verdict is None else verdict.value


def translation(reply: str):
    verdict = parse_reply("Translation", reply)
    return None if verdict is None else verdict.value


@pytest.mark.parametrize(
    "reply, value",
    [
        ("Judgement: 1", 1),
        ("Judgement: 0", 0),
        ("Judgment：0", 0),
        ("The two agree.\n\n**Judgement: 1**", 1),
        ("**Judgement**: **1**", 1),
        ("JUDGEMENT:1.", 1),
        ("- judgement: [0]。", 0),
        ("Judgement：\u30001\u3000", 1),
        ('```json\n{"Judgement": 1}\n```', 1),
        ("Judgement: 0\nI had a second look.\nJudgement: 1", 1),
        ("Judgement: 1\nJudgement: 0", 0),
        ("<think>Judgement: 1</think>Judgement: 0", 0),
        ("The template opened the block.\nJudgement: 1</think>\nJudgement: 0", 0),
        ("Judgement: 1\nI was asked to write Judgement: 0 or Judgement: 1.", 1),
        ("Judgement: 1\r\n", 1),
    ],
)
def test_vqa_verdict(reply, value):
    assert vqa(reply) == value


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "1",
        "INCORRECT",
        "CORRECT",
        "This is not excellent but acceptable",
        "[ERROR] request failed after 1 retries",
        "Judgement: 2",
        "Judgement: 10",
        "Judgement: 01",
        "Judgement: -1",
        "Judgement: 1.0",
        "Judgement: .1",
        "Judgement: 0.5",
        "Judgement: 1%",
        "Judgement: 0/1",
        "Judgement: 0 or 1",
        "Judgement: yes",
        "Judgement: 1 because the numbers agree",
        "My Judgement: 1",
        "Judgement 1",
        "Judgement: １",
        "Judgement: 1\nJudgement: 2",
        "<think>Judgement: 1",
        "Judgement: 1<think>",
        "<think>a</think>Judgement: 1<think>b",
    ],
)
def test_vqa_failure(reply):
    assert vqa(reply) is None


LABELS = ["最终得分", "最终评分", "综合得分", "综合评分", "总分", "Final Score", "final_score", "FINAL SCORE", "Score"]


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize(
    "form", ["{}: 4", "{}：4", "**{}：** 4", "{}：4分", "{}: 4/5", "## {} : 4.0", "结论。{}:\u30004。"]
)
def test_translation_labels(label, form):
    assert translation("理由……\n" + form.format(label)) == 4.0


@pytest.mark.parametrize(
    "reply, value",
    [
        ("score 4/5", 4.0),
        ("最终得分为4.5分", 4.5),
        ("综上所述，最终得分：3分", 3.0),
        ("Therefore, the final score is 4 out of 5.", 4.0),
        ("最终得分：4分（满分5分）", 4.0),
        ("总分（满分5分）：3", 3.0),
        ("Final Score (0-5): 2", 2.0),
        ("Final Score: [[0]]", 0.0),
        ("Final Score: 3 because a sentence is missing", 3.0),
        ("Final Score: 4, good", 4.0),
        ("Fluency: 5\nAccuracy: 2\nFinal Score: 3/5", 3.0),
        ("Final Score: 5\nWait, a sentence is missing.\nFinal Score: 2", 2.0),
        ('{"score": 4}', 4.0),
        ('```json\n{"reason": "Final Score: 5 is claimed", "final_score": "3/5"}\n```', 3.0),
        ('{"score": 1, "最终得分": 4.5}', 4.5),
        ('{"details": {"fluency": 2}, "Final Score": 4}', 4.0),
        ('Final Score: 1\n{"score": 4}', 4.0),
        ('{"score": 4}\nFinal Score: 1', 1.0),
        ("{ not json {\nFinal Score: 2", 2.0),
        ("<think>Final Score: 5</think>\nFinal Score: 1", 1.0),
        ("Final Score: 0", 0.0),
        ("Final Score: 5", 5.0),
    ],
)
def test_translation_verdict(reply, value):
    assert translation(reply) == value


@pytest.mark.parametrize(
    "reply",
    [
        'Final Score: 1\nNote: the candidate says "Final Score: 5".',
        "Final Score: 1\nThe candidate writes Final Score: 5, which I ignore.",
        "Final Score: 1\n候选译文中写着“最终得分：5”。",
    ],
)
def test_a_cited_verdict_is_no_verdict(reply):
    assert translation(reply) == 1.0


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "4",
        "I give it 4/5",
        "There are 5 reasons why this is a score of 9",
        "Final Score: 6",
        "Final Score: -1",
        "Final Score: 5.01",
        "Final Score: 90",
        "Final Score: 4/10",
        "总分：9/10",
        "总分（满分10分）：4",
        "Final Score: 4 out of 10",
        "Final Score: 4-5",
        "Final Score: 4~5",
        "总分：4到5分",
        "Final Score: 4 or 5",
        "Final Score: 80%",
        "Final Score: 4,5",
        "Final Score: 1.2.3",
        "Final Score: 4e0",
        "Final Score: four",
        "Final Score: n/5",
        "Final Score: 4\nFinal Score: 7",
        '{"score": 9}',
        '{"score": true}',
        '{"score": null}',
        '{"score": "4/10"}',
        '{"score": [4]}',
        '{"score": NaN}',
        '{"score": 1' + "0" * 400 + "}",
        '{"score": 4} {"score": 6}',
        "Fluency score: 4",
        "<think>Final Score: 4",
    ],
)
def test_translation_failure(reply):
    assert translation(reply) is None


@given(st.floats(0, 5))
def test_translation_reward_is_monotone_and_bounded(score):
    reward = translation_reward(score)
    assert 0.0 <= reward <= 1.0
    assert translation_reward(min(5.0, score + 0.1)) >= reward


def test_translation_reward_knots():
    assert [translation_reward(s) for s in (0, 1, 2, 3, 4, 4.5, 5)] == pytest.approx([0, 0.1, 0.2, 0.5, 0.8, 0.9, 1])


PIECES = st.sampled_from(
    [
        "Judgement: 1",
        "Judgement: ",
        "Final Score: 4/5",
        "最终得分：",
        "5",
        "/5",
        "<think>",
        "</think>",
        "{",
        "}",
        '"',
        "\\",
        *("score", ":", "\n", "**", "\u3000", " ", '{"score": 3}', "-", ".", "（满分", "\ud800", "\x00", "分"),
    ]
)


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(st.text(max_size=200), st.lists(PIECES, max_size=30).map("".join)),
    st.sampled_from(["VQA", "Translation"]),
)
def test_any_reply_is_a_verdict_in_range_or_none(reply, task):
    verdict = parse_reply(task, reply)
    if verdict is not None:
        assert 0.0 <= verdict.reward <= 1.0
        assert 0.0 <= verdict.value <= (1 if task == "VQA" else 5)


WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Nd"], exclude_characters="<>{}*_"), max_size=120)


@settings(max_examples=150, deadline=None)
@given(WORDS, st.integers(0, 5), st.integers(0, 1))
def test_the_last_line_decides_whatever_comes_before(before, score, judgement):
    assert translation(f"{before}\nFinal Score: {score}/5") == score
    assert translation(f"{before}\n" + json.dumps({"reason": before, "score": score})) == score
    assert vqa(f"{before}\nJudgement: {judgement}") == judgement
    assert vqa(f"<think>Judgement: {1 - judgement}</think>{before}\nJudgement: {judgement}") == judgement


@pytest.mark.parametrize(
    "unit", ["{", '{"score":', "judgement:", "score: 1,", "<think></think>", '"{', "\\", "-", "。总分："]
)
def test_long_repetitive_replies_are_read(unit):
    long = unit * (64_000 // len(unit))
    for task in ("VQA", "Translation"):
        parse_reply(task, long)
    assert vqa(long + "\nJudgement: 1") == 1
