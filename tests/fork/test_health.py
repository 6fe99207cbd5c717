"""Health watch: every condition planted gives its metric, its warning and its stop; a healthy step gives none.

The decisions are tested as pure functions, what feeds them on a real transfer queue. That the metrics are in a run and
raise no false alarm is in tests/e2e/test_demo.py.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import math
import os
import re
import subprocess
from pathlib import Path

os.environ.setdefault("VERL_PLATFORM", "cpu")

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_hyocr import health
from verl_hyocr.health import CONDITIONS, NAMES, NONFINITE, HealthWatch

ROOT = Path(__file__).resolve().parents[2]
EOS = 2

_spec = importlib.util.spec_from_file_location(
    "dropped_samples_parts", Path(__file__).with_name("test_dropped_samples.py")
)
parts = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(parts)


@pytest.fixture(scope="module")
def queue():
    with parts.transfer_queue() as tq:
        yield tq


# ------------------------------------------------------------------------------------------------------------ loops

TEXT = np.arange(100, 1100)


@pytest.mark.parametrize(
    ("answer", "is_loop"),
    [
        pytest.param(TEXT, False, id="no repetition"),
        pytest.param(np.concatenate([TEXT, np.full(64, 7)]), True, id="one token 64 times"),
        pytest.param(np.concatenate([TEXT, np.full(63, 7)]), False, id="one token 63 times"),
        pytest.param(np.full(64, 7), True, id="nothing else"),
        pytest.param(np.full(63, 7), False, id="nothing else, too short"),
        pytest.param(np.concatenate([TEXT, np.tile(TEXT[:30], 3)]), True, id="sentence three times"),
        pytest.param(np.concatenate([TEXT, np.tile(TEXT[:40], 2)]), False, id="sentence twice"),
        pytest.param(np.concatenate([TEXT, np.tile(TEXT[:30], 3), TEXT[:17]]), True, id="cut in the middle"),
        pytest.param(np.concatenate([TEXT, np.tile(TEXT[:256], 3)]), True, id="long paragraph"),
        pytest.param(np.tile(TEXT[:257], 4), False, id="longer than looked for"),
        pytest.param(np.concatenate([np.full(500, 7), [8, 9]]), False, id="table of empty cells, then its end"),
        pytest.param(np.concatenate([TEXT, np.full(64, 7), [EOS]]), True, id="ended by itself"),
        pytest.param(np.concatenate([TEXT, np.full(63, 7), [EOS]]), False, id="the end token is no repetition"),
        pytest.param(np.array([], dtype=np.int64), False, id="empty"),
    ],
)
def test_answers_that_end_in_a_loop(answer, is_loop):
    assert health.loops([answer], EOS).tolist() == [is_loop]
    assert health.loops([TEXT, answer, TEXT], EOS).tolist() == [False, is_loop, False]


def ends_in_loop(tokens: list[int]) -> bool:
    """The definition, word for word."""
    for period in range(1, health.MAX_PERIOD + 1):
        length = max(health.MIN_LOOP, health.MIN_REPEATS * period)
        tail = tokens[-length:]
        if len(tail) == length and all(tail[i] == tail[i + period] for i in range(length - period)):
            return True
    return False


@settings(max_examples=60)
@given(st.data())
def test_loops_follow_their_definition(data):
    unit = data.draw(st.lists(st.integers(3, 6), min_size=1, max_size=40))
    head = data.draw(st.lists(st.integers(3, 6), max_size=80))
    count, more = data.draw(st.integers(1, 40)), data.draw(st.lists(st.integers(3, 6), max_size=2))
    answer = head + unit * count + more
    assert health.loops([np.array(answer)], EOS)[0] == ends_in_loop(answer)


# ----------------------------------------------------------------------------------------------- other statistics


def test_truncated_is_at_the_limit_and_without_an_end():
    found = health.truncated([10, 10, 9, 0], [10, 10, 10, 10], [7, EOS, 7, -1], EOS)
    assert found.tolist() == [True, False, False, False]
    assert health.truncated([10], [10], [EOS], None).tolist() == [True]


def test_groups_with_equal_rewards():
    scores = {"a": [0.5, 0.5], "b": [1.0, 1.0, 1.0], "c": [0.0, 1.0], "d": [0.0, 0.0], "lone": [0.3]}
    assert health.zero_variance(scores) == (0.75, 0.25)
    assert all(math.isnan(share) for share in health.zero_variance({"lone": [1.0]}))


def test_sample_metrics_of_a_step():
    answers = [TEXT[:10], np.full(64, 7), TEXT[:5], np.append(TEXT[:9], EOS)]
    metrics = health.sample_metrics(answers, [10, 64, 10, 10], ["a", "a", "b", "b"], [0.0, 1.0, 1.0, 1.0], EOS)
    assert metrics == {
        "hyocr/health/truncated_share": 0.5,
        "hyocr/health/repetition_share": 0.25,
        "hyocr/health/zero_variance_share": 0.5,
        "hyocr/health/solved_share": 0.5,
    }
    assert health.sample_metrics([], [], [], [], EOS) == {}


def timing(made: float, scored: float) -> dict:
    return {"generate_sequences": made, "tool_calls": 0.0, "compute_score": scored}


def test_waiting_is_what_scoring_adds_to_the_rollout():
    # The slow score belongs to an early answer: it is there before the last answer is.
    hidden = health.reward_metrics([timing(2, 30), timing(40, 0)], {"gen": 40.0, "update_actor": 60.0})
    assert hidden["hyocr/health/reward_time_share"] == 0.0
    assert hidden["hyocr/health/reward_seconds_max"] == 30.0 and hidden["hyocr/health/reward_seconds_mean"] == 15.0
    exposed = health.reward_metrics([timing(2, 3), timing(40, 20)], {"gen": 60.0, "update_actor": 40.0})
    assert exposed["hyocr/health/reward_time_share"] == pytest.approx(0.2)
    later = health.reward_metrics([timing(40, 0)], {"gen": 40.0, "reward": 10.0})
    assert later["hyocr/health/reward_time_share"] == pytest.approx(0.2)
    assert health.reward_metrics([], {"gen": 1.0}) == {} == health.reward_metrics([timing(1, 1)], {})


# ------------------------------------------------------------------------------------------------------- the watch

HEALTHY = {
    "actor/entropy": 0.4,
    "actor/loss": 0.01,
    "actor/pg_loss": 0.01,
    "actor/kl_loss": 0.0,
    "actor/ppo_kl": 0.0,
    "actor/grad_norm": 0.7,
    "rollout_corr/log_ppl_abs_diff": 4e-4,
    "hyocr/health/truncated_share": 0.02,
    "hyocr/health/repetition_share": 0.01,
    "hyocr/health/zero_variance_share": 0.4,
    "hyocr/health/reward_time_share": 0.05,
}
PLANTED = {
    "logprob_gap": ({"rollout_corr/log_ppl_abs_diff": 0.06}, "hyocr/health/logprob_gap", 0.06),
    "entropy": ({"actor/entropy": 0.02}, "hyocr/health/entropy_ratio", 0.05),
    "truncated": ({"hyocr/health/truncated_share": 0.5}, None, None),
    "repetition": ({"hyocr/health/repetition_share": 0.2}, None, None),
    "zero_variance": ({"hyocr/health/zero_variance_share": 0.9}, None, None),
    "reward_time": ({"hyocr/health/reward_time_share": 0.6}, None, None),
}


def feed(watch: HealthWatch, steps: int, **change) -> dict:
    for _ in range(steps):
        out = watch.update({**HEALTHY, **change})
    return out


def settled(**kwargs) -> HealthWatch:
    """A watch whose run is old enough for every condition."""
    watch = HealthWatch(**kwargs)
    feed(watch, 2 * watch.window)
    return watch


def test_a_healthy_run_is_silent():
    watch = HealthWatch(stops=frozenset(NAMES))
    for _ in range(20):
        out = watch.update(HEALTHY)
        assert out["hyocr/health/alarms"] == 0 == out["hyocr/health/nonfinite"]
        assert watch.warnings == [] and watch.stop_reason == "" and not watch.broken
    assert out["hyocr/health/entropy_ratio"] == pytest.approx(1.0)
    assert out["hyocr/health/logprob_gap"] == pytest.approx(4e-4)


def test_every_condition_is_planted():
    assert set(PLANTED) | {NONFINITE} == set(NAMES)


@pytest.mark.parametrize("name", PLANTED)
def test_a_condition_warns_after_its_window_and_stops_when_asked(name):
    change, metric, value = PLANTED[name]
    (condition,) = [one for one in CONDITIONS if one.name == name]
    watch, stopping = settled(), settled(stops=frozenset({name}))
    for step in range(1, 6):
        out = watch.update({**HEALTHY, **change})
        stopping.update({**HEALTHY, **change})
        if metric:
            assert out[metric] == pytest.approx(value)
        assert bool(watch.warnings) == bool(stopping.stop_reason) == (step == 5)
        assert watch.stop_reason == ""
    assert out["hyocr/health/alarms"] == 1
    (warning,) = watch.warnings
    assert warning.startswith(f"{name}: ") and condition.variable in warning and "docs/health.md" in warning
    assert condition.variable in stopping.stop_reason and "HYOCR_HEALTH_STOP" in stopping.stop_reason
    assert not stopping.broken


@pytest.mark.parametrize("name", PLANTED)
def test_one_good_step_ends_an_alarm(name):
    watch = settled(stops=frozenset({name}))
    feed(watch, 4, **PLANTED[name][0])
    feed(watch, 1)
    out = feed(watch, 4, **PLANTED[name][0])
    assert out["hyocr/health/alarms"] == 0 and not watch.warnings and not watch.stop_reason


def test_a_lasting_alarm_is_repeated_once_per_window():
    watch = settled()
    said = []
    for _ in range(15):
        feed(watch, 1, **PLANTED["truncated"][0])
        said.append(len(watch.warnings))
    assert said == [0, 0, 0, 0, 1] * 3


def test_steps_without_a_value_do_not_count():
    watch = settled()
    change = PLANTED["repetition"][0]
    feed(watch, 3, **change)
    # A step whose update was skipped has neither samples nor losses.
    assert watch.update({}) == {"hyocr/health/nonfinite": 0.0, "hyocr/health/alarms": 0.0}
    assert feed(watch, 2, **change)["hyocr/health/alarms"] == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["actor/grad_norm", "actor/loss", "rollout_corr/log_ppl_abs_diff"])
def test_nonfinite_values_warn_at_once_and_stop_after_three_steps(name, value):
    watch = HealthWatch()
    for step in (1, 2, 3):
        out = watch.update({**HEALTHY, name: value})
        assert out["hyocr/health/nonfinite"] == 1 == out["hyocr/health/alarms"]
        assert name in watch.warnings[0]
        assert bool(watch.stop_reason) == (step == 3)
    assert not watch.broken, "the weights are as they were"
    feed(watch, 1)
    feed(watch, 2, **{name: value})
    assert watch.stop_reason == "", "a good step in between"


def test_broken_weights_stop_at_once_and_are_not_saved():
    watch = HealthWatch()
    watch.update({**HEALTHY, "actor/entropy": math.nan, "actor/grad_norm": math.nan})
    assert watch.broken and "RESUME_MODE" in watch.stop_reason
    tolerant = HealthWatch(stops=frozenset())
    tolerant.update({**HEALTHY, "actor/entropy": math.nan})
    assert tolerant.broken and tolerant.stop_reason == "" and tolerant.warnings


def test_padding_rows_do_not_dilute_the_gap():
    """Upstream's mean counts a padding row as an answer without a difference."""
    import torch
    from verl.trainer.ppo.rollout_corr_helper import compute_offpolicy_metrics

    rollout = torch.full((2, 6), -1.0)
    actor, mask = rollout - 0.05, torch.ones(2, 6)
    padded = [torch.cat([one, torch.zeros(2, 6)]) for one in (actor, rollout, mask)]
    gaps = []
    for tensors, padding in (((actor, rollout, mask), 0.0), (padded, 0.5)):
        found = compute_offpolicy_metrics(*tensors)["log_ppl_abs_diff"]
        gaps.append(HealthWatch().update({"rollout_corr/log_ppl_abs_diff": found}, padding)["hyocr/health/logprob_gap"])
    assert gaps == pytest.approx([0.05, 0.05], rel=1e-4)


def test_a_resumed_run_is_compared_with_its_own_start(tmp_path):
    file = tmp_path / "metrics.jsonl"
    lines = [{"step": 0, "data": {"val-core/x": 1.0}}]
    lines += [{"step": step, "data": {"actor/entropy": 0.4}} for step in range(1, 8)]
    lines += [{"step": step, "data": {"actor/entropy": 0.02}} for step in range(8, 20)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 20, "da')
    assert health.first_entropies(str(file), 100) == [0.4] * 7 + [0.02] * 12
    watch = HealthWatch.from_env({"VERL_FILE_LOGGER_PATH": str(file)})
    assert watch.update({"actor/entropy": 0.02})["hyocr/health/entropy_ratio"] == pytest.approx(0.05)
    fresh = HealthWatch.from_env({"VERL_FILE_LOGGER_PATH": str(tmp_path / "missing.jsonl")})
    assert "hyocr/health/entropy_ratio" not in fresh.update({"actor/entropy": 0.02})


# --------------------------------------------------------------------------------------------------------- settings


def test_settings_come_from_the_environment():
    watch = HealthWatch.from_env({"HYOCR_HEALTH_MAX_TRUNCATED": " 0.9 ", "HYOCR_HEALTH_WINDOW": "2"})
    assert (watch.limits["truncated"], watch.window, watch.stops) == (0.9, 2, {NONFINITE})
    assert HealthWatch.from_env({"HYOCR_HEALTH_STOP": "none"}).stops == set()
    assert HealthWatch.from_env({"HYOCR_HEALTH_STOP": "all"}).stops == set(NAMES)
    assert HealthWatch.from_env({"HYOCR_HEALTH_STOP": "entropy, truncated"}).stops == {"entropy", "truncated"}
    assert not HealthWatch.from_env({"HYOCR_HEALTH": "0"}).enabled


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HYOCR_HEALTH", "yes"),
        ("HYOCR_HEALTH_STOP", "everything"),
        ("HYOCR_HEALTH_WINDOW", "0"),
        ("HYOCR_HEALTH_WINDOW", "1.5"),
        ("HYOCR_HEALTH_MAX_TRUNCATED", "1.5"),
        ("HYOCR_HEALTH_MAX_REPETITION", "nan"),
        ("HYOCR_HEALTH_MAX_LOGPROB_GAP", "-1"),
        ("HYOCR_HEALTH_MIN_ENTROPY_RATIO", "low"),
    ],
)
def test_wrong_settings_are_named_before_the_start(variable, value, monkeypatch):
    with pytest.raises(ValueError, match=variable):
        HealthWatch.from_env({variable: value})
    from verl_hyocr import launch_config

    monkeypatch.setenv(variable, value)
    assert any(variable in reason for reason in launch_config.refusals(parts.run_config()))


def test_launcher_and_page_have_the_same_limits():
    output = subprocess.run(
        ["bash", str(ROOT / "train_grpo.sh"), "--help"],
        env={"PATH": os.environ["PATH"], "VERL_PLATFORM": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    knobs = dict(re.findall(r"^  (HYOCR_HEALTH\w*) +(\S+)", output, re.M))
    assert knobs == {
        "HYOCR_HEALTH": "1",
        "HYOCR_HEALTH_STOP": NONFINITE,
        "HYOCR_HEALTH_WINDOW": str(HealthWatch().window),
        **{condition.variable: f"{condition.limit:g}" for condition in CONDITIONS},
    }
    assert all(name in output for name in NAMES)
    rows = [row for row in (ROOT / "docs/health.md").read_text().splitlines() if row.startswith("| ")]
    for condition in CONDITIONS:
        (row,) = [row for row in rows if f"`{condition.name}`" in row]
        assert f"`{condition.variable}={condition.limit:g}`" in row and f"`{condition.metric}`" in row


# -------------------------------------------------------------------------------------------------------- upstream


def test_upstream_reports_what_is_watched():
    from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
    from verl.trainer.ppo import rollout_corr_helper
    from verl.trainer.ppo.v1 import trainer_base

    assert {"generate_sequences", "tool_calls", "compute_score"} <= set(AgentLoopMetrics.model_fields)
    output = AgentLoopOutput(prompt_ids=[1], response_ids=[2], response_mask=[1], metrics=AgentLoopMetrics())
    # As the agent loop does it: only fields that were set reach the queue.
    output.metrics.compute_score = 1.5
    assert output.as_dict()["metrics"]["compute_score"] == 1.5
    assert '"log_ppl_abs_diff"' in inspect.getsource(rollout_corr_helper)
    source = inspect.getsource(trainer_base.PPOTrainer)
    assert '"actor/entropy"' in source and 'metrics.get("actor/grad_norm"' in source
    # Entropy is that of the weights before the update.
    assert source.index("self._compute_old_log_prob(batch") < source.index("self._update_actor(batch")


# --------------------------------------------------------------------------------------------------- in the trainer


def train(monkeypatch, infos: dict, step_metrics: dict, **overrides):
    """One step of the trainer whose forward and backward passes are replaced by the metrics they end with."""
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
    from verl_hyocr.safe_trainer import SafeTrainerSync

    config = {"data__max_response_length": 5, "actor_rollout_ref__rollout__max_model_len": 100} | overrides
    trainer = parts.bare_trainer(parts.trainer_config(**config))
    trainer.health = HealthWatch.from_env()
    trainer.tokenizer = type("Tokenizer", (), {"eos_token_id": EOS})
    trainer.saved = []

    def step_once(self, metrics, timing_raw, sample_batch_size):
        batch, more = self.replay_buffer.sample(self.global_steps, "train", sample_batch_size)
        timing_raw |= {"gen": 5.0, "update_actor": 5.0}
        metrics.update(more | step_metrics)
        return batch

    monkeypatch.setattr(PPOTrainerSync, "_step_once", step_once)
    monkeypatch.setattr(SafeTrainerSync, "_save_checkpoint", lambda self: self.saved.append(self.global_steps))
    trainer._shutdown_dump_executor = lambda: None
    parts.put(infos)
    trainer.on_step_begin()
    metrics: dict = {}
    trainer._step_once(metrics, {}, 2)
    return trainer, metrics


@pytest.fixture
def clean(queue):
    yield queue
    for partition, items in (queue.kv_list() or {}).items():
        if items:
            queue.kv_clear(keys=list(items), partition_id=partition)


def two_groups() -> dict:
    """Answers of 3, 4 and 5 tokens per group; one of them has no score."""
    return parts.group("a", [parts.scored(1.0), parts.invalid(), parts.scored(1.0)]) | parts.group(
        "b", [parts.scored(0.0), parts.scored(1.0), parts.scored(1.0)]
    )


def test_a_step_of_the_trainer_has_the_metrics(clean, monkeypatch):
    trainer, metrics = train(monkeypatch, two_groups(), HEALTHY)
    assert metrics["hyocr/health/truncated_share"] == pytest.approx(2 / 5), "two of five are 5 tokens long"
    assert metrics["hyocr/health/zero_variance_share"] == 0.5 == metrics["hyocr/health/solved_share"]
    assert metrics["hyocr/health/repetition_share"] == 0.0
    # Six answers, the dropped one included, scored in 1, 2 and 3 s per group: the last one 3 s after the last answer.
    assert metrics["hyocr/health/reward_seconds_mean"] == pytest.approx(2.0)
    assert metrics["hyocr/health/reward_time_share"] == pytest.approx(3.0 / 10.0)
    assert metrics["hyocr/health/alarms"] == 0 and trainer.watch.stop_reason == ""


def test_switched_off_there_are_none(clean, monkeypatch):
    monkeypatch.setenv("HYOCR_HEALTH", "0")
    broken = {**HEALTHY, "actor/entropy": math.nan}
    trainer, metrics = train(monkeypatch, two_groups(), broken)
    added = {name for name in metrics if name.startswith("hyocr/health/")} - set(HEALTHY)
    assert added == set() and trainer.watch.stop_reason == ""


def test_the_trainer_warns_saves_and_stops(clean, monkeypatch, caplog):
    monkeypatch.setenv("HYOCR_HEALTH_WINDOW", "1")
    monkeypatch.setenv("HYOCR_HEALTH_STOP", "truncated,zero_variance")
    trainer, metrics = train(monkeypatch, two_groups(), HEALTHY)
    assert metrics["hyocr/health/alarms"] == 1
    assert "step 1, truncated: hyocr/health/truncated_share was 0.4 in the last 1 step(s)" in caplog.text
    trainer.on_step_end()
    assert trainer.saved == [1]
    trainer.global_steps = 2
    with pytest.raises(parts.TrainingStopped, match=r"after step 1: truncated: .*HYOCR_HEALTH_MAX_TRUNCATED=0\.3"):
        trainer.on_step_begin()


def test_the_trainer_does_not_save_broken_weights(clean, monkeypatch, caplog):
    trainer, _ = train(monkeypatch, two_groups(), {**HEALTHY, "actor/entropy": math.nan})
    trainer.on_step_end()
    # What upstream does at a step that is saved anyway.
    trainer._save_checkpoint()
    assert trainer.saved == [] and "step 1 is not saved" in caplog.text
    trainer._trained_step = 1
    assert "step 1 is not saved" in str(trainer._save_and_stop()), "nor when the run is asked to stop"
    trainer.global_steps = 2
    with pytest.raises(parts.TrainingStopped, match="the weights compute NaN"):
        trainer.on_step_begin()


def test_padding_rows_are_not_looked_at(clean, monkeypatch):
    import transfer_queue as tq
    from transfer_queue import KVBatchMeta

    trainer, _ = train(monkeypatch, two_groups(), HEALTHY)
    keys = list(tq.kv_list("train")["train"])
    real = [key for key in keys if key.startswith("b_")]
    padding = [key for key in keys if key.startswith("a_") and key.count("_") == 2]
    tags = [{"prompt_len": 5}] * len(real) + [{"prompt_len": 5, "is_padding": True}] * len(padding)
    batch = KVBatchMeta(partition_id="train", keys=real + padding, tags=tags)
    metrics = dict(HEALTHY)
    trainer._check_health(batch, metrics, {"gen": 1.0})
    assert metrics["hyocr/health/truncated_share"] == pytest.approx(1 / 3)
    assert metrics["hyocr/health/zero_variance_share"] == 0.0
    assert metrics["hyocr/health/logprob_gap"] == pytest.approx(4e-4 * len(keys) / len(real))
