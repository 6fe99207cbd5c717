"""Metrics from outcomes of real judgements, and the guard that stops a run."""

from __future__ import annotations

import asyncio
import json

import pytest

from reward.utils.judge_metrics import FAILURE_KINDS, JudgeFailureError, JudgeFailureGuard, summarise
from reward.utils.judge_types import JudgeTrace
from tests.judge.fault_server import status, text
from tests.judge.samples import vqa


def scored(latency_s=1.0, server="a:1", calls=1, **failures) -> str:
    trace = JudgeTrace(calls=calls, server=server)
    trace.failures.update(failures)
    return trace.outcome("scored", latency_s=latency_s, reward=1.0, verdict=1).analysis


def dropped(decision="judge_unavailable", error="a:1: connection: refused", **failures) -> str:
    trace = JudgeTrace(error=error)
    trace.failures.update(failures)
    return trace.outcome(decision, latency_s=9.0).analysis


def test_nothing_judged_gives_no_metrics():
    assert summarise([]) == {}
    assert summarise(["", "plain text", "{}", "[1]", "null", '{"judge": 3}', '{"ie": {}}', '{"judge": {"calls"']) == {}


def test_summary_of_known_records():
    metrics = summarise(
        [
            *[scored(latency_s=s / 100, server="a:1") for s in range(1, 100)],
            scored(latency_s=1.0, server="b:1", calls=3, http_5xx=1, unparsed=1),
            dropped(connection=4, deadline=1),
            "not a judge sample",
        ]
    )
    assert metrics["hyocr/judge/judgements"] == 101
    assert metrics["hyocr/judge/calls"] == 102 and metrics["hyocr/judge/retries"] == 2
    assert metrics["hyocr/judge/failures/connection"] == 4 and metrics["hyocr/judge/failures/http_5xx"] == 1
    assert metrics["hyocr/judge/failures/auth"] == 0
    assert metrics["hyocr/judge/dropped/judge_unavailable"] == 1 and metrics["hyocr/judge/dropped/judge_unparsed"] == 0
    assert metrics["hyocr/judge/failure_rate"] == pytest.approx(1 / 101)
    assert metrics["hyocr/judge/latency_p50"] == pytest.approx(0.51)
    assert metrics["hyocr/judge/latency_p95"] == pytest.approx(0.96)
    assert metrics["hyocr/judge/server_share/a:1"] == pytest.approx(0.99)
    assert metrics["hyocr/judge/server_share/b:1"] == pytest.approx(0.01)
    assert metrics["hyocr/judge/cached_share"] == 0
    assert all(type(value) is float for value in metrics.values())


async def test_summary_of_a_real_run(make_server, make_client):
    servers = [make_server(), make_server()]
    servers[0].script.extend([status(500), text("?")])
    client = make_client(*servers, cache_size=100)
    outcomes = await asyncio.gather(*(client.judge(vqa(n % 30)) for n in range(60)))
    metrics = summarise(outcome.analysis for outcome in outcomes)
    assert metrics["hyocr/judge/judgements"] == 60 and metrics["hyocr/judge/calls"] == 32
    assert metrics["hyocr/judge/calls"] == sum(server.counts["chat"] for server in servers)
    assert metrics["hyocr/judge/retries"] == 2 and metrics["hyocr/judge/cached_share"] == 0.5
    assert metrics["hyocr/judge/failures/http_5xx"] == metrics["hyocr/judge/failures/unparsed"] == 1
    shares = [metrics[f"hyocr/judge/server_share/{server.address}"] for server in servers]
    assert sum(shares) == pytest.approx(1.0) and min(shares) > 0.2


async def test_every_kind_of_failure_has_its_metric():
    from reward.utils import judge_client as client

    kinds = {getattr(client, name) for name in dir(client) if name.isupper() and isinstance(getattr(client, name), str)}
    decisions_and_sources = {"scored", "judge_unavailable", "judge_unparsed", "cached", "made"}
    assert kinds - decisions_and_sources | {"config"} == set(FAILURE_KINDS)


def test_guard_speaks_when_a_full_window_is_above_the_threshold():
    guard = JudgeFailureGuard(0.5, 10)
    assert guard.update([dropped()] * 9) is None
    message = guard.update([dropped("judge_unparsed", error="b:1: the reply holds no verdict")])
    assert "100.0% of the last 10" in message and "9 judge_unavailable, 1 judge_unparsed" in message
    assert (
        "b:1: the reply holds no verdict" in message and "judge-check" in message and "JUDGE_FAILURE_WINDOW" in message
    )


def test_guard_forgets_what_left_the_window():
    guard = JudgeFailureGuard(0.5, 10)
    assert guard.update([dropped()] * 5 + [scored()] * 5) is None and guard.failure_rate == 0.5
    assert guard.update([scored()]) is None and guard.failure_rate == 0.4
    assert guard.update([dropped()] * 2) is None and guard.failure_rate == 0.4
    assert guard.update([dropped()] * 5) and guard.failure_rate == 0.7


def test_guard_passes_over_other_samples_and_can_be_switched_off():
    assert JudgeFailureGuard(0.0, 2).update(["rule sample", json.dumps({"ie": 1})] * 10) is None
    assert JudgeFailureGuard(1.0, 2).update([dropped()] * 10) is None


def test_guard_raises():
    with pytest.raises(JudgeFailureError, match=r"100\.0%"):
        JudgeFailureGuard(0.1, 2).check([dropped()] * 2)


def test_guard_from_the_environment(monkeypatch):
    monkeypatch.setenv("JUDGE_MAX_FAILURE_RATE", "0.25")
    monkeypatch.setenv("JUDGE_FAILURE_WINDOW", "4")
    guard = JudgeFailureGuard.from_env()
    assert guard.update([scored()] * 3 + [dropped()]) is None
    assert "JUDGE_MAX_FAILURE_RATE=0.25" in guard.update([dropped()])


@pytest.mark.parametrize("threshold, window", [(-0.1, 5), (1.1, 5), (0.5, 0)])
def test_guard_refuses_nonsense(threshold, window):
    with pytest.raises(ValueError):
        JudgeFailureGuard(threshold, window)
