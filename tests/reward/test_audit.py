"""``python -m reward audit``: every planted defect is found, and nothing else."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.reward_corpus import audit_dataset, write_parquet
from reward.__main__ import main

ROOT = Path(__file__).resolve().parents[2]


def audit(*arguments):
    return main(["audit", *map(str, arguments)])


def findings(capsys, *arguments):
    code = audit(*arguments, "--json")
    return code, json.loads(capsys.readouterr().out)


def test_a_large_dataset_has_every_planted_defect_found_and_no_false_alarm(tmp_path, capsys):
    records, planted = audit_dataset(seed=7, rows=5000)
    assert len(planted) == 100
    write_parquet(records, tmp_path / "data.parquet")
    code, report = findings(capsys, tmp_path / "data.parquet")
    found = {(finding["row"], finding["problem"]) for finding in report["findings"]}
    assert found == {(defect.row, defect.problem) for defect in planted}
    assert len(report["findings"]) == len(planted)
    assert all(finding["id"] == f"row-{finding['row']}" for finding in report["findings"])
    assert (code, report["rows"]) == (1, 5000)
    assert set(report["tasks"]) == {
        "(unknown)", "IE", "Layout", "Parsing", "Spotting", "Translation", "VQA", "chart_deplot",
    }  # fmt: skip


def test_a_clean_dataset_passes(tmp_path, capsys):
    records, _ = audit_dataset(seed=11, rows=120, defect_share=0.0)
    write_parquet(records, tmp_path / "data.parquet")
    assert audit(tmp_path / "data.parquet") == 0
    assert "120 rows, 0 with findings" in capsys.readouterr().out


def test_workers_find_the_same(tmp_path, capsys):
    records, _ = audit_dataset(seed=3, rows=300, defect_share=0.2)
    write_parquet(records, tmp_path / "data.parquet")
    _, one = findings(capsys, tmp_path / "data.parquet")
    command = [sys.executable, "-m", "reward", "audit", str(tmp_path / "data.parquet"), "--json", "--workers", "2"]
    two = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert json.loads(two.stdout) == one
    assert two.returncode == 1


def test_json_lines_name_their_lines(tmp_path, capsys):
    data = tmp_path / "data.jsonl"
    data.write_text(
        "\n".join(
            [
                '{"ref_answer": "text", "task_type": "Parsing", "id": "good"}',
                '{"ref_answer": "text", "task_type": "ocr", "id": "bad"}',
                "{broken",
                '{"task_type": "Parsing"}',
                '{"ref_answer": {"a": 1}, "task_type": "IE"}',
                '{"reward_model": {"ground_truth": ""}, "extra_info": {"task_type": "IE", "id": "verl"}}',
                '{"ref_answer": "", "task_type": "Spotting"}',
            ]
        )
    )
    code, report = findings(capsys, data)
    assert code == 1
    assert [(found["row"], found["id"], found["problem"]) for found in report["findings"]] == [
        (2, "bad", "unknown_task"),
        (3, "", "unreadable_row"),
        (4, "", "unreadable_row"),
        (6, "verl", "empty_reference"),
    ]
    assert audit(data, "--out", tmp_path / "sub" / "found.jsonl") == 1
    printed = capsys.readouterr()
    assert f"{data}: line 2 (bad): unknown_task: 'ocr' names none of IE" in printed.out
    assert "7 rows, 4 with findings" in printed.out
    written = [json.loads(line) for line in (tmp_path / "sub" / "found.jsonl").read_text().splitlines()]
    assert written == report["findings"]


def test_a_reference_that_does_not_score_one_is_listed(tmp_path, capsys, monkeypatch):
    from reward.task_scorers import parsing

    half = {"analysis": "", "is_valid": True, "reward": 0.5, "decision": "scored"}
    monkeypatch.setattr(parsing, "process_parsing_task", lambda response, ref_answer: half)
    data = tmp_path / "data.jsonl"
    data.write_text('{"ref_answer": "text", "task_type": "Parsing"}\n')
    _, report = findings(capsys, data)
    assert [(found["problem"], found["detail"]) for found in report["findings"]] == [
        ("self_score", "scores 0.5000 against itself")
    ]


def test_what_cannot_be_audited_says_why(tmp_path, capsys):
    import pyarrow
    import pyarrow.parquet

    assert audit(tmp_path / "none.parquet") == 2
    assert "none.parquet: no such file" in capsys.readouterr().err
    (tmp_path / "text.parquet").write_text("not parquet")
    assert audit(tmp_path / "text.parquet") == 2
    assert "not a parquet file" in capsys.readouterr().err
    pyarrow.parquet.write_table(pyarrow.table({"answer": ["x"]}), tmp_path / "other.parquet")
    assert audit(tmp_path / "other.parquet") == 2
    assert "no column reward_model and extra_info; convert raw data" in capsys.readouterr().err
    (tmp_path / "empty.jsonl").write_text("")
    assert audit(tmp_path / "empty.jsonl") == 2
    assert "no rows" in capsys.readouterr().err


@pytest.mark.parametrize("task_type", ["VQA", "Translation"])
def test_judge_tasks_need_a_reference_and_a_question(tmp_path, capsys, task_type):
    data = tmp_path / "data.jsonl"
    rows = [
        {"ref_answer": "x", "question": "q", "task_type": task_type},
        {"ref_answer": "", "question": "q", "task_type": task_type},
        {"ref_answer": "x", "question": " ", "task_type": task_type},
        {"ref_answer": "x", "question": "", "source_lang_text": "s", "task_type": task_type},
    ]
    data.write_text("\n".join(map(json.dumps, rows)))
    _, report = findings(capsys, data)
    problems = {found["row"]: found["problem"] for found in report["findings"]}
    assert problems == {2: "empty_reference", 3: "empty_question"} | (
        {4: "empty_question"} if task_type == "VQA" else {}
    )
