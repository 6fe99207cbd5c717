"""The recipe of docs/adding_a_task.md, followed to the letter in a copy of the package: three edits, and it scores."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECIPE = (ROOT / "docs" / "adding_a_task.md").read_text(encoding="utf-8")


def code_block(name):
    """The code block of the recipe that starts with this comment line."""
    found = re.search(rf"```python\n# {re.escape(name)}\n(.*?)```", RECIPE, re.DOTALL)
    assert found, f"docs/adding_a_task.md has no block for {name}"
    return found.group(1)


@pytest.fixture
def kit(tmp_path):
    shutil.copytree(ROOT / "reward", tmp_path / "reward", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "reward_ocr.py", tmp_path)
    return tmp_path


def insert_before(path, marker, addition):
    text = path.read_text(encoding="utf-8")
    assert text.count(marker) == 1, marker
    path.write_text(text.replace(marker, addition + marker), encoding="utf-8")


def score(kit, *samples):
    code = (
        "import json, sys, reward_ocr; print(json.dumps([reward_ocr.compute_score(*s) for s in json.load(sys.stdin)]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=kit, input=json.dumps(samples), capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def test_three_edits_make_a_rule_task(kit):
    members, classifier = code_block("reward/ocr_utils.py").split("\n\n\n")
    insert_before(kit / "reward/ocr_utils.py", "\n\ndef is_ie(", members.rstrip() + "\n")
    insert_before(kit / "reward/ocr_utils.py", "def classify_task(", classifier.rstrip() + "\n\n\n")
    (kit / "reward/task_scorers/digit_count.py").write_text(code_block("reward/task_scorers/digit_count.py"), "utf-8")
    registration = code_block("reward/ocr_scorer.py")
    assert len(registration.splitlines()) == 1
    insert_before(kit / "reward/ocr_scorer.py", "}\n\n\ndef needs_judge(", registration)

    info = {"task_type": "my_digitcount_v1"}
    right, wrong, empty, unusable, missing, chinese, other = score(
        kit,
        ("s", "5", "5", info),
        ("s", "4", "8", info),
        ("s", "", "5", info),
        ("s", "5", "five", info),
        ("s", "5", "", info),
        ("s", "5", "5", {"task_type": "数字计数"}),
        ("s", '{"a": "1"}', '{"a": "1"}', {"task_type": "IE"}),
    )
    assert (right["task"], right["score"], right["acc"], right["decision"]) == ("DigitCount", 1.0, 1.0, "scored")
    assert (wrong["score"], wrong["valid"]) == (0.5, 1.0)
    assert (empty["score"], empty["decision"]) == (0.0, "scored")
    assert (unusable["score"], unusable["decision"]) == (-1.0, "bad_reference")
    assert (missing["score"], missing["decision"]) == (-1.0, "empty_reference")
    assert chinese["task"] == "DigitCount"
    assert (other["task"], other["score"]) == ("IE", 1.0)


def test_the_copy_without_the_edits_does_not_know_the_task(kit):
    (result,) = score(kit, ("s", "5", "5", {"task_type": "DigitCount"}))
    assert (result["score"], result["decision"]) == (-1.0, "unknown_task")
