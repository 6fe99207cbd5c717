"""``python -m reward score``: nothing lost, nothing scored twice, resumable."""

import asyncio
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reward.__main__ import main
from reward.ocr_scorer import RESULT_KEYS

ROOT = Path(__file__).resolve().parents[2]


def sample(index, **fields):
    return {"id": f"s{index}", "response": "some text", "ref_answer": "some text", "task_type": "Parsing", **fields}


def write_lines(path, records):
    lines = [record if isinstance(record, str) else json.dumps(record, ensure_ascii=False) for record in records]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def read_lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def files(tmp_path):
    return tmp_path / "in.jsonl", tmp_path / "out.jsonl"


def score(*arguments):
    return main(["score", *map(str, arguments)])


def test_every_line_gets_its_result_in_order(files, capsys):
    source, out = files
    write_lines(
        source, [sample(1), sample(2, response="else entirely"), sample(3, task_type="通用解析", ref_answer={"a": 1})]
    )
    assert score(source, "--out", out) == 0
    rows = read_lines(out)
    assert [(row["line"], row["id"]) for row in rows] == [(1, "s1"), (2, "s2"), (3, "s3")]
    assert rows[0]["score"] == 1.0
    assert rows[1]["score"] == 0.0
    assert tuple(rows[0])[3:] == RESULT_KEYS
    table = capsys.readouterr().out
    assert "Parsing" in table
    assert "3 rows, 0 dropped, 0 rejected" in table


def test_dropped_samples_are_in_the_summary_and_in_the_exit_code(files, capsys):
    source, out = files
    write_lines(source, [sample(1), sample(2, ref_answer=""), sample(3, task_type="ocr")])
    assert score(source, "--out", out, "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["rows"], report["dropped"], report["rejected"]) == (3, 2, 0)
    assert report["tasks"]["Parsing"] == {
        "rows": 2, "scored": 1, "mean_score": 1.0, "accuracy": 1.0, "decisions": {"empty_reference": 1, "scored": 1},
    }  # fmt: skip
    assert report["tasks"]["(unknown)"]["decisions"] == {"unknown_task": 1}


def test_bad_lines_are_reported_with_their_place_and_kept(files, capsys):
    source, out = files
    lines = [
        sample(1),
        "{not json",
        "",
        "[1, 2]",
        {"response": "x", "task_type": "Parsing"},
        {"ref_answer": "x", "task_type": "Parsing"},
        sample(7, response=3),
        {"response": "x", "ref_answer": "x"},
        '{"response": "x", "ref_answer": ' + "9" * 5000 + ', "task_type": "IE"}',
        sample(10),
    ]
    write_lines(source, lines)
    with source.open("ab") as raw:
        raw.write(b'{"response": "\xff"}\n')
    assert score(source, "--out", out) == 1
    assert [row["line"] for row in read_lines(out)] == [1, 10]
    rejects = read_lines(Path(f"{out}.rejects.jsonl"))
    assert [(reject["line"], reject["field"]) for reject in rejects] == [
        (2, ""), (4, ""), (5, "ref_answer"), (6, "response"), (7, "response"), (8, "task_type"), (9, ""), (11, ""),
    ]  # fmt: skip
    assert rejects[0]["raw"] == "{not json"
    assert rejects[0]["file"] == str(source)
    errors = capsys.readouterr().err
    assert f"{source}:5: field ref_answer: missing" in errors
    assert "8 lines are no samples" in errors

    write_lines(source, [sample(1)])
    assert score(source, "--out", out, "--restart") == 0
    assert not Path(f"{out}.rejects.jsonl").exists()


def test_task_type_option_and_data_source_fill_in(files):
    source, out = files
    write_lines(
        source, [{"response": "x", "ref_answer": "x"}, {"response": "x", "ref_answer": "x", "task_type": "ocr"}]
    )
    assert score(source, "--out", out, "--task-type", "Parsing") == 1
    assert [row["decision"] for row in read_lines(out)] == ["scored", "unknown_task"]
    write_lines(source, [{"response": "x", "ref_answer": "x", "data_source": "Parsing"}])
    assert score(source, "--out", out, "--restart") == 0


def test_compressed_input(files, tmp_path):
    _, out = files
    plain = (json.dumps(sample(1)) + "\n").encode()
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(plain))
    zstandard = pytest.importorskip("zstandard")
    (tmp_path / "a.jsonl.zst").write_bytes(zstandard.compress(plain))
    for name in ("a.jsonl.gz", "a.jsonl.zst"):
        assert score(tmp_path / name, "--out", out, "--restart") == 0
        assert len(read_lines(out)) == 1
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(plain * 1000)[:-20])
    assert score(tmp_path / "cut.jsonl.gz", "--out", out, "--restart") == 2


@pytest.mark.parametrize("kept, torn", [(0, b""), (3, b""), (3, b'{"line": 4, "id"'), (10, b"")])
def test_a_second_run_goes_on_where_the_first_stopped(files, kept, torn, capsys):
    source, out = files
    write_lines(source, [sample(index, response="some text" * (index % 3)) for index in range(10)])
    assert score(source, "--out", out) == 0
    complete = out.read_bytes()
    out.write_bytes(b"".join(complete.splitlines(keepends=True)[:kept]) + torn)
    assert score(source, "--out", out, "--in-flight", 2) == 0
    assert out.read_bytes() == complete
    assert (f"{kept} of 10 lines are done" in capsys.readouterr().err) == (kept > 0)


def test_finished_lines_are_not_scored_again(files):
    source, out = files
    write_lines(source, [sample(1), sample(2)])
    assert score(source, "--out", out) == 0
    rows = read_lines(out)
    rows[0]["score"] = 0.25
    write_lines(out, rows)
    assert score(source, "--out", out) == 0
    assert read_lines(out)[0]["score"] == 0.25
    assert score(source, "--out", out, "--restart") == 0
    assert read_lines(out)[0]["score"] == 1.0


def test_results_of_another_input_are_not_continued(files, capsys):
    source, out = files
    write_lines(source, [sample(1), sample(2)])
    assert score(source, "--out", out) == 0
    before = out.read_bytes()
    write_lines(source, [sample(1), sample(2, response="changed")])
    assert score(source, "--out", out) == 2
    assert "line 2 was made from another input" in capsys.readouterr().err
    write_lines(source, [sample(1)])
    assert score(source, "--out", out) == 2
    assert out.read_bytes() == before


def test_retry_scores_failures_again_and_restores_the_order(files):
    source, out = files
    write_lines(source, [sample(1), sample(2), sample(3)])
    assert score(source, "--out", out) == 0
    complete = out.read_bytes()
    rows = read_lines(out)
    rows[1] |= {"score": -1.0, "acc": 0.0, "valid": 0.0, "decision": "judge_unavailable"}
    write_lines(out, rows)
    assert score(source, "--out", out) == 1
    assert score(source, "--out", out, "--retry-dropped") == 0
    assert out.read_bytes() == complete


def test_what_cannot_run_says_so(files, tmp_path, capsys):
    source, out = files
    assert score(tmp_path / "none.jsonl", "--out", out) == 2
    assert "none.jsonl: no such file" in capsys.readouterr().err
    write_lines(source, [sample(1)])
    assert score(source, "--out", source) == 2
    assert "--out is the input file" in capsys.readouterr().err
    out.write_text('{"mine": 1}\n')
    assert score(source, "--out", out) == 2
    assert f"{out}:1: not written by this command" in capsys.readouterr().err
    assert out.read_text() == '{"mine": 1}\n'
    with pytest.raises(SystemExit) as usage:
        score(source, "--out", out, "--workers", 0)
    assert usage.value.code == 2


def test_an_interrupted_run_keeps_what_is_finished(files):
    """A real process, killed as soon as it has written something, then run again."""
    source, out = files
    text = "".join(f"word{index} " for index in range(3000))
    write_lines(source, [sample(index, response=f"{index} {text}", ref_answer=text) for index in range(400)])
    command = [sys.executable, "-m", "reward", "score", str(source), "--out", str(out), "--in-flight", "4"]
    running = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while (not out.exists() or not out.stat().st_size) and running.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    assert out.stat().st_size > 0
    assert subprocess.run(command, cwd=ROOT, capture_output=True).returncode == 0
    assert [row["line"] for row in read_lines(out)] == list(range(1, 401))


def test_workers_give_the_same_file(files, tmp_path):
    source, out = files
    write_lines(source, [sample(index, response="some text" * (index % 5)) for index in range(60)])
    assert score(source, "--out", out) == 0
    command = [sys.executable, "-m", "reward", "score", str(source), "--out", str(tmp_path / "two.jsonl")]
    done = subprocess.run([*command, "--workers", "2", "--in-flight", "7"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "two.jsonl").read_bytes() == out.read_bytes()
    assert "score: 60/60 rows" in done.stderr


def test_judge_lines_are_asked_at_once_between_rule_lines(files, monkeypatch):
    from reward.utils import request_utils

    asked, together = [], asyncio.Event()

    async def judge_async(request):
        asked.append(request)
        if len(asked) == 3:
            together.set()
        await asyncio.wait_for(together.wait(), 30)
        return request_utils.JudgeOutcome(reward=float(request.response), decision="scored", analysis="{}")

    monkeypatch.setattr(request_utils, "judge_async", judge_async)
    source, out = files
    judged = {"ref_answer": "12", "question": "How many?", "source_lang_text": "s", "target_lang": "de"}
    write_lines(
        source,
        [
            sample(1, task_type="VQA", response="0.5", **judged),
            sample(2),
            sample(3, task_type="翻译", response="0.25", **judged),
            sample(4, task_type="VQA", response="1", **judged),
            sample(5, task_type="VQA", response="", **judged),
        ],
    )
    assert score(source, "--out", out) == 0
    assert [(row["id"], row["task"], row["score"]) for row in read_lines(out)] == [
        ("s1", "VQA", 0.5), ("s2", "Parsing", 1.0), ("s3", "Translation", 0.25), ("s4", "VQA", 1.0), ("s5", "VQA", 0.0),
    ]  # fmt: skip
    assert {(request.question, request.source_lang_text, request.target_lang) for request in asked} == {
        ("How many?", "s", "de")
    }


def test_judge_lines_without_a_judge_are_dropped_and_can_be_retried(files, monkeypatch, tmp_path):
    from reward.utils.request_utils import close_judge

    monkeypatch.setenv("JUDGE_ROUTES_FILE", str(tmp_path / "no_routes.json"))
    close_judge()
    source, out = files
    write_lines(source, [sample(1, task_type="VQA"), sample(2)])
    try:
        assert score(source, "--out", out) == 1
    finally:
        close_judge()
    assert [row["decision"] for row in read_lines(out)] == ["judge_unavailable", "scored"]


def test_help_names_the_subcommands_and_the_run_commands(capsys):
    for arguments in (["--help"], ["score", "--help"], ["audit", "--help"], ["explain", "--help"]):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 0
        assert f"python -m reward {arguments[0] if len(arguments) == 2 else 'score'}" in capsys.readouterr().out
