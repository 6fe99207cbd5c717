"""D1: samples without a score take no part in training.

The decisions are tested as pure functions, the replay buffer and the trainer on a real transfer queue, the gradients in a fresh
process (``python tests/fork/test_dropped_samples.py D1 MODEL_DIR``, also with the step switched off), the whole in one run of
train_grpo.sh.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import zlib
from collections import Counter
from pathlib import Path

os.environ.setdefault("VERL_PLATFORM", "cpu")

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_hyocr import drop_policy
from verl_hyocr.drop_policy import DropGuard, DropPlan, TrainingStopped

ROOT = Path(__file__).resolve().parents[2]


def scored(score: float = 1.0, **more) -> dict:
    """A reward function's result with the kit's keys."""
    result = {
        "score": score,
        "acc": float(score == 1.0),
        "valid": 1.0,
        "task": "Parsing",
        "decision": "scored",
        "analysis": "",
    }
    return result | more


def invalid(decision: str = "judge_unavailable", task: str = "VQA", **more) -> dict:
    return scored(-1.0, valid=0.0, task=task, decision=decision) | more


def group(uid: str, results: list[dict]) -> dict[str, dict]:
    return {f"{uid}_{session}_0": result for session, result in enumerate(results)}


# ------------------------------------------------------------------------------------------------------- decisions


def test_invalid_samples_are_dropped_and_their_siblings_stay():
    plan = drop_policy.plan(group("a", [scored(), invalid(), scored(0.0)]) | group("b", [scored(), scored()]))
    assert plan.dropped_keys == {"a_1_0"}
    assert (plan.samples, plan.rate, plan.lost_groups) == (5, 0.2, frozenset())
    assert plan.metrics() == {
        "hyocr/dropped/total": 1.0,
        "hyocr/dropped/rate": 0.2,
        "hyocr/dropped/groups": 0.0,
        "hyocr/dropped/VQA/judge_unavailable": 1.0,
    }


def test_a_group_left_with_one_sample_goes_whole():
    plan = drop_policy.plan(group("a", [scored(), invalid(), invalid("bad_reference", "IE")]))
    assert plan.dropped_keys == {"a_0_0", "a_1_0", "a_2_0"}
    assert plan.lost_groups == {"a"}
    assert plan.reasons() == {"VQA/judge_unavailable": 1, "IE/bad_reference": 1, "Parsing/group_too_small": 1}


def test_a_group_that_lost_nothing_stays_whatever_its_size():
    plan = drop_policy.plan(group("a", [scored()]) | group("b", [invalid(), scored(), scored()]))
    assert plan.dropped_keys == {"b_0_0"}


@pytest.mark.parametrize(
    "info", [{}, {"acc": 0.0}, {"score": -1.0}, {"valid": None}, {"valid": "no"}, {"valid": float("nan")}]
)
def test_results_that_do_not_say_invalid_are_kept(info):
    plan = drop_policy.plan(group("a", [info, info]))
    assert not plan.dropped


def test_other_reward_functions_get_no_metrics():
    assert drop_policy.plan(group("a", [{"acc": 1.0}, {"score": -1.0}])).metrics() == {}
    assert drop_policy.plan({}).metrics() == {}


def test_a_session_of_several_rows_follows_its_last_one():
    rows = {"a_0_0": scored(), "a_0_10": invalid(), "a_0_9": scored(), "a_1_0": scored(), "a_2_0": scored()}
    plan = drop_policy.plan(rows)
    assert plan.samples == 3
    assert [sample.keys for sample in plan.dropped] == [("a_0_0", "a_0_9", "a_0_10")]


def test_metric_names_hold_no_separators():
    plan = drop_policy.plan(group("a", [invalid("went wrong: a/b", ""), scored(), scored()]))
    assert "hyocr/dropped/unknown/went_wrong_a_b" in plan.metrics()


def test_analyses_are_those_of_judged_samples_dropped_or_not():
    record = json.dumps({"judge": {"decision": "scored"}})
    plan = drop_policy.plan(group("a", [scored(analysis=record), invalid(analysis=record), scored(analysis="text")]))
    assert plan.analyses == (record, record)
    assert drop_policy.plan(group("a", [{"analysis": record}])).analyses == ()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=1, max_size=6))
def test_what_is_kept_is_scored_and_comparable(groups):
    infos = {}
    for number, flags in enumerate(groups):
        infos |= group(f"g{number}", [scored() if valid else invalid() for valid in flags])
    plan = drop_policy.plan(infos)
    kept = infos.keys() - plan.dropped_keys
    assert all(infos[key]["valid"] for key in kept)
    sizes = Counter(key.split("_")[0] for key in kept)
    for number, flags in enumerate(groups):
        valid = sum(flags)
        expected = valid if valid == len(flags) or valid >= 2 else 0
        assert sizes[f"g{number}"] == expected
    assert plan.rate == pytest.approx(1 - len(kept) / len(infos))
    assert sum(plan.reasons().values()) == len(plan.dropped) == len(infos) - len(kept)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 6), st.data())
def test_padding_is_spread_over_mini_batches(ranks, parts, rows, data):
    size = parts * rows
    flags = data.draw(st.lists(st.booleans(), min_size=ranks * size, max_size=ranks * size))
    order = drop_policy.spread_padding(flags, ranks, parts)
    for rank in range(ranks):
        mine = order[rank * size : (rank + 1) * size]
        assert sorted(mine) == list(range(rank * size, (rank + 1) * size))
        counts = [sum(flags[row] for row in mine[part * rows : (part + 1) * rows]) for part in range(parts)]
        assert max(counts) - min(counts) <= 1


# ----------------------------------------------------------------------------------------------------------- guard


def steps(*rates: float) -> list[DropPlan]:
    return [
        drop_policy.plan(group("a", [invalid()] * int(10 * rate) + [scored()] * (10 - int(10 * rate))))
        for rate in rates
    ]


@pytest.mark.parametrize(
    ("rates", "stops"),
    [
        ((0.6, 0.6, 0.6), True),
        ((0.6, 0.5, 0.6), False),
        ((0.6, 0.6), False),
        ((0.0, 0.6, 0.6, 0.6), True),
        ((1, 1, 1), True),
    ],
)
def test_guard_stops_when_every_step_of_the_window_is_above(rates, stops):
    guard = DropGuard(max_rate=0.5, window=3)
    reason = [guard.update(step) for step in steps(*rates)][-1]
    assert (reason is not None) == stops
    if stops:
        assert "HYOCR_MAX_DROP_RATE=0.5" in reason and "VQA/judge_unavailable" in reason


def test_guard_is_off_at_one():
    guard = DropGuard(max_rate=1.0, window=1)
    assert guard.update(steps(1)[0]) is None


def test_guard_reads_its_environment():
    assert DropGuard.from_env({}) == DropGuard(0.5, 5)
    assert DropGuard.from_env({"HYOCR_MAX_DROP_RATE": " 0.2 ", "HYOCR_DROP_WINDOW": ""}) == DropGuard(0.2, 5)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HYOCR_MAX_DROP_RATE", "half"),
        ("HYOCR_MAX_DROP_RATE", "1.5"),
        ("HYOCR_MAX_DROP_RATE", "nan"),
        ("HYOCR_DROP_WINDOW", "0"),
        ("HYOCR_DROP_WINDOW", "2.5"),
    ],
)
def test_guard_names_a_wrong_variable(variable, value):
    with pytest.raises(ValueError, match=variable):
        DropGuard.from_env({variable: value})


# ---------------------------------------------------------------------------------------- on a real transfer queue


@contextlib.contextmanager
def transfer_queue():
    """verl's transfer queue on a small Ray of its own."""
    import ray
    import transfer_queue as tq
    from omegaconf import OmegaConf

    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray.init(
        address="local",
        num_cpus=3,
        num_gpus=0,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=100 * 2**20,
    )
    try:
        tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
        yield tq
    finally:
        tq.close()
        ray.shutdown()


@pytest.fixture(scope="module")
def shared_queue():
    with transfer_queue() as tq:
        yield tq


@pytest.fixture
def queue(shared_queue):
    yield shared_queue
    for partition, items in (shared_queue.kv_list() or {}).items():
        if items:
            shared_queue.kv_clear(keys=list(items), partition_id=partition)


def row(key: str, info: dict) -> dict:
    """What an agent loop writes for one answer; its lengths and tokens follow from the key."""
    import torch

    uid, session, index = drop_policy.split_key(key)
    generator = torch.Generator().manual_seed(zlib.crc32(key.encode()))
    prompt, length = 5 + ord(uid[0]) % 3, 3 + int(session) + index
    tokens = torch.randint(10, 100, (prompt + length,), generator=generator)
    rewards = torch.zeros(length)
    rewards[-1] = info.get("score", 0.0)
    return {
        "uid": uid,
        "prompts": tokens[:prompt],
        "responses": tokens[prompt:],
        "input_ids": tokens,
        "position_ids": torch.arange(prompt + length).expand(4, -1).clone(),
        "response_mask": torch.ones(length, dtype=torch.int64),
        "loss_mask": torch.ones(length, dtype=torch.int64),
        "rollout_log_probs": -torch.rand(length, generator=generator),
        "rm_scores": rewards,
        "multi_modal_inputs": {},
        "num_turns": 2,
        "metrics": {"generate_sequences": 2.0, "tool_calls": 0.0, "compute_score": 1.0 + int(session)},
        "extra_fields": {"reward_extra_info": info},
    }


def put(infos: dict[str, dict], partition: str = "train", status: str = "finished", step: int = 1) -> None:
    """Write answers and their prompts as the rollout does."""
    import transfer_queue as tq
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    rows = [row(key, info) for key, info in infos.items()]
    tags = [
        {
            "status": "success",
            "prompt_len": len(one["prompts"]),
            "response_len": len(one["responses"]),
            "seq_len": len(one["input_ids"]),
            "global_steps": step,
            "min_global_steps": step - 1,
            "max_global_steps": step - 1,
        }
        for one in rows
    ]
    tq.kv_batch_put(keys=list(infos), partition_id=partition, fields=list_of_dict_to_tensordict(rows), tags=tags)
    uids = sorted({drop_policy.split_key(key)[0] for key in infos})
    prompts = [{"is_prompt": True, "status": status, "global_steps": step} for _ in uids]
    tq.kv_batch_put(keys=uids, partition_id=partition, tags=prompts)


def buffer(refill=None, **features):
    from verl_hyocr.sampler import HyocrReplayBuffer

    return HyocrReplayBuffer(
        trainer_mode="sync",
        trainer_config={},
        max_off_policy_threshold=8,
        max_off_policy_strategy="drop",
        sampler_kwargs=features,
        poll_interval=0.01,
        refill_fn=refill or (lambda count: pytest.fail("nothing to refill")),
    )


def test_sampled_batch_holds_scored_samples_only(queue):
    put(group("a", [scored(), invalid(), scored(0.0)]) | group("b", [invalid(), scored()]))
    sampler = buffer()
    batch, metrics = sampler.sample(1, "train", 2)
    assert sorted(batch.keys) == ["a_0_0", "a_2_0"]
    assert len(batch.tags) == 2 and all(tag["seq_len"] for tag in batch.tags)
    assert metrics["hyocr/dropped/rate"] == pytest.approx(3 / 5) and metrics["hyocr/dropped/groups"] == 1
    assert not sampler.left_nothing
    # A log of the step can still show them, and the next step begins without them.
    keys = sorted(key for sample in sampler.dropped for key in sample.keys)
    assert keys == ["a_1_0", "b_0_0", "b_1_0"]
    rewards = queue.kv_batch_get(keys=keys, partition_id="train", select_fields=["rm_scores"])["rm_scores"]
    assert [float(one.sum()) for one in rewards] == [-1.0, -1.0, 1.0]
    sampler.clear_dropped()
    assert sorted(queue.kv_list("train")["train"]) == ["a_0_0", "a_2_0"]


def test_next_sample_clears_what_nobody_cleared(queue):
    sampler = buffer()
    for step in (1, 2):
        put(group(f"s{step}", [scored(), invalid(), scored()]), step=step)
        batch, _ = sampler.sample(step, "train", 1)
        queue.kv_clear(keys=batch.keys, partition_id="train")
    assert sorted(queue.kv_list("train")["train"]) == ["s2_1_0"]


def test_validation_is_left_alone(queue):
    put(group("v", [invalid(), invalid()]), partition="val")
    batch, metrics = buffer().sample(1, "val", 1)
    assert sorted(batch.keys) == ["v_0_0", "v_1_0"] and metrics == {}


def test_other_reward_functions_keep_their_batch(queue):
    put(group("a", [{"score": -1.0, "acc": 0.0}, {"score": 1.0, "acc": 1.0}, {}]))
    batch, metrics = buffer().sample(1, "train", 1)
    assert sorted(batch.keys) == ["a_0_0", "a_1_0", "a_2_0"] and metrics == {}


def test_group_filter_judges_scored_samples_only(queue):
    """algorithm.filter_groups keeps working: groups without signal among their scored samples are replaced."""
    put(
        group("same", [scored(), scored(), invalid()])
        | group("good", [scored(), scored(0.0), invalid()])
        | group("lone", [scored(), invalid(), invalid()])
    )
    refilled = []

    def refill(count: int) -> None:
        refilled.append(count)
        put(group(f"new{len(refilled)}", [scored(), scored(0.0), scored(0.5)]))

    sampler = buffer(
        refill, filter_groups_metric="score", train_batch_size=2, gen_batch_size=1, max_inflight_gen_batches=1
    )
    batch, metrics = sampler.sample(1, "train", 2)
    assert sorted(batch.keys) == ["good_0_0", "good_1_0", "new1_0_0", "new1_1_0", "new1_2_0"]
    assert metrics["training/filter_groups/evicted_samples"] == 2
    assert (metrics["hyocr/dropped/total"], metrics["hyocr/dropped/rate"]) == (4, pytest.approx(4 / 9))
    assert metrics["hyocr/dropped/Parsing/group_too_small"] == 1
    assert sorted(queue.kv_list("train")["train"]) == sorted([*batch.keys, "good_2_0"])


def test_group_filter_does_not_refill_for_ever(queue, monkeypatch):
    monkeypatch.setenv("HYOCR_DROP_WINDOW", "2")
    put(group("a", [invalid(), invalid()]))
    number = iter(range(100))

    def refill(count: int) -> None:
        for _ in range(count):
            put(group(f"r{next(number)}", [invalid(), scored()]))

    sampler = buffer(refill, filter_groups_metric="score", train_batch_size=1, gen_batch_size=1)
    with pytest.raises(TrainingStopped, match=r"3 prompts .*VQA/judge_unavailable"):
        sampler.sample(1, "train", 1)


def test_failed_groups_are_refilled_as_upstream_does(queue):
    import transfer_queue as tq

    tq.kv_batch_put(
        keys=["dead"], partition_id="train", tags=[{"is_prompt": True, "status": "failure", "global_steps": 1}]
    )
    sampler = buffer(
        lambda count: put(group("new", [scored(), scored(0.0)])), sync_refill_failed_groups=True, gen_batch_size=1
    )
    batch, metrics = sampler.sample(1, "train", 1)
    assert sorted(batch.keys) == ["new_0_0", "new_1_0"] and metrics["training/rollout_failure/evicted_samples"] == 1


# ----------------------------------------------------------------------------------------------------- the trainer


class Replicas:
    """Stands for the checkpoint engine, whose part in a step is to put the rollout engines to sleep and wake them."""

    def __init__(self):
        self.calls = []

    def sleep_replicas(self):
        self.calls.append("sleep")

    def update_weights(self, step):
        self.calls.append(f"update {step}")


def trainer_config(**overrides):
    from omegaconf import OmegaConf

    config = OmegaConf.create(
        {
            "algorithm": {"filter_groups": {"enable": False}},
            "data": {"train_batch_size": 2, "gen_batch_size": None},
            "reward": {
                "reward_model": {"enable": False, "enable_resource_pool": False},
                "custom_reward_function": {"path": str(ROOT / "reward_ocr.py")},
            },
            "actor_rollout_ref": {"rollout": {"temperature": 1.0, "n": 3}, "actor": {"ppo_mini_batch_size": 2}},
            "trainer": {
                "save_freq": 10,
                "v1": {
                    "trainer_mode": "sync",
                    "sync": {},
                    "sampler": {
                        "max_off_policy_threshold": 8,
                        "max_off_policy_strategy": "drop",
                        "sync_refill_failed_groups": False,
                        "custom_sampler": {"path": "pkg://verl_hyocr.sampler", "name": "HyocrReplayBuffer"},
                        "sampler_kwargs": {},
                    },
                },
            },
        }
    )
    for key, value in overrides.items():
        OmegaConf.update(config, key.replace("__", "."), value, force_add=True)
    return config


def bare_trainer(config=None, max_rate: float = 0.5, window: int = 2):
    """The trainer without its workers and rollout engines."""
    from verl_hyocr.health import HealthWatch
    from verl_hyocr.trainer import HyocrTrainerSync, ScoreWatch

    trainer = object.__new__(HyocrTrainerSync)
    trainer.health = HealthWatch()
    trainer.config = config if config is not None else trainer_config()
    trainer.trainer_mode, trainer.global_steps, trainer.total_training_steps = "sync", 1, 100
    trainer.curr_step_profile, trainer.timing_raw = False, {}
    trainer.checkpoint_manager = Replicas()
    trainer.train_dataloader = type("Loader", (), {"state_dict": staticmethod(dict)})
    trainer.watch = ScoreWatch(trainer.config.reward.custom_reward_function.path, DropGuard(max_rate, window))
    trainer.replay_buffer = trainer._build_replay_buffer()
    return trainer


def test_an_empty_batch_skips_the_update(queue, caplog):
    put(group("a", [invalid(), invalid(), scored()]) | group("b", [invalid()] * 3))
    trainer = bare_trainer()
    metrics = {}
    batch = trainer.step_batch = trainer._step_once(metrics, {}, 2)
    assert trainer.checkpoint_manager.calls == ["sleep"]
    assert (metrics["hyocr/dropped/rate"], metrics["hyocr/dropped/skipped_update"]) == (1.0, 1.0)
    assert "the update is skipped (5 VQA/judge_unavailable" in caplog.text
    trainer._compute_metrics(batch, metrics, {"step": 1.5}, global_steps=1, epoch=0)
    assert metrics["training/global_step"] == 1 and metrics["timing_s/step"] == 1.5
    # As upstream ends a step; it cannot clear an empty list.
    queue.kv_clear(keys=batch.keys, partition_id=batch.partition_id)
    assert not (queue.kv_list("train") or {}).get("train")
    trainer.global_steps = 2
    trainer.on_step_begin()


def test_padding_does_not_gather_in_the_last_mini_batch(queue):
    infos = {}
    for uid in "abcd":
        infos |= group(uid, [scored(), scored(0.0), invalid()])
    put(infos)
    trainer = bare_trainer(trainer_config(actor_rollout_ref__actor__ppo_mini_batch_size=1, trainer__critic_warmup=0))
    trainer.use_critic, trainer.tokenizer = False, type("Tokenizer", (), {"eos_token_id": 2})
    trainer.actor_rollout_wg = type("Workers", (), {"_dispatch_info": {"actor": [0]}})
    trainer.replay_buffer.step_plan = DropPlan()
    batch, _ = trainer.replay_buffer.sample(1, "train", 4)
    batch = trainer._balance_batch(batch, metrics={})
    padding = [tag.get("is_padding", False) for tag in batch.tags]
    assert [sum(padding[start : start + 3]) for start in (0, 3, 6)] == [0, 0, 1]
    rewards = queue.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=["rm_scores"])["rm_scores"]
    assert [float(one.sum()) for one, pad in zip(rewards, padding) if pad] == [0.0]


def test_trainer_gives_the_buffer_upstreams_filter_settings():
    config = trainer_config(
        algorithm__filter_groups={
            "enable": True,
            "metric": "acc",
            "max_inflight_gen_batches": 3,
            "max_num_gen_batches": 0,
        }
    )
    sampler = bare_trainer(config).replay_buffer
    assert (sampler.filter_groups_metric, sampler.train_batch_size, sampler.gen_batch_size) == ("acc", 2, 1)
    assert sampler.max_inflight_gen_batches == 3 and sampler.refill_fn is not None
    plain = bare_trainer().replay_buffer
    assert (plain.filter_groups_metric, plain.gen_batch_size) == (None, 2)


def test_trainer_refuses_another_sampler():
    from verl_hyocr.trainer import HyocrTrainerSync

    config = trainer_config(trainer__v1__sampler__custom_sampler={"path": None, "name": None})
    trainer = object.__new__(HyocrTrainerSync)
    with pytest.raises(TypeError, match=r"pkg://verl_hyocr\.sampler"):
        trainer.__init__(_complete_for_base_class(config))


def _complete_for_base_class(config):
    """What upstream's constructor reads besides."""
    from omegaconf import OmegaConf

    more = {
        "algorithm": {"use_kl_in_reward": False, "adv_estimator": "grpo"},
        "actor_rollout_ref": {"model": {}, "actor": {"use_kl_loss": False}},
        "critic": {"enable": False},
        "distillation": None,
        "trainer": {"checkpoint_callback": None},
    }
    return OmegaConf.merge(config, more)


def test_validation_means_leave_out_what_has_no_score():
    infos = {
        "reward": [1.0, -1.0, 0.5, -1.0],
        "acc": [1.0, 0.0, 0.0, 0.0],
        "valid": [1.0, 0.0, 1.0, 0.0],
        "task": [*"abcd"],
    }
    arguments = (["s"] * 4, ["u", "v", "w", "x"], infos, [2, 2, 2, 2])
    counts = {("s", uid): 1 for uid in "uvwx"}
    metrics = bare_trainer()._val_metrics_update(*arguments, expected_acc_counts=dict(counts))
    assert metrics["val-core/s/acc/mean@1"] == 0.5
    assert metrics["val-aux/s/reward/mean@1"] == 0.75
    assert metrics["val-aux/s/valid/mean@1"] == 0.5
    assert infos["reward"][1] == -1.0, "what is written to files stays as it was"


def test_validation_of_other_reward_functions_is_upstreams():
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

    trainer = bare_trainer()
    arguments = (["s", "s"], ["u", "v"], {"reward": [-1.0, 0.5], "acc": [0.0, 1.0]}, [2, 2])
    counts = {("s", "u"): 1, ("s", "v"): 2}
    ours = trainer._val_metrics_update(*arguments, expected_acc_counts=dict(counts))
    assert ours == PPOTrainerSync._val_metrics_update(trainer, *arguments, expected_acc_counts=dict(counts))


def test_a_run_that_drops_too_much_saves_and_stops():
    trainer = bare_trainer()
    saved = []
    trainer._save_checkpoint = lambda: saved.append(trainer.global_steps)
    trainer._shutdown_dump_executor = lambda: None
    for trainer.global_steps in (1, 2):
        trainer.on_step_begin()
        trainer.watch.update(steps(0.8)[0])
        trainer.on_step_end()
    assert saved == [2]
    trainer.global_steps = 3
    with pytest.raises(TrainingStopped, match=r"after step 2: .*80%, 80%.*HYOCR_MAX_DROP_RATE=0\.5"):
        trainer.on_step_begin()


def test_a_step_that_is_saved_anyway_is_saved_once():
    trainer = bare_trainer(window=1)
    trainer._save_checkpoint = lambda: pytest.fail("upstream saves this step")
    trainer.watch.update(steps(1)[0])
    for trainer.global_steps in (10, 100):
        trainer.on_step_end()
    trainer.config.trainer.save_freq, trainer.global_steps = -1, 5
    trainer.on_step_end()


# --------------------------------------------------------------------------------------------- the configuration


def run_config(**overrides):
    return trainer_config(
        **{"trainer__use_v1": True, "trainer__v1__sampler__custom_sampler": {"path": None, "name": None}, **overrides}
    )


def test_dropping_is_the_default(monkeypatch):
    from verl_hyocr.adapt.dropped_samples import config_defaults, config_refusals

    sampler = "trainer.v1.sampler.custom_sampler"
    assert config_refusals(run_config()) == []
    assert config_defaults(run_config()) == {
        "trainer.v1.trainer_mode": "hyocr_sync",
        f"{sampler}.path": "pkg://verl_hyocr.sampler",
        f"{sampler}.name": "HyocrReplayBuffer",
    }
    monkeypatch.setenv("HYOCR_DISABLE", "D1")
    assert config_defaults(run_config()) == {} and config_refusals(run_config(trainer__use_v1=False)) == []


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ({"trainer__use_v1": False}, "trainer.use_v1=False"),
        ({"trainer__v1__trainer_mode": "colocate_async"}, "trainer_mode=colocate_async"),
        (
            {
                "trainer__v1__sampler__custom_sampler": {
                    "path": "pkg://verl.trainer.ppo.v1.replay_buffer",
                    "name": "ReplayBuffer",
                }
            },
            "Derive it from verl_hyocr.sampler.HyocrReplayBuffer",
        ),
        ({"reward__reward_model__enable": True}, "enable_resource_pool=True"),
    ],
)
def test_what_would_train_on_samples_without_a_score_is_refused(override, says):
    from verl_hyocr.adapt.dropped_samples import config_refusals

    (reason,) = config_refusals(run_config(**override))
    assert says in reason and "HYOCR_DISABLE=D1" in reason


def test_a_wrong_limit_is_refused_before_anything_starts(monkeypatch):
    from verl_hyocr.adapt.dropped_samples import config_refusals

    monkeypatch.setenv("HYOCR_MAX_DROP_RATE", "50%")
    (reason,) = config_refusals(run_config())
    assert "HYOCR_MAX_DROP_RATE='50%' is not a number" in reason


def test_a_sampler_derived_from_ours_is_kept(tmp_path):
    from verl_hyocr.adapt.dropped_samples import config_defaults, config_refusals

    (tmp_path / "mine.py").write_text(
        "from verl_hyocr.sampler import HyocrReplayBuffer\n\n\nclass Mine(HyocrReplayBuffer):\n    pass\n"
    )
    mine = {"path": str(tmp_path / "mine.py"), "name": "Mine"}
    config = run_config(trainer__v1__sampler__custom_sampler=mine)
    assert config_refusals(config) == []
    assert config_defaults(config) == {"trainer.v1.trainer_mode": "hyocr_sync"}


# ------------------------------------------------------------------------------------------------------- the judge


def judged(decision: str = "scored", **record) -> str:
    record = {
        "decision": decision,
        "calls": 1,
        "retries": 0,
        "failures": {},
        "latency_s": 0.5,
        "server": "h:1",
        "cached": False,
    } | record
    return json.dumps({"judge": record, "verdict": 1})


def test_judge_metrics_and_its_stop_rule(monkeypatch):
    from verl_hyocr.trainer import ScoreWatch

    monkeypatch.setenv("JUDGE_MAX_FAILURE_RATE", "0.5")
    monkeypatch.setenv("JUDGE_FAILURE_WINDOW", "6")
    watch = ScoreWatch(str(ROOT / "reward_ocr.py"), DropGuard(1.0, 1))
    failed = invalid(analysis=judged("judge_unavailable", error="connection refused"))
    first = watch.update(drop_policy.plan(group("a", [scored(analysis=judged()), failed, failed, scored()])))
    assert first["hyocr/judge/judgements"] == 3 and first["hyocr/judge/failure_rate"] == pytest.approx(2 / 3)
    assert watch.stop_reason == ""
    watch.update(drop_policy.plan(group("b", [scored(analysis=judged()), failed, failed])))
    assert "JUDGE_MAX_FAILURE_RATE" in watch.stop_reason and "connection refused" in watch.stop_reason


def test_other_reward_functions_do_not_load_the_kits():
    from verl_hyocr.trainer import ScoreWatch

    watch = ScoreWatch("/elsewhere/reward.py", DropGuard(1.0, 1))
    results = [{"acc": 1.0, "analysis": judged()}, scored(analysis="a judge of wine"), invalid()]
    assert watch.update(drop_policy.plan(group("a", results))) == {}
    assert watch._judge is None


def test_missing_judge_metrics_do_not_stop_training(monkeypatch, caplog):
    from verl_hyocr import trainer

    def missing(path):
        raise ModuleNotFoundError("No module named 'reward'")

    monkeypatch.setattr(trainer, "load_judge_metrics", missing)
    watch = trainer.ScoreWatch("/elsewhere/reward.py", DropGuard(1.0, 1))
    for _ in range(2):
        assert watch.update(drop_policy.plan(group("a", [scored(analysis=judged()), scored()]))) == {}
    assert caplog.text.count("No module named 'reward'") == 1


def test_judge_metrics_are_found_next_to_the_reward_function(monkeypatch):
    from verl_hyocr.trainer import load_judge_metrics

    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT])
    for name in [name for name in sys.modules if name.split(".")[0] == "reward"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ModuleNotFoundError):
        load_judge_metrics("/elsewhere/reward.py")
    assert load_judge_metrics(str(ROOT / "reward_ocr.py")).PREFIX == "hyocr/judge"


# ------------------------------------------------------------------------------------------------------- gradients


def compose_for_cpu(model_dir: Path, *overrides: str):
    """The configuration of a run on the CPU platform, completed by the fork."""
    from verl_hyocr.dry_run import compose

    actor = "actor_rollout_ref.actor"
    return compose(
        [
            "algorithm.adv_estimator=grpo",
            f"actor_rollout_ref.model.path={model_dir}",
            "actor_rollout_ref.model.use_remove_padding=False",
            "actor_rollout_ref.model.enable_gradient_checkpointing=False",
            "actor_rollout_ref.rollout.name=vllm",
            "actor_rollout_ref.rollout.n=4",
            "data.train_batch_size=3",
            "trainer.n_gpus_per_node=1",
            "trainer.device=cpu",
            f"{actor}.strategy=fsdp2",
            f"{actor}.use_dynamic_bsz=True",
            f"{actor}.ppo_max_token_len_per_gpu=160",
            f"{actor}.ppo_mini_batch_size=3",
            f"{actor}.use_torch_compile=False",
            f"{actor}.fsdp_config.use_torch_compile=False",
            f"{actor}.fsdp_config.model_dtype=fp32",
            f"+{actor}.fsdp_config.mixed_precision.param_dtype=fp32",
            f"{actor}.use_kl_loss=True",
            f"{actor}.kl_loss_coef=0.1",
            f"{actor}.entropy_coeff=0.01",
            *overrides,
        ]
    )


class Actor:
    """The actor's engine and loss as a worker builds them, on one gloo rank."""

    def __init__(self, config):
        import socket
        from functools import partial

        from verl.utils.config import omega_conf_to_dataclass
        from verl.utils.distributed import initialize_global_process_group_ray
        from verl.workers.engine import EngineRegistry
        from verl.workers.utils.losses import ppo_loss

        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK="0", WORLD_SIZE="1")
        initialize_global_process_group_ray()
        actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
        actor.model_config = omega_conf_to_dataclass(config.actor_rollout_ref.model)
        self.loss = partial(ppo_loss, config=actor)
        self.max_tokens = actor.ppo_max_token_len_per_gpu
        self.engine = EngineRegistry.new(
            model_type="language_model",
            backend=actor.strategy,
            model_config=actor.model_config,
            engine_config=actor.engine,
            optimizer_config=actor.optim,
            checkpoint_config=actor.checkpoint,
        )
        self.engine.initialize()

    def gradient(self, data, sequences: int) -> dict:
        """Gradient of one mini-batch; ``sequences`` is the size that the configuration promises."""
        from verl.utils import tensordict_utils as tu

        tu.assign_non_tensor(
            data,
            use_remove_padding=False,
            use_dynamic_bsz=True,
            max_token_len_per_gpu=self.max_tokens,
            calculate_entropy=True,
            temperature=1.0,
            global_batch_size=sequences,
        )
        with self.engine.train_mode():
            self.engine.optimizer_zero_grad()
            self.engine.forward_backward_batch(data, self.loss)
            found = {
                name: getattr(one.grad, "full_tensor", lambda grad=one.grad: grad)().clone()
                for name, one in self.engine.module.named_parameters()
                if one.grad is not None
            }
        largest = max(float(grad.abs().max()) for grad in found.values())
        print(f"largest gradient {largest:.2e}")
        assert largest > 1e-3
        return found


def difference(left: dict, right: dict) -> float:
    return max(float((left[name] - right[name]).abs().max()) for name in left.keys() | right.keys())


def log_probs(rows: list[dict]) -> list[dict]:
    """What the old and reference passes add to a row: near the tiny model's own, different for every token."""
    import torch

    return [
        {"old_log_probs": -11.7 - one["responses"] / 500, "ref_log_prob": -11.9 + one["responses"] / 400}
        if one["response_mask"].any()
        else {name: torch.zeros(len(one["responses"])) for name in ("old_log_probs", "ref_log_prob")}
        for one in rows
    ]


MIXED = (
    group("a", [scored(0.9), scored(0.1), invalid(), scored(0.4)])
    | group("b", [invalid(), scored(0.7), invalid(), invalid()])
    | group("c", [scored(0.2), scored(1.0), scored(0.0), scored(0.5)])
)
TRAINABLE = {key: info for key, info in MIXED.items() if info["valid"] and not key.startswith("b")}


def reference_batch():
    """The samples that carry a signal, as if the others had never been generated: no buffer, no padding."""
    import numpy as np
    import torch
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    rows = [row(key, info) for key, info in TRAINABLE.items()]
    pad = lambda name: torch.nn.utils.rnn.pad_sequence([one[name] for one in rows], batch_first=True)
    advantages, _ = compute_grpo_outcome_advantage(
        pad("rm_scores"), pad("response_mask"), np.array([one["uid"] for one in rows])
    )
    for one, extra, advantage in zip(rows, log_probs(rows), advantages, strict=True):
        one.update(extra, advantages=advantage[: len(one["responses"])])
    return list_of_dict_to_tensordict(rows)


def check_drop(model_dir: Path) -> None:
    """Through the configured buffer and trainer, a batch with invalid samples gives the gradient of the batch without them."""
    import transfer_queue as tq
    from verl.trainer.ppo.v1 import get_trainer_cls
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    config = compose_for_cpu(model_dir)
    trainer_class = get_trainer_cls(config.trainer.v1.trainer_mode)
    config.trainer.v1.trainer_mode = "sync"
    trainer = object.__new__(trainer_class)
    trainer.config, trainer.trainer_mode, trainer.global_steps, trainer.use_critic = config, "sync", 1, False
    trainer.tokenizer = type("Tokenizer", (), {"eos_token_id": 2})
    trainer.actor_rollout_wg = type("Workers", (), {"_dispatch_info": {"actor": [0]}})
    actor = Actor(config)
    with transfer_queue():
        trainer.replay_buffer = trainer._build_replay_buffer()
        put(MIXED)
        batch, _ = trainer.replay_buffer.sample(1, "train", 3)
        batch = trainer._balance_batch(batch, metrics={})
        rows = [dict(tq.kv_batch_get(keys=[key], partition_id="train")[0]) for key in batch.keys]
        tq.kv_batch_put(keys=batch.keys, partition_id="train", fields=list_of_dict_to_tensordict(log_probs(rows)))
        batch = trainer._compute_advantage(batch, metrics={})
        data = tq.kv_batch_get(keys=batch.keys, partition_id="train")
        padding = [tag.get("is_padding", False) for tag in batch.tags]
    assert len(padding) == 12
    found = difference(actor.gradient(data, 12), actor.gradient(reference_batch(), len(TRAINABLE)))
    print(f"gradient difference {found:.2e}, {sum(padding)} padding rows")
    assert found < 1e-6, f"the gradients differ by {found}"
    assert sum(padding) == 12 - len(TRAINABLE) == 5


def check_sequences(model_dir: Path) -> None:
    """A loss averaged over sequences divides by those that are there, not by the configured number."""
    mode = "seq-mean-token-mean"
    actor = Actor(compose_for_cpu(model_dir, f"actor_rollout_ref.actor.loss_agg_mode={mode}"))
    expected = actor.gradient(reference_batch(), len(TRAINABLE))
    found = difference(actor.gradient(padded_reference(12), 12), expected)
    print(f"gradient difference {found:.2e}")
    assert found < 1e-6, f"the gradients differ by {found}"


def padded_reference(size: int):
    """The reference batch with rows that have no token in the loss, up to ``size``."""
    import torch
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    rows = [dict(one) for one in reference_batch()]
    empty = rows[0] | {
        name: torch.zeros_like(rows[0][name]) for name in ("response_mask", "loss_mask", "advantages", "ref_log_prob")
    }
    return list_of_dict_to_tensordict(rows + [empty] * (size - len(rows)))


CHECKS = {"D1": check_drop, "D1.sequences": check_sequences}


def run_check(step: str, model: Path, disable: str = "") -> subprocess.CompletedProcess:
    env = {
        **os.environ,
        "VERL_PLATFORM": "cpu",
        "HYOCR_DISABLE": disable,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [env.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, __file__, step, str(model)], env=env, capture_output=True, text=True, timeout=600
    )


@pytest.mark.parametrize("step", CHECKS)
def test_gradients_are_those_without_the_dropped_samples(step, tiny_model):
    result = run_check(step, tiny_model)
    assert result.returncode == 0, result.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("step", CHECKS)
def test_gradients_differ_without_the_step(step, tiny_model):
    result = run_check(step, tiny_model, disable=step)
    assert result.returncode != 0 and "the gradients differ by" in result.stderr, result.stderr[-3000:]


# ------------------------------------------------------------------------------------------------------ a whole run

REWARD = '''
"""Flags a third of the answers of the first step and every answer of the later ones, as a judge that dies does."""
import json
import zlib


def compute_score(data_source, solution_str, ground_truth, extra_info, **kwargs):
    draw = zlib.crc32(solution_str.encode())
    valid = float(not extra_info.get("min_global_steps") and draw % 3 > 0)
    decision = "scored" if valid else "judge_unavailable"
    judge = {"decision": decision, "calls": 1, "retries": 0, "failures": {}, "latency_s": 0.5, "server": "h:1", "cached": False}
    return {"score": draw % 7 / 7 if valid else -1.0, "acc": 0.0, "valid": valid, "task": "VQA", "reward_func": "test",
            "decision": decision, "analysis": json.dumps({"judge": judge})}
'''


@pytest.fixture(scope="module")
def dying_judge(kit_root, tmp_path_factory) -> tuple[subprocess.CompletedProcess, Path]:
    """The demo for five steps with a reward function that has no score from the second step on."""
    work = tmp_path_factory.mktemp("dropped")
    (work / "reward.py").write_text(REWARD)
    settings = {
        "REWARD_FN_PATH": str(work / "reward.py"),
        "REWARD_FN_NAME": "compute_score",
        "DEMO_DIR": str(work / "demo"),
        "OUTPUT_DIR": str(work / "out"),
        "RAY_RUN_DIR": f"/tmp/hyocr-d1-{os.getpid()}",
        "PYTHON": sys.executable,
        "TOTAL_STEPS": "5",
        "SAVE_FREQ": "10",
        "TEST_FREQ": "-1",
        "SAVE_HF_MODEL": "0",
        "HYOCR_DROP_WINDOW": "2",
        "HYOCR_MAX_DROP_RATE": "0.9",
    }
    keep = {name: os.environ[name] for name in ("PATH", "HOME", "VIRTUAL_ENV", "TMPDIR") if name in os.environ}
    log = work / "log"
    with open(log, "wb") as output:
        result = subprocess.run(
            ["bash", str(kit_root / "train_grpo.sh")],
            env={**keep, "VERL_PLATFORM": "cpu", "HF_HUB_OFFLINE": "1", **settings},
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            timeout=1500,
        )
    result.stdout = log.read_text(errors="replace")
    return result, work / "out/demo/tiny"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_run_trains_skips_and_stops(dying_judge):
    result, run = dying_judge
    assert result.returncode == 1, result.stdout[-6000:]
    assert "training stopped after step 3: too many samples have no score: 100%, 100%" in result.stdout
    assert "step 2: no group kept two scored samples, the update is skipped" in result.stdout
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [record["data"]["training/global_step"] for record in records] == [1, 2, 3]
    first, *later = [record["data"] for record in records]
    assert 0 < first["hyocr/dropped/rate"] < 1 and first["hyocr/dropped/skipped_update"] == 0
    assert first["hyocr/dropped/VQA/judge_unavailable"] > 0
    assert first["actor/grad_norm"] > 0 and first["critic/score/min"] >= 0, "no -1 among what is trained on"
    for step in later:
        assert (step["hyocr/dropped/rate"], step["hyocr/dropped/skipped_update"]) == (1, 1)
        assert step["hyocr/judge/failure_rate"] == 1
        assert not any(name.startswith("actor/") for name in step)


@pytest.mark.slow
def test_stopped_run_left_a_checkpoint(dying_judge):
    _, run = dying_judge
    assert (run / "ckpt/latest_checkpointed_iteration.txt").read_text().strip() == "3"
    assert (run / "ckpt/global_step_3/actor/model_world_size_1_rank_0.pt").is_file()


if __name__ == "__main__":
    import verl  # noqa: F401 - runs the plugin first, as in a worker

    CHECKS[sys.argv[1]](Path(sys.argv[2]))
