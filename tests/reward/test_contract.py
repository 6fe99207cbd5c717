"""What every call returns, whatever the task and whatever went wrong; as verl calls it."""

import asyncio
import json
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reward import ocr_scorer, scorer_threads
from reward.ocr_scorer import DECISIONS, MAX_ANALYSIS_CHARS, RESULT_KEYS, SCORERS, OCRScorer, RuleScorer
from reward_ocr import compute_score, compute_score_async

ROOT = Path(__file__).resolve().parents[2]
RULE_TASKS = ("IE", "Parsing", "Spotting", "Layout", "chart_deplot")


def assert_contract(result):
    assert tuple(result) == RESULT_KEYS
    for key in ("score", "acc", "valid"):
        assert type(result[key]) is float
    for key in ("task", "reward_func", "decision", "analysis"):
        assert type(result[key]) is str
        result[key].encode("utf-8")
    assert result["score"] == -1.0 or 0.0 <= result["score"] <= 1.0
    assert result["valid"] == (0.0 if result["score"] == -1.0 else 1.0)
    assert result["acc"] == (1.0 if result["score"] == 1.0 else 0.0)
    assert result["decision"] in DECISIONS
    assert (result["decision"] == "scored") == (result["valid"] == 1.0)
    assert len(result["analysis"]) <= MAX_ANALYSIS_CHARS
    assert len(result["analysis"].splitlines()) <= 1
    return result


def both(**arguments):
    """The synchronous result, after checking that the asynchronous one is equal."""
    result = assert_contract(compute_score(**arguments))
    again = assert_contract(asyncio.run(compute_score_async(**arguments)))
    assert again == result
    return result


@pytest.fixture
def toy(monkeypatch):
    """Register a function as the scorer of IE; the name it is registered under is resolved at the call."""

    def register(function, **options):
        module = SimpleNamespace(process=function)
        monkeypatch.setitem(sys.modules, "toy_scorer_of_a_test", module)
        monkeypatch.setitem(SCORERS, "IE", RuleScorer("toy_scorer_of_a_test:process", **options))

    return register


def scored(reward, **more):
    return lambda response, ref_answer: {"analysis": "", "is_valid": True, "reward": reward, **more}


ANYTHING = st.one_of(
    st.none(),
    st.text(max_size=20),
    st.integers(),
    st.floats(),
    st.binary(max_size=5),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=2),
    st.just(np.float32(0.5)),
    st.just(np.array(["a", None], dtype=object)),
    st.just(object()),
)


@settings(max_examples=150, deadline=None)
@given(
    ANYTHING, ANYTHING, ANYTHING, ANYTHING | st.dictionaries(st.sampled_from(["task_type", "id", "index"]), ANYTHING)
)
def test_nothing_that_is_passed_makes_it_raise(data_source, solution_str, ground_truth, extra_info):
    arguments = dict(
        data_source=data_source, solution_str=solution_str, ground_truth=ground_truth, extra_info=extra_info
    )
    assert_contract(compute_score(**arguments))


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(RULE_TASKS), st.text(max_size=60), st.text(max_size=60))
def test_every_rule_task_keeps_the_contract_on_any_text(task, response, reference):
    result = assert_contract(
        compute_score(data_source="d", solution_str=response, ground_truth=reference, extra_info={"task_type": task})
    )
    assert result["task"] == task
    assert result["decision"] in ("scored", "empty_reference", "bad_reference")


def test_positional_keyword_and_legacy_names_are_one_call():
    expected = both(
        data_source="set", solution_str='{"a": "1"}', ground_truth='{"a": "1"}', extra_info={"task_type": "IE"}
    )
    assert expected["score"] == 1.0
    assert compute_score("set", '{"a": "1"}', '{"a": "1"}', {"task_type": "IE"}) == expected
    legacy = dict(data_source="set", response='{"a": "1"}', ref_answer='{"a": "1"}', extra_info={"task_type": "IE"})
    assert compute_score(**legacy) == expected
    assert compute_score(**legacy, reward_router_address="h:1", reward_model_tokenizer=object()) == expected


def test_task_type_drives_dispatch_and_data_source_stands_in_when_it_is_empty():
    arguments = dict(solution_str="", ground_truth='{"a": "1"}')
    assert both(data_source="Layout", extra_info={"task_type": "IE"}, **arguments)["task"] == "IE"
    assert both(data_source="信息抽取", extra_info={"task_type": ""}, **arguments)["task"] == "IE"
    assert both(data_source="IE", extra_info=None, **arguments)["task"] == "IE"
    unknown = both(data_source="IE", extra_info={"task_type": "ocr"}, **arguments)
    assert (unknown["decision"], unknown["task"], unknown["reward_func"]) == ("unknown_task", "", "IE")
    assert "'ocr'" in unknown["analysis"]
    assert both(data_source=None, extra_info={}, **arguments)["reward_func"] == "unknown"


def test_a_reference_that_is_no_string_is_its_json_text():
    for reference in ({"a": 1}, {"a": np.int64(1)}):
        result = both(data_source="IE", solution_str='{"a": 1}', ground_truth=reference, extra_info={})
        assert (result["score"], result["decision"]) == (1.0, "scored")
    array = both(
        data_source="IE", solution_str='{"a": 1}', ground_truth=np.array([{"a": 1}], dtype=object), extra_info={}
    )
    assert array["score"] == 1.0


@pytest.mark.parametrize("task", ["IE", "Parsing", "chart_deplot", "Translation", "VQA"])
@pytest.mark.parametrize("empty", ["", " \n", None, float("nan"), "<answer> </answer>", "<think>t</think>"])
def test_an_empty_reference_is_dropped(task, empty):
    result = both(data_source="d", solution_str="x", ground_truth=empty, extra_info={"task_type": task})
    assert (result["score"], result["decision"]) == (-1.0, "empty_reference")


@pytest.mark.parametrize("task", ["Spotting", "Layout"])
@pytest.mark.parametrize("response, score", [("", 1.0), ("没有文字", 1.0), ("No text.", 1.0)])
def test_an_empty_reference_means_an_empty_picture_in_spotting_and_layout(task, response, score):
    result = both(data_source="d", solution_str=response, ground_truth="", extra_info={"task_type": task})
    assert (result["score"], result["decision"]) == (score, "scored")


@pytest.mark.parametrize(
    "task, reference",
    [
        ("IE", '{"a": "1"}'),
        ("Parsing", "a page of text"),
        ("Spotting", "a(1,2),(30,40)"),
        ("Layout", "<hy-meta><layout>table</layout><poly>(1,1),(9,1),(9,9),(1,9)</poly></hy-meta>"),
        ("chart_deplot", "| a | b |\n|---|---|\n| x | 1 |"),
        ("Translation", "a sentence"),
        ("VQA", "12"),
    ],
)
@pytest.mark.parametrize("empty", ["", "  ", None, "<answer></answer>", "<think>t</think>"])
def test_an_empty_response_to_a_usable_reference_is_zero_and_counts(task, reference, empty):
    result = both(data_source="d", solution_str=empty, ground_truth=reference, extra_info={"task_type": task})
    assert (result["score"], result["valid"], result["decision"]) == (0.0, 1.0, "scored")


def test_both_sides_are_reduced_to_their_answer_block():
    result = both(
        data_source="IE",
        solution_str='<think>{"a": "2"}</think> so: <answer>{"a": "1"}</answer>',
        ground_truth='<answer>{"a": "1"}</answer>',
        extra_info={},
    )
    assert result["score"] == 1.0


@pytest.mark.parametrize(
    "returned",
    [
        scored(float("nan")),
        scored(float("inf")),
        scored(1.5),
        scored(-1.0),
        scored(-0.5),
        scored("high"),
        scored(None),
        scored(1.0, decision="bad_reference"),
        scored(1.0, decision="no such decision"),
        lambda response, ref_answer: None,
        lambda response, ref_answer: {},
        lambda response, ref_answer: 1 / 0,
        lambda response, ref_answer: (_ for _ in ()).throw(MemoryError()),
        lambda response: None,
    ],
)
def test_a_fault_in_a_scorer_is_a_dropped_sample_with_its_id_in_the_log(toy, caplog, returned):
    toy(returned)
    with caplog.at_level(logging.WARNING):
        result = assert_contract(compute_score("d", "x", "y", {"task_type": "IE", "id": "page-17", "index": 3}))
    assert (result["score"], result["decision"], result["task"]) == (-1.0, "scorer_error", "IE")
    assert len(caplog.records) == 1
    assert "page-17" in caplog.text
    assert "Traceback" in caplog.text


def test_the_index_names_a_sample_without_id(toy, caplog):
    toy(lambda response, ref_answer: 1 / 0)
    compute_score("d", "x", "y", {"task_type": "IE", "index": 4711})
    assert "sample 4711" in caplog.text


def test_a_scorer_that_cannot_be_imported_costs_its_own_samples_only(monkeypatch):
    monkeypatch.setitem(SCORERS, "IE", RuleScorer("reward.task_scorers.no_such_module:process"))
    result = both(data_source="IE", solution_str="x", ground_truth="y", extra_info={})
    assert result["decision"] == "scorer_error"
    assert "no_such_module" in result["analysis"]
    assert both(data_source="Parsing", solution_str="x", ground_truth="x", extra_info={})["score"] == 1.0


def test_deep_recursion_in_a_scorer_is_a_dropped_sample(toy):
    def recurse(response, ref_answer):
        return recurse(response, ref_answer)

    toy(recurse)
    assert assert_contract(compute_score("IE", "x", "y", {}))["decision"] == "scorer_error"


def test_scores_are_python_floats_and_snap(toy):
    for reward, score in ((np.float32(0.5), 0.5), (True, 1.0), (0, 0.0), (0.99995, 1.0), (1.00001, 1.0), (5e-5, 0.0)):
        toy(scored(reward))
        assert both(data_source="IE", solution_str="x", ground_truth="y", extra_info={})["score"] == score


def test_a_scorer_may_leave_the_decision_out(toy):
    toy(lambda response, ref_answer: {"analysis": "unreadable", "is_valid": False, "reward": -1.0})
    assert both(data_source="IE", solution_str="x", ground_truth="y", extra_info={})["decision"] == "bad_reference"


def test_analysis_is_one_short_line_that_any_writer_can_encode(toy):
    toy(scored(1.0, analysis="a\r\nb\u2028c\ud800" + "x" * 10_000))
    result = both(data_source="IE\udfff", solution_str="x", ground_truth="y", extra_info={"task_type": "IE"})
    assert result["analysis"].startswith("a b c?x")
    assert result["reward_func"] == "IE?"
    toy(scored(1.0, analysis={"fields": ["金额"]}))
    assert json.loads(both(data_source="IE", solution_str="x", ground_truth="y", extra_info={})["analysis"]) == {
        "fields": ["金额"]
    }


def test_rule_scorers_do_not_block_the_event_loop(toy):
    release, loop_was_free = threading.Event(), []

    def wait_for_the_loop(response, ref_answer):
        assert release.wait(30)
        return {"analysis": "", "is_valid": True, "reward": 1.0}

    toy(wait_for_the_loop)

    async def run():
        sample = asyncio.create_task(compute_score_async("IE", "x", "y", {}))
        await asyncio.sleep(0)
        loop_was_free.append(not sample.done())
        release.set()
        return await sample

    assert asyncio.run(run())["score"] == 1.0
    assert loop_was_free == [True]


def test_a_stuck_scorer_is_given_up_and_those_behind_it_are_scored(toy, monkeypatch):
    monkeypatch.setattr(scorer_threads, "TIMEOUT_S", 0.3)
    release = threading.Event()

    def stick(response, ref_answer):
        if response == "stuck":
            release.wait(60)
        return {"analysis": "", "is_valid": True, "reward": 1.0}

    toy(stick)

    async def run():
        answers = ["stuck"] * 8 + ["fine"] * 40
        return await asyncio.gather(*(compute_score_async("IE", answer, "y", {"id": answer}) for answer in answers))

    try:
        results = asyncio.run(run())
    finally:
        release.set()
    assert [assert_contract(result)["decision"] for result in results] == ["timeout"] * 8 + ["scored"] * 40


def test_a_timeout_inside_a_scorer_is_called_so(toy):
    def late(response, ref_answer):
        raise TimeoutError("deadline")

    toy(late)
    assert both(data_source="IE", solution_str="x", ground_truth="y", extra_info={})["decision"] == "timeout"


@pytest.mark.parametrize("reward, decision", [(0.8, "scored"), (-1.0, "judge_unavailable"), (-1.0, "judge_unparsed")])
def test_judge_outcomes_become_results(monkeypatch, reward, decision):
    from reward.utils import request_utils

    asked = []

    def answer(request):
        asked.append(request)
        return request_utils.JudgeOutcome(reward=reward, decision=decision, analysis="{}")

    async def answer_async(request):
        return answer(request)

    monkeypatch.setattr(request_utils, "judge", answer)
    monkeypatch.setattr(request_utils, "judge_async", answer_async)
    extra_info = {"task_type": "翻译", "question": "q", "source_lang_text": "s", "target_lang": "de"}
    result = both(data_source="d", solution_str="<answer>r</answer>", ground_truth="g", extra_info=extra_info)
    assert (result["score"], result["decision"], result["task"]) == (reward, decision, "Translation")
    expected = request_utils.JudgeRequest(
        task="Translation", response="r", reference="g", question="q", source_lang_text="s", target_lang="de"
    )
    assert asked == [expected, expected]


def test_a_fault_in_the_judge_client_is_a_dropped_sample(monkeypatch):
    from reward.utils import request_utils

    def broken(request):
        raise RuntimeError("no route file")

    async def broken_async(request):
        raise RuntimeError("no route file")

    monkeypatch.setattr(request_utils, "judge", broken)
    monkeypatch.setattr(request_utils, "judge_async", broken_async)
    result = both(data_source="VQA", solution_str="12", ground_truth="12", extra_info={})
    assert (result["score"], result["decision"]) == (-1.0, "scorer_error")


@pytest.mark.parametrize("name", ["compute_score", "compute_score_async"])
def test_verl_loads_and_calls_it(name):
    """Through verl's own loader and reward manager, in both forms."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("verl")
    from omegaconf import OmegaConf
    from verl import DataProto
    from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager
    from verl.trainer.ppo.reward import get_custom_reward_fn

    class Tokenizer:
        def decode(self, ids, skip_special_tokens):
            return "".join(chr(i) for i in ids.tolist())

    answer = '{"total": "9.00"}'
    ids = torch.tensor([[ord(char) for char in answer] + [0]])
    function = get_custom_reward_fn(
        OmegaConf.create(
            {
                "reward": {
                    "custom_reward_function": {"path": str(ROOT / "reward_ocr.py"), "name": name, "reward_kwargs": {}}
                }
            }
        )
    )

    async def run():
        manager = NaiveRewardManager(OmegaConf.create({}), Tokenizer(), function, reward_router_address="127.0.0.1:1")
        assert manager.is_async_reward_score == (name == "compute_score_async")
        data = DataProto.from_dict(
            tensors={
                "responses": ids,
                "attention_mask": torch.tensor([[1] * len(answer) + [0]]),
            },
            non_tensors={
                "data_source": np.array(["receipts"], dtype=object),
                "reward_model": np.array([{"style": "rule", "ground_truth": answer}], dtype=object),
                "extra_info": np.array([{"task_type": "IE", "question": "", "index": 0, "id": "r-1"}], dtype=object),
            },
        )
        return await manager.run_single(data)

    result = asyncio.run(run())
    assert result["reward_score"] == 1.0
    assert assert_contract(result["reward_extra_info"])["reward_func"] == "receipts"


def test_verl_groups_its_metrics_by_the_same_keys():
    """A batch with every kind of ending: verl takes the keys of the first sample and averages the numbers."""
    pytest.importorskip("verl")
    from verl.trainer.ppo.metric_utils import process_validation_metrics

    results = [
        compute_score("IE", '{"a": "1"}', '{"a": "1"}', {}),
        compute_score("IE", "x", "", {}),
        compute_score("what", "x", "y", {}),
        compute_score("Parsing", "", "text", {}),
    ]
    infos = {key: [result[key] for result in results] for key in RESULT_KEYS}
    metrics = process_validation_metrics(["d"] * 4, ["u"] * 4, infos)
    assert metrics["d"]["score"]["mean@4"] == pytest.approx((1 - 1 - 1 + 0) / 4)
    assert "analysis" not in metrics["d"]


def test_import_is_light():
    heavy = ("numpy", "numba", "scipy", "shapely", "openai", "torch", "lxml", "rapidfuzz")
    code = f"import sys, reward_ocr; print([name for name in {heavy} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"


def test_it_works_when_loaded_by_path_from_elsewhere(tmp_path):
    code = (
        "import importlib.util as u; spec = u.spec_from_file_location('anything', "
        f"{str(ROOT / 'reward_ocr.py')!r}); m = u.module_from_spec(spec); spec.loader.exec_module(m); "
        "print(m.compute_score('IE', '{}', '{}', {})['score'])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1.0"


def test_results_do_not_depend_on_hash_seed_locale_or_process():
    code = """
import json, reward_ocr
cases = [
    ("IE", '{"b": "2", "a": "1", "c": ""}', '{"a": "1", "b": "3"}'),
    ("Parsing", "Some<table><tr><td>a</td><td>c</td></tr></table>", "Some<table><tr><td>a</td><td>b</td></tr></table>"),
    ("Spotting", "a(0,0),(10,10)b(0,0),(10,10)", "b(0,0),(10,10)a(0,0),(10,10)"),
    ("Layout", "<hy-meta><layout>text</layout><poly>(1,1),(9,9)</poly></hy-meta>",
        "<hy-meta><layout>text</layout><poly>(1,1),(9,8)</poly></hy-meta>"),
    ("chart_deplot", "| | v |\\n|---|---|\\n| a | 1 |\\n| b | 2 |", "| | v |\\n|---|---|\\n| a | 1 |\\n| b | 3 |"),
    ("chart_deplot", "graph TD\\nA-->B\\nB-->C", "graph TD\\nA-->B\\nA-->C"),
]
print(json.dumps([reward_ocr.compute_score(t, r, g, {}) for t, r, g in cases]))
"""
    outputs = set()
    for seed, locale in (("0", "C"), ("1", "C.UTF-8"), ("4242", "POSIX")):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "LC_ALL": locale, "LANG": locale}
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        outputs.add(done.stdout)
    assert len(outputs) == 1
    assert all(result["decision"] == "scored" for result in json.loads(outputs.pop()))


def test_the_dispatcher_reads_what_the_published_kit_passed():
    request = {"response": '{"a": "1"}', "ref_answer": '{"a": "1"}', "task_type": "IE", "question": ""}
    assert OCRScorer().process_scoring(request)["score"] == 1.0
    assert asyncio.run(OCRScorer().process_scoring_async(request))["score"] == 1.0
    assert OCRScorer().process_scoring("no mapping")["decision"] == "scorer_error"


def test_decisions_are_the_documented_ones():
    assert set(DECISIONS) == {
        "scored", "empty_reference", "bad_reference", "unknown_task",
        "judge_unavailable", "judge_unparsed", "scorer_error", "timeout",
    }  # fmt: skip
    assert ocr_scorer.DROPPED == -1.0
