"""Hostile answers of 64,000 characters: no exception, the contract kept, bounded time and memory.

Each task's answers run in one process of their own under a memory limit; a scorer that is still at work after 20 seconds
on one answer is interrupted, which shows as the decision "timeout".
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.hostile_answers import NORMAL, SIZE, hostile_answers
from reward_ocr import compute_score
from tests.reward.test_contract import assert_contract

ROOT = Path(__file__).resolve().parents[2]
PEAK_MIB = 1024
ORDERLY = {"scored", "bad_reference", "empty_reference"}


@pytest.fixture(scope="module", params=sorted(NORMAL))
def records(request):
    command = [sys.executable, str(ROOT / "benchmarks" / "hostile_answers.py"), "--task", request.param, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_hostile_answer_ends_in_order(records):
    assert [record["name"] for record in records] == list(hostile_answers())
    faults = {}
    for record in records:
        for entry in record["results"]:
            result = assert_contract(entry["result"])
            if result["decision"] not in ORDERLY:
                faults[record["name"]] = (entry["kind"], result["decision"], result["analysis"])
    assert not faults


def test_memory_stays_bounded(records):
    assert max(record["peak_mib"] for record in records) < PEAK_MIB


def test_a_hostile_answer_never_beats_an_honest_one(records):
    """Junk against a normal reference earns nothing worth having."""
    earned = {
        record["name"]: entry["result"]["score"]
        for record in records
        for entry in record["results"]
        if entry["kind"] == "against a normal reference" and entry["result"]["score"] > 0.5
    }
    assert not earned


def test_the_answers_are_as_large_as_they_claim():
    answers = hostile_answers()
    assert len(answers) > 150
    assert all(len(answer) <= 2 * SIZE for answer in answers.values())
    assert sum(len(answer) >= SIZE // 4 for answer in answers.values()) > 120


@pytest.mark.parametrize("task", ["Translation", "VQA"])
@pytest.mark.parametrize("name", ["repeat '\\ud800'", "noise", "nested objects", "repeat '<think>'", "repeat '\\n'"])
def test_judge_tasks_take_hostile_answers_too(monkeypatch, task, name):
    """The judge is told what it is given; its client is not reached here."""
    from reward.utils import request_utils

    seen = []

    def judge(request):
        seen.append(request)
        return request_utils.JudgeOutcome(reward=0.0, decision="scored", analysis="{}")

    monkeypatch.setattr(request_utils, "judge", judge)
    result = assert_contract(compute_score("d", hostile_answers()[name], "12", {"task_type": task, "question": "q"}))
    assert result["decision"] == "scored"
    assert len(seen) == (0 if name == "repeat '\\n'" else 1)
