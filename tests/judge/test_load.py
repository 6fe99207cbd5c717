"""Load with faults: nothing lost, nothing counted twice, nothing left behind. The timed version is in benchmarks/."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from reward.utils.judge_metrics import summarise
from tests.judge.samples import vqa


async def run_load(make_server, make_client, judgements: int, in_flight: int, slots: int):
    healthy, flaky, doomed = make_server(slots=slots), make_server(slots=slots, fail_every=3), make_server(slots=slots)
    for server in (healthy, flaky, doomed):
        server.keep_requests = False
    client = make_client(healthy, flaky, doomed, breaker_cooldown_s=0.2, breaker_max_cooldown_s=1.0, cache_size=64)
    gate = asyncio.Semaphore(in_flight)
    finished: Counter[int] = Counter()

    async def one(number: int):
        async with gate:
            outcome = await client.judge(vqa(number))
        finished[number] += 1
        if sum(finished.values()) == judgements // 2:
            await asyncio.to_thread(doomed.stop)
        return outcome

    outcomes = await asyncio.gather(*(one(number) for number in range(judgements)))
    return client, (healthy, flaky, doomed), finished, outcomes


def check(client, servers, finished, outcomes, judgements):
    assert finished == Counter(range(judgements))
    assert [outcome.decision for outcome in outcomes] == ["scored"] * judgements
    assert [outcome.reward for outcome in outcomes] == [float(number % 2) for number in range(judgements)]
    replied = sum((server.scored for server in servers), Counter())
    assert set(replied) == set(range(judgements))
    metrics = summarise(outcome.analysis for outcome in outcomes)
    assert metrics["hyocr/judge/failures/http_5xx"] == servers[1].counts["status"] > judgements / 20
    assert metrics["hyocr/judge/calls"] >= judgements + servers[1].counts["status"]
    assert all(server.in_flight == 0 for server in client.pool.servers) and client.pool.waiting == 0
    assert len(client.cache) == 64 and client.cache.in_flight == 0


async def test_faulty_servers_under_load(make_server, make_client):
    check(*await run_load(make_server, make_client, 256, 32, 12), 256)


@pytest.mark.slow
async def test_faulty_servers_under_full_load(make_server, make_client):
    check(*await run_load(make_server, make_client, 2048, 128, 48), 2048)
