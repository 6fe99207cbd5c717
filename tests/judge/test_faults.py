"""The client against real servers that misbehave: every judgement ends scored or dropped with a reason."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from reward.utils.judge_types import JudgeRequest
from reward.utils.routes import parse_server
from tests.judge.fault_server import DRIBBLE, DROP, HANG, SHORT, SLOW, body, completion, status, text
from tests.judge.samples import record, translation, vqa


@pytest.mark.parametrize("number, reward", [(0, 0.0), (1, 1.0)])
async def test_vqa_verdicts(make_server, make_client, number, reward):
    outcome = await make_client(make_server()).judge(vqa(number))
    assert (outcome.decision, outcome.reward) == ("scored", reward)


@pytest.mark.parametrize("score, reward", [(0, 0.0), (1, 0.1), (2, 0.2), (3, 0.5), (4, 0.8), (5, 1.0)])
async def test_translation_scores_map_to_rewards(make_server, make_client, score, reward):
    outcome = await make_client(make_server()).judge(translation(score))
    assert outcome.decision == "scored" and outcome.reward == pytest.approx(reward)


async def test_analysis_is_a_full_record(make_server, make_client):
    server = make_server()
    outcome = await make_client(server).judge(vqa(1))
    analysis = json.loads(outcome.analysis)
    assert analysis["verdict"] == 1 and analysis["reply_tail"] == "Compared.\nJudgement: 1"
    judge = analysis["judge"]
    assert judge.pop("latency_s") > 0
    assert judge == {
        "decision": "scored",
        "calls": 1,
        "retries": 0,
        "failures": {},
        "server": server.address,
        "cached": False,
    }


async def test_request_carries_the_sampling_parameters(make_server, make_client):
    server = make_server()
    await make_client(server, temperature=0.5, top_p=0.8, max_tokens=77).judge(vqa(1))
    request = server.requests[0]
    assert (request["temperature"], request["top_p"], request["max_tokens"]) == (0.5, 0.8, 77)
    assert request["stream"] is False and request["model"] == "judge-model"


@pytest.mark.parametrize("switch, sent", [("0", False), ("1", True), ("auto", None)])
async def test_thinking_switch(make_server, make_client, switch, sent):
    server = make_server()
    await make_client(server, enable_thinking=switch).judge(vqa(1))
    assert server.requests[0].get("chat_template_kwargs", {}).get("enable_thinking") is sent


async def test_served_model_is_asked_for_once_per_server(make_server, make_client):
    servers = [make_server(), make_server()]
    client = make_client(*servers)
    await asyncio.gather(*(client.judge(vqa(n)) for n in range(40)))
    assert [server.counts["models"] for server in servers] == [1, 1]
    assert sum(server.counts["chat"] for server in servers) == 40


FAILED_CALLS = [
    (DROP, "connection"),
    (SHORT, "connection"),
    (status(500), "http_5xx"),
    (status(503, "loading"), "http_5xx"),
    (status(429, "slow down", retry_after_ms="1"), "rate_limited"),
    (body('{"id": "x", "choices": [{"mess'), "malformed"),
    (body('{"id": "x", "object": "chat.completion", "choices": []}'), "malformed"),
    (body("[1, 2]"), "malformed"),
    (body("null"), "malformed"),
    (body(json.dumps({**completion("x", "m"), "choices": [{"index": 0}]})), "malformed"),
    (body(json.dumps({**completion("x", "m"), "choices": "none"})), "malformed"),
    (status(404, "The model `x` does not exist."), "model_not_found"),
    (status(404, "no such page"), "not_found"),
    (status(401, "bad key"), "auth"),
    (status(400, "top_p is out of range"), "bad_request"),
    (text("I cannot decide."), "unparsed"),
    (text("Judgement: 2"), "unparsed"),
    (text(None), "unparsed"),
    (text("Let me think about", "length"), "truncated"),
    (text("<think>hmm", "length"), "truncated"),
]


@pytest.mark.parametrize("fault, kind", FAILED_CALLS, ids=[f"{kind}-{i}" for i, (_, kind) in enumerate(FAILED_CALLS)])
async def test_a_failed_call_goes_to_the_next_server(make_server, make_client, fault, kind):
    bad, good = make_server(), make_server()
    bad.always = fault
    client = make_client(bad, good, next_server_wait_s=30.0)
    outcomes = await asyncio.gather(*(client.judge(vqa(n)) for n in (1, 3, 5, 7)))
    assert [(o.decision, o.reward) for o in outcomes] == [("scored", 1.0)] * 4
    assert {record(o)["server"] for o in outcomes} == {good.address}
    kinds = set().union(*(record(o)["failures"] for o in outcomes))
    assert kinds == {kind}


@pytest.mark.parametrize("fault", [HANG, DRIBBLE], ids=["hang", "dribble"])
async def test_silent_server_costs_one_try_and_its_connection(make_server, make_client, fault):
    silent, good = make_server(), make_server()
    silent.always = fault
    client = make_client(silent, good, try_timeout_s=0.2)
    outcomes = await asyncio.gather(*(client.judge(vqa(1)) for _ in range(4)))
    assert all(o.decision == "scored" and o.reward == 1.0 for o in outcomes)
    assert silent.counts["chat"] and {kind for o in outcomes for kind in record(o)["failures"]} == {"timeout"}
    assert all(server.in_flight == 0 for server in client.pool.servers)


async def test_slow_first_byte_within_the_timeout_is_waited_for(make_server, make_client):
    server = make_server()
    server.always = SLOW
    task = asyncio.ensure_future(make_client(server).judge(vqa(1)))
    await asyncio.to_thread(server.wait_for, "slow", 1)
    server.release()
    outcome = await task
    assert outcome.decision == "scored" and record(outcome)["calls"] == 1


async def test_refusing_server_is_passed_over(make_server, make_client):
    dead, good = make_server(), make_server()
    dead.stop()
    client = make_client(dead, good)
    outcomes = await asyncio.gather(*(client.judge(vqa(n)) for n in range(30)))
    assert [o.reward for o in outcomes] == [float(n % 2) for n in range(30)]
    assert {kind for o in outcomes for kind in record(o)["failures"]} <= {"connection"}


async def test_server_dies_and_comes_back(make_server, make_client):
    server = make_server()
    client = make_client(server)
    assert (await client.judge(vqa(1))).decision == "scored"
    server.stop()
    waiting = [asyncio.ensure_future(client.judge(vqa(n))) for n in range(20)]
    while not any(s.breaker.state != "closed" for s in client.pool.servers):
        await asyncio.sleep(0)
    server.start()
    assert [o.reward for o in await asyncio.gather(*waiting)] == [float(n % 2) for n in range(20)]


async def test_killed_in_the_middle_of_a_judgement(make_server, make_client):
    first, second = make_server(), make_server()
    first.always = HANG
    client = make_client(first, second)
    tasks = [asyncio.ensure_future(client.judge(vqa(n))) for n in range(6)]
    await asyncio.to_thread(first.wait_for, "hang", 3)
    first.stop()
    outcomes = await asyncio.gather(*tasks)
    assert [o.reward for o in outcomes] == [float(n % 2) for n in range(6)]
    assert sum(record(o)["failures"].get("connection", 0) for o in outcomes) >= 3


async def test_nobody_reachable_is_unavailable_at_the_deadline(make_server, make_client):
    dead = make_server()
    dead.stop()
    outcome = await make_client(dead, deadline_s=0.3).judge(vqa(1))
    assert (outcome.decision, outcome.reward) == ("judge_unavailable", -1.0)
    judge = record(outcome)
    assert judge["failures"]["deadline"] == 1 and judge["failures"]["connection"] >= 1
    assert dead.address in judge["error"] and judge["calls"] == 0 and judge["retries"] == 0


async def test_hanging_server_ends_at_the_deadline(make_server, make_client):
    server = make_server()
    server.always = HANG
    outcome = await make_client(server, deadline_s=0.3).judge(vqa(1))
    assert outcome.decision == "judge_unavailable" and record(outcome)["failures"] == {"deadline": 1}


async def test_unparsed_after_three_tries_each_on_the_next_server(make_server, make_client):
    servers = [make_server(reply=lambda _: "no verdict here") for _ in range(3)]
    outcome = await make_client(*servers).judge(vqa(1))
    assert (outcome.decision, outcome.reward) == ("judge_unparsed", -1.0)
    assert [server.counts["chat"] for server in servers] == [1, 1, 1]
    judge = record(outcome)
    assert (judge["calls"], judge["retries"], judge["failures"]) == (3, 2, {"unparsed": 3})
    assert json.loads(outcome.analysis)["reply_tail"] == "no verdict here"


async def test_lone_server_is_asked_three_times_too(make_server, make_client):
    server = make_server()
    server.script.extend([text("?"), text("Judgement: 7"), None])
    outcome = await make_client(server).judge(vqa(1))
    assert outcome.decision == "scored" and record(outcome)["calls"] == 3


async def test_server_failures_do_not_use_up_the_parse_tries(make_server, make_client):
    server = make_server()
    server.script.extend([status(500), text("?"), DROP, status(500), text("?"), status(502)])
    outcome = await make_client(server).judge(vqa(1))
    assert outcome.decision == "scored"
    assert record(outcome)["failures"] == {"connection": 1, "http_5xx": 3, "unparsed": 2}


async def test_malformed_bodies_everywhere_end_unparsed(make_server, make_client):
    server = make_server()
    server.always = body('{"choices": []}')
    outcome = await make_client(server).judge(vqa(1))
    assert outcome.decision == "judge_unparsed" and record(outcome)["failures"] == {"malformed": 3}


async def test_unparsed_replies_do_not_open_the_breaker(make_server, make_client):
    server = make_server(reply=lambda _: "?")
    client = make_client(server, breaker_failures=2)
    await asyncio.gather(*(client.judge(vqa(n)) for n in range(10)))
    assert client.pool.servers[0].breaker.state == "closed"


async def test_retry_after_pauses_the_server(make_server, make_client):
    busy, good = make_server(), make_server()
    busy.always = status(429, "busy", retry_after="30")
    client = make_client(busy, good)
    for number in range(20):
        assert (await client.judge(vqa(number))).decision == "scored"
    assert busy.counts["chat"] == 1
    assert client.pool.servers[0].breaker.state == "closed"


async def test_retry_after_of_the_only_server_is_waited_for(make_server, make_client):
    server = make_server()
    server.script.append(status(429, "busy", retry_after_ms="50"))
    outcome = await make_client(server).judge(vqa(1))
    judge = record(outcome)
    assert outcome.decision == "scored" and judge["failures"] == {"rate_limited": 1} and judge["latency_s"] >= 0.05


async def test_retry_after_is_capped(make_server, make_client):
    server = make_server()
    server.script.append(status(503, "busy", retry_after="86400"))
    assert (await make_client(server, retry_after_max_s=0.05).judge(vqa(1))).decision == "scored"


async def test_400_from_an_answer_does_not_take_the_server_out(make_server, make_client):
    server = make_server()
    server.always = status(400, "cannot tokenize")
    client = make_client(server, breaker_failures=2)
    outcome = await client.judge(vqa(1))
    assert outcome.decision == "judge_unavailable" and record(outcome)["failures"] == {"bad_request": 3}
    assert client.pool.servers[0].breaker.state == "closed"


async def test_prompt_that_is_too_long_is_shortened_until_it_fits(make_server, make_client):
    server = make_server()
    too_long = status(400, "This model's maximum context length is 4096 tokens. However, you requested 9000 tokens.")
    server.script.extend([too_long, too_long])
    answer = "𒀀" * 5000 + " answer 1"
    outcome = await make_client(server).judge(JudgeRequest("VQA", answer, "a reference"))
    assert outcome.decision == "scored" and outcome.reward == 1.0
    lengths = [request["messages"][1]["content"].count("𒀀") for request in server.requests]
    assert lengths[0] == 5000 and lengths[1] < 2600 and lengths[2] < 1300
    assert record(outcome)["failures"] == {"context_length": 2}


async def test_shortening_halves_the_longest_text(make_server, make_client):
    server = make_server()
    server.script.append(status(400, "This model's maximum context length is 4096 tokens."))
    outcome = await make_client(server).judge(JudgeRequest("VQA", "answer 1", "a reference", question="q" * 4000))
    assert outcome.reward == 1.0
    prompts = [request["messages"][1]["content"] for request in server.requests]
    assert "q" * 4000 in prompts[0]
    assert "2000 characters left out]" in prompts[1] and "answer 1" in prompts[1] and "a reference" in prompts[1]


async def test_prompt_that_never_fits_is_unavailable(make_server, make_client):
    server = make_server()
    server.always = status(413, "too large")
    outcome = await make_client(server).judge(JudgeRequest("VQA", "x" * 9000, "a reference"))
    assert outcome.decision == "judge_unavailable" and server.counts["chat"] < 12


async def test_replaced_model_is_found_again(make_server, make_client):
    server = make_server("judge-model")
    client = make_client(server)
    await client.judge(vqa(1))
    server.model = "other/judge-model"
    outcome = await client.judge(vqa(3))
    assert outcome.decision == "scored" and record(outcome)["failures"] == {"model_not_found": 1}
    assert server.requests[-1]["model"] == "other/judge-model" and server.counts["models"] == 2


@pytest.mark.parametrize(
    "models, picked",
    [
        ([{"id": "org/judge-model"}], "org/judge-model"),
        ([{"id": "other"}, {"id": "judge-model"}], "judge-model"),
        ([{"id": "served", "root": "/data/models/Judge-Model/"}, {"id": "other"}], "served"),
        ([{"id": "renamed"}], "renamed"),
        ([{"id": "renamed"}, {"id": "adapter", "parent": "renamed"}], "renamed"),
    ],
)
async def test_served_name_is_told_from_the_list(make_server, make_client, models, picked):
    server = make_server(models=models)
    assert (await make_client(server).judge(vqa(1))).decision == "scored"
    assert server.requests[0]["model"] == picked


async def test_wrong_model_is_never_asked(make_server, make_client):
    wrong, good = make_server(models=[{"id": "a"}, {"id": "b"}]), make_server()
    client = make_client(wrong, good)
    outcomes = [await client.judge(vqa(n)) for n in range(6)]
    assert all(o.decision == "scored" for o in outcomes) and wrong.counts["chat"] == 0


@pytest.mark.parametrize("raw", ["{}", '{"data": [{"name": "x"}]}', "[]", '{"data": 3}', '{"da'])
async def test_unreadable_model_list_is_a_failure_of_the_server(make_server, make_client, raw):
    bad, good = make_server(), make_server()
    bad.models_fault = body(raw)
    client = make_client(bad, good)
    outcomes = [await client.judge(vqa(n)) for n in range(4)]
    assert all(o.decision == "scored" for o in outcomes) and bad.counts["chat"] == 0


async def test_fixed_model_name_is_not_asked_for(make_server, make_client):
    server = make_server(models=[{"id": "a"}, {"id": "b"}])
    spec = parse_server({"url": server.address, "model": "b"}, "test")
    assert (await make_client(spec).judge(vqa(1))).decision == "scored"
    assert server.counts["models"] == 0 and server.requests[0]["model"] == "b"


async def test_api_key_comes_from_the_named_variable(make_server, make_client, monkeypatch):
    monkeypatch.setenv("SOME_JUDGE_KEY", "s3cret")
    server = make_server(api_key="s3cret")
    spec = parse_server({"url": server.url, "api_key_env": "SOME_JUDGE_KEY"}, "test")
    assert (await make_client(spec).judge(vqa(1))).decision == "scored"


async def test_wrong_key_is_told_apart_and_not_hammered(make_server, make_client):
    server, good = make_server(api_key="s3cret"), make_server()
    client = make_client(server, good, breaker_cooldown_s=60.0, breaker_max_cooldown_s=60.0)
    outcomes = [await client.judge(vqa(n)) for n in range(8)]
    assert all(o.decision == "scored" for o in outcomes) and server.counts["models"] == 1
    assert {kind for o in outcomes for kind in record(o)["failures"]} == {"auth"}


async def test_concurrency_limit_per_server_holds(make_server, make_client):
    server = make_server()
    server.always = SLOW
    client = make_client(server, server_concurrency=5)
    tasks = [asyncio.ensure_future(client.judge(vqa(n))) for n in range(15)]
    for done in (5, 10, 15):
        await asyncio.to_thread(server.wait_for, "slow", done)
        assert server.counts["chat"] == done and client.pool.servers[0].in_flight == 5
        server.release()
    assert all(o.decision == "scored" for o in await asyncio.gather(*tasks))


async def test_slow_server_does_not_hold_all_calls(make_server, make_client):
    slow, quick = make_server(), make_server()
    slow.always = SLOW
    client = make_client(slow, quick)
    gate = asyncio.Semaphore(12)

    async def judge(number: int):
        async with gate:
            return await client.judge(vqa(number))

    tasks = [asyncio.ensure_future(judge(n)) for n in range(60)]
    await asyncio.to_thread(quick.wait_for, "ok", 40)
    assert slow.counts["chat"] <= 9
    slow.always = None
    slow.release()
    assert [o.reward for o in await asyncio.gather(*tasks)] == [float(n % 2) for n in range(60)]


async def test_cancelled_judgement_gives_its_slot_back(make_server, make_client):
    server = make_server()
    server.always = HANG
    client = make_client(server, server_concurrency=2)
    tasks = [asyncio.ensure_future(client.judge(vqa(n))) for n in range(4)]
    await asyncio.to_thread(server.wait_for, "hang", 2)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert client.pool.servers[0].in_flight == 0 and client.pool.waiting == 0
    server.always = None
    assert (await client.judge(vqa(1))).decision == "scored"


async def test_no_request_is_logged_at_info(make_server, make_client, caplog):
    caplog.set_level(logging.INFO)
    client = make_client(make_server())
    await asyncio.gather(*(client.judge(vqa(n)) for n in range(5)))
    assert not caplog.records


async def test_hostile_reply_text_stays_json(make_server, make_client):
    server = make_server()
    server.always = text('"\\\ud800\x00' * 3000)
    outcome = await make_client(server).judge(vqa(1))
    assert outcome.decision == "judge_unparsed" and len(outcome.analysis) < 4000
    assert json.loads(outcome.analysis)["verdict"] is None
    outcome.analysis.encode("utf-8")


async def test_unknown_task_is_an_error_of_the_caller(make_server, make_client):
    with pytest.raises(KeyError, match="Poetry"):
        await make_client(make_server()).judge(JudgeRequest("Poetry", "a", "b"))
