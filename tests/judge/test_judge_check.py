"""judge-check: table, JSON, exit codes; as a module and as a sub-command."""

from __future__ import annotations

import argparse
import json

import pytest

from reward.utils import judge_check
from tests.judge.fault_server import text


def knowing_reply(request) -> str:
    prompt = request["messages"][1]["content"]
    if "Final Score" in prompt:
        return "Same meaning.\nFinal Score: 5/5"
    return f"Compared.\nJudgement: {int('The total is 12.50 euros.' in prompt)}"


def test_all_well(make_server, use_routes, capsys):
    servers = [make_server(reply=knowing_reply), make_server(reply=knowing_reply)]
    use_routes(*servers)
    assert judge_check.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 + 2 * 4
    for server in servers:
        rows = [line for line in lines if line.startswith(server.address)]
        assert [" ok " in row for row in rows] == [True] * 4 and "serves judge-model" in rows[0]
        assert (server.counts["models"], server.counts["chat"]) == (1, 3)


def test_json_report(make_server, use_routes, capsys):
    server = make_server(reply=knowing_reply)
    use_routes(server)
    assert judge_check.main(["--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    (entry,) = report["servers"]
    assert entry["ok"] and entry["serves"] == "judge-model" and entry["url"] == server.url
    assert [item["verdict"] for item in entry["judgements"]] == [1, 0, 5.0]
    assert all(item["latency_s"] >= 0 for item in entry["judgements"])


def test_one_dead_server(make_server, use_routes, capsys):
    good, dead = make_server(reply=knowing_reply), make_server()
    dead.stop()
    use_routes(good, dead)
    assert judge_check.main(["--timeout", "5"]) == 1
    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith(dead.address)]
    assert "FAILED" in row and "connection" in row


@pytest.mark.parametrize("reply, shown", [("Judgement: 1", "WRONG"), ("no idea", "judge_unparsed")])
def test_wrong_and_unreadable_verdicts(make_server, use_routes, capsys, reply, shown):
    server = make_server()
    server.always = text(reply)
    use_routes(server)
    assert judge_check.main([]) == 1
    assert shown in capsys.readouterr().out


def test_settings_that_cannot_work(use_routes, monkeypatch, capsys, tmp_path):
    assert judge_check.main([]) == 2
    assert "lists no server" in capsys.readouterr().err
    assert judge_check.main(["--routes", str(tmp_path / "none.json")]) == 2
    assert "none.json" in capsys.readouterr().err
    monkeypatch.setenv("JUDGE_DEADLINE_S", "soon")
    assert judge_check.main([]) == 2
    assert "JUDGE_DEADLINE_S" in capsys.readouterr().err


def test_options_go_before_the_environment(make_server, use_routes, tmp_path, capsys):
    server = make_server("mine", reply=knowing_reply)
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"mine": [server.address]}))
    assert judge_check.main(["--routes", str(path), "--model", "mine", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == "mine"


@pytest.mark.parametrize("arguments", [["--timeout", "0"], ["--timeout", "x"], ["--nonsense"]])
def test_usage_errors(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        judge_check.main(arguments)
    assert stop.value.code == 2
    capsys.readouterr()


def test_sub_command(make_server, use_routes, capsys):
    use_routes(make_server(reply=knowing_reply))
    parser = argparse.ArgumentParser()
    judge_check.add_parser(parser.add_subparsers())
    args = parser.parse_args(["judge-check", "--json"])
    assert args.run(args) == 0
    assert json.loads(capsys.readouterr().out)["servers"][0]["ok"]
