"""The cache of judgements and the sharing of those under way."""

from __future__ import annotations

import asyncio
import json

import pytest

from reward.utils.judge_cache import AskOnceCache
from tests.judge.fault_server import HANG, SLOW, text
from tests.judge.samples import record, vqa


async def test_identical_judgement_is_asked_once(make_server, make_client):
    server = make_server()
    client = make_client(server, cache_size=10)
    first, second = await client.judge(vqa(1)), await client.judge(vqa(1))
    assert (second.reward, second.decision) == (first.reward, first.decision) and server.counts["chat"] == 1
    assert (record(first)["cached"], record(second)["cached"]) == (False, True)
    assert (record(first)["calls"], record(second)["calls"]) == (1, 0)
    assert json.loads(second.analysis)["verdict"] == 1 and record(second)["server"] == server.address


async def test_every_field_makes_a_judgement_another_one(make_server, make_client):
    server = make_server()
    client = make_client(server, cache_size=10)
    base = vqa(1)
    fields = ("reference", "question", "source_lang_text", "target_lang")
    requests = [base, *(type(base)(**{**base.__dict__, name: "other answer 1"}) for name in fields)]
    for request in requests:
        assert record(await client.judge(request))["cached"] is False
    assert server.counts["chat"] == 5


async def test_judgements_at_the_same_time_share_one_call(make_server, make_client):
    server = make_server()
    server.always = SLOW
    client = make_client(server, cache_size=10)
    tasks = [asyncio.ensure_future(client.judge(vqa(1))) for _ in range(16)]
    await asyncio.to_thread(server.wait_for, "slow", 1)
    server.release()
    outcomes = await asyncio.gather(*tasks)
    assert server.counts["chat"] == 1 and {o.reward for o in outcomes} == {1.0}
    assert sum(record(o)["calls"] for o in outcomes) == 1
    assert sum(record(o)["cached"] for o in outcomes) == 15


async def test_failures_are_shared_but_not_kept(make_server, make_client):
    server = make_server()
    server.always = text("?")
    client = make_client(server, cache_size=10)
    outcomes = await asyncio.gather(*(client.judge(vqa(1)) for _ in range(5)))
    assert {o.decision for o in outcomes} == {"judge_unparsed"} and server.counts["chat"] == 3
    assert sum(record(o)["failures"].get("unparsed", 0) for o in outcomes) == 3
    server.always = None
    assert (await client.judge(vqa(1))).decision == "scored"


async def test_switched_off(make_server, make_client):
    server = make_server()
    client = make_client(server, cache_size=0)
    await asyncio.gather(*(client.judge(vqa(1)) for _ in range(5)))
    assert server.counts["chat"] == 5


async def test_cancelling_one_caller_keeps_the_flight(make_server, make_client):
    server = make_server()
    server.always = SLOW
    client = make_client(server, cache_size=10)
    first = asyncio.ensure_future(client.judge(vqa(1)))
    second = asyncio.ensure_future(client.judge(vqa(1)))
    await asyncio.to_thread(server.wait_for, "slow", 1)
    first.cancel()
    server.release()
    assert (await second).reward == 1.0 and server.counts["chat"] == 1
    assert first.cancelled() or isinstance((await asyncio.gather(first, return_exceptions=True))[0], BaseException)


async def test_cancelling_all_callers_ends_the_call(make_server, make_client):
    server = make_server()
    server.always = HANG
    client = make_client(server, cache_size=10)
    tasks = [asyncio.ensure_future(client.judge(vqa(1))) for _ in range(3)]
    await asyncio.to_thread(server.wait_for, "hang", 1)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    while client.pool.servers[0].in_flight:
        await asyncio.sleep(0)
    assert client.cache.in_flight == 0


async def test_least_recently_used_goes_first():
    cache = AskOnceCache(2, lambda value: True)
    made = []

    def make(key):
        async def value():
            made.append(key)
            return key

        return value

    for key in ("a", "b", "a", "c", "a", "b"):
        assert (await cache.get(key, make(key)))[0] == key
    assert made == ["a", "b", "c", "b"] and len(cache) == 2


async def test_exception_reaches_every_caller_and_is_not_kept():
    cache = AskOnceCache(2, lambda value: True)

    async def broken():
        await asyncio.sleep(0)
        raise KeyError("x")

    results = await asyncio.gather(*(cache.get("k", broken) for _ in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [KeyError] * 3 and cache.in_flight == 0 and len(cache) == 0
    with pytest.raises(KeyError):
        await cache.get("k", broken)
