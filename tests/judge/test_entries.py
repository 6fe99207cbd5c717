"""judge() and judge_async(): one client per process, for threads, loops and forks; settings that are wrong."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import reward_ocr
from reward.utils.request_utils import close_judge, judge, judge_async
from tests.judge.fault_server import HANG, SLOW
from tests.judge.samples import record, vqa

ROOT = Path(__file__).resolve().parents[2]


def test_sync_entry(make_server, use_routes):
    use_routes(make_server())
    outcome = judge(vqa(1))
    assert (outcome.decision, outcome.reward) == ("scored", 1.0)


def test_threads_share_one_client(make_server, use_routes):
    server = make_server()
    use_routes(server)
    with ThreadPoolExecutor(16) as threads:
        outcomes = list(threads.map(lambda n: judge(vqa(n)), range(64)))
    assert [o.reward for o in outcomes] == [float(n % 2) for n in range(64)]
    assert server.counts["models"] == 1
    assert sum(thread.name == "judge-client" for thread in threading.enumerate()) == 1


def test_event_loops_one_after_the_other_share_one_client(make_server, use_routes):
    server = make_server()
    use_routes(server)
    for number in range(3):
        assert asyncio.run(judge_async(vqa(number))).reward == float(number % 2)
    assert server.counts["models"] == 1


async def test_sync_entry_beside_a_running_loop(make_server, use_routes):
    use_routes(make_server())
    assert judge(vqa(1)).reward == 1.0


async def test_hundreds_in_flight_from_one_loop(make_server, use_routes):
    server = make_server()
    use_routes(server, JUDGE_SERVER_CONCURRENCY=300)
    server.always = SLOW
    tasks = [asyncio.ensure_future(judge_async(vqa(n))) for n in range(256)]
    await asyncio.to_thread(server.wait_for, "slow", 256)
    server.release()
    assert [o.reward for o in await asyncio.gather(*tasks)] == [float(n % 2) for n in range(256)]


async def test_a_caller_that_blocks_its_loop_does_not_hold_up_a_judgement(make_server, use_routes):
    server = make_server()
    use_routes(server)
    task = asyncio.ensure_future(judge_async(vqa(1)))
    await asyncio.sleep(0)
    # Blocks this event loop until the judge's own thread has done its work.
    server.wait_for("ok", 1)
    assert (await task).reward == 1.0


async def test_cancelling_the_caller_cancels_the_judgement(make_server, use_routes):
    server = make_server()
    use_routes(server, JUDGE_SERVER_CONCURRENCY=1, JUDGE_CACHE_SIZE=0)
    server.always = HANG
    task = asyncio.ensure_future(judge_async(vqa(1)))
    await asyncio.to_thread(server.wait_for, "hang", 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    server.always = None
    assert (await judge_async(vqa(3))).reward == 1.0


def test_settings_are_read_afresh_after_close(make_server, use_routes, monkeypatch):
    first, second = make_server(), make_server()
    use_routes(first)
    judge(vqa(1))
    close_judge()
    use_routes(second)
    monkeypatch.setenv("JUDGE_TEMPERATURE", "0.7")
    judge(vqa(1))
    assert (first.counts["chat"], second.requests[0]["temperature"]) == (1, 0.7)


def test_close_without_and_twice():
    close_judge()
    close_judge()


def test_replica_added_during_a_run_gets_calls(make_server, use_routes):
    first, second = make_server(), make_server()
    path = Path(use_routes(first))
    judge(vqa(1))
    path.write_text(json.dumps({"judge-model": [second.address]}))
    number = 2
    while not second.counts["chat"]:
        assert judge(vqa(number)).decision == "scored"
        number += 1
    before = first.counts["chat"]
    assert all(judge(vqa(n)).decision == "scored" for n in range(number, number + 5))
    assert first.counts["chat"] == before


@pytest.mark.parametrize(
    "name, value, complaint",
    [
        ("JUDGE_ROUTES_FILE", "/nowhere/routes.json", "/nowhere/routes.json"),
        ("JUDGE_DEADLINE_S", "soon", "JUDGE_DEADLINE_S"),
        ("RM_SYSTEM_JUDGE_MODEL_NAME", "other", "no entry"),
    ],
)
def test_wrong_settings_drop_the_sample_and_say_why(
    make_server, use_routes, monkeypatch, caplog, name, value, complaint
):
    use_routes(make_server())
    monkeypatch.setenv(name, value)
    outcomes = [judge(vqa(n)) for n in range(3)]
    assert {(o.decision, o.reward) for o in outcomes} == {("judge_unavailable", -1.0)}
    assert complaint in record(outcomes[0])["error"] and record(outcomes[0])["failures"] == {"config": 1}
    assert len([r for r in caplog.records if "no judgement is possible" in r.getMessage()]) == 1


def test_unknown_task_raises_in_both_forms(make_server, use_routes):
    from reward.utils.request_utils import JudgeRequest

    use_routes(make_server())
    with pytest.raises(KeyError, match="Poetry"):
        judge(JudgeRequest("Poetry", "a", "b"))
    with pytest.raises(KeyError, match="Poetry"):
        asyncio.run(judge_async(JudgeRequest("Poetry", "a", "b")))


def test_forked_child_judges_with_a_client_of_its_own(make_server, use_routes):
    server = make_server()
    use_routes(server)
    assert judge(vqa(1)).reward == 1.0
    child = os.fork()
    if child == 0:
        reward = -2.0
        try:
            reward = judge(vqa(3)).reward
        finally:
            os._exit(0 if reward == 1.0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert judge(vqa(5)).reward == 1.0
    assert server.counts["models"] == 2


def test_import_is_light_and_exit_is_clean(make_server, use_routes):
    use_routes(make_server())
    code = (
        "import sys; from reward.utils.request_utils import JudgeRequest, judge; assert 'openai' not in sys.modules\n"
        "print(judge(JudgeRequest('VQA', 'answer 1', 'x')).reward)"
    )
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", code], cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0 and done.stdout.strip() == "1.0"
    assert "Traceback" not in done.stderr and "never awaited" not in done.stderr and "unclosed" not in done.stderr


@pytest.mark.parametrize("task, answer, score", [("VQA", "answer 1", 1.0), ("翻译", "answer 3", 0.5)])
def test_the_reward_function_scores_judge_tasks(make_server, use_routes, task, answer, score):
    use_routes(make_server())
    arguments = dict(data_source="d", solution_str=answer, ground_truth="x", extra_info={"task_type": task})
    for result in (reward_ocr.compute_score(**arguments), asyncio.run(reward_ocr.compute_score_async(**arguments))):
        assert (result["score"], result["valid"], result["decision"]) == (score, 1.0, "scored")
        assert json.loads(result["analysis"])["judge"]["server"]


def test_the_reward_function_drops_what_cannot_be_judged(make_server, use_routes):
    server = make_server()
    server.stop()
    use_routes(server, JUDGE_DEADLINE_S=0.2)
    result = reward_ocr.compute_score("VQA", "answer 1", "x", {})
    assert (result["score"], result["valid"], result["decision"]) == (-1.0, 0.0, "judge_unavailable")
    assert json.loads(result["analysis"])["judge"]["failures"]["deadline"] == 1
