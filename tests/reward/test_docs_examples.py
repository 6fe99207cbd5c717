"""The examples of docs/scoring.md, run as they stand there."""

import doctest
import re
from pathlib import Path

from reward.ocr_utils import classify_task
from reward.task_scorers.teds import teds
from reward.utils.judge_types import JudgeRequest
from reward.utils.prompt import build_messages
from reward.utils.verdicts import parse_reply
from reward_ocr import compute_score

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "scoring.md"


def result(task, response, reference):
    return compute_score("docs", response, reference, {"task_type": task})


def score(task, response, reference):
    return round(result(task, response, reference)["score"], 4)


def decision(task, response, reference):
    return result(task, response, reference)["decision"]


def judge_prompt(task, **fields):
    messages = build_messages(JudgeRequest(task, **fields), secret=b"test", max_field_chars=10_000)
    return "\n".join(message["content"] for message in messages)


def test_every_example_is_right():
    helpers = [score, decision, judge_prompt, classify_task, teds, parse_reply]
    outcome = doctest.testfile(
        str(DOCUMENT),
        module_relative=False,
        globs={helper.__name__: helper for helper in helpers},
        encoding="utf-8",
    )
    assert outcome.failed == 0
    assert outcome.attempted > 50


def test_every_difference_has_an_example():
    text = DOCUMENT.read_text(encoding="utf-8")
    rows = [int(number) for number in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)]
    examples = [int(number) for number in re.findall(r"^>>> .*# (\d+)$", text, re.MULTILINE)]
    assert rows == examples == list(range(1, 25))
