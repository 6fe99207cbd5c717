"""Saving, publishing, pruning, finding and refusing checkpoints; the trainer's order and stop. Without Ray."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import pytest
from verl_hyocr import checkpoint
from verl_hyocr.checkpoint import CheckpointError


def write_shards(folder: Path, ranks: int = 1, contents=checkpoint.KINDS) -> Path:
    """Files as verl writes them, small."""
    import torch

    actor = folder / "actor"
    (actor / "huggingface").mkdir(parents=True)
    for name in checkpoint.shard_names(ranks, contents):
        torch.save({"name": name}, actor / name)
    (actor / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": ranks}))
    (actor / "huggingface/config.json").write_text("{}")
    torch.save({}, folder / "data.pt")
    return folder


def save(root: Path, step: int, ranks: int = 1) -> checkpoint.Checkpoint:
    write_shards(checkpoint.work_folder(root) / f"global_step_{step}", ranks)
    return checkpoint.publish(root, step)


def tracker(root: Path) -> str:
    return (root / checkpoint.TRACKER).read_text()


# ----------------------------------------------------------------------------------------------------------- publishing


def test_published_checkpoint_is_whole_and_latest(tmp_path):
    saved = save(tmp_path, 3, ranks=2)
    assert saved.complete and saved.world_size == 2 and tracker(tmp_path) == "3"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["global_step_3", checkpoint.TRACKER]
    chosen, remarks = checkpoint.find_resumable(tmp_path)
    assert chosen.step == 3 and remarks == []


@pytest.mark.parametrize(
    "break_it",
    [
        lambda folder: (folder / "data.pt").unlink(),
        lambda folder: (folder / "actor/fsdp_config.json").unlink(),
        lambda folder: (folder / "actor/optim_world_size_1_rank_0.pt").write_bytes(b"half"),
        lambda folder: shutil.rmtree(folder / "actor/huggingface"),
    ],
    ids=["no data.pt", "no fsdp_config", "half a shard", "no config"],
)
def test_half_a_save_is_not_published(tmp_path, break_it):
    save(tmp_path, 1)
    break_it(write_shards(checkpoint.work_folder(tmp_path) / "global_step_2"))
    with pytest.raises(CheckpointError, match="step 2 is not whole"):
        checkpoint.publish(tmp_path, 2)
    assert tracker(tmp_path) == "1" and not (tmp_path / "global_step_2").exists()
    assert checkpoint.find_resumable(tmp_path)[0].step == 1


def test_killed_save_leaves_the_earlier_one_and_the_next_save_clears_it(tmp_path):
    save(tmp_path, 1)
    write_shards(checkpoint.work_folder(tmp_path) / "global_step_2")  # killed here
    assert [item.step for item in checkpoint.scan(tmp_path)] == [1]
    assert checkpoint.find_resumable(tmp_path)[0].step == 1
    save(tmp_path, 2)
    assert tracker(tmp_path) == "2" and not (tmp_path / checkpoint.WORK).exists()


def kill_between(root: Path, step: int, monkeypatch, name: str) -> None:
    """A publish that is killed when it is about to call ``checkpoint.NAME`` for the tracker or the rename."""

    class Killed(BaseException):
        pass

    def die(*args):
        if name != "_write" or args[0].name == checkpoint.TRACKER:
            raise Killed
        return original(*args)

    owner = os if name == "rename" else checkpoint
    original = getattr(owner, name)
    write_shards(checkpoint.work_folder(root) / f"global_step_{step}")
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, die)
        with pytest.raises(Killed):
            checkpoint.publish(root, step)


def test_killed_before_the_rename(tmp_path, monkeypatch):
    save(tmp_path, 1)
    kill_between(tmp_path, 2, monkeypatch, "rename")
    assert checkpoint.find_resumable(tmp_path)[0].step == 1


def test_killed_between_rename_and_tracker(tmp_path, monkeypatch):
    save(tmp_path, 1)
    os.utime(tmp_path / checkpoint.TRACKER, (1, 1))
    kill_between(tmp_path, 2, monkeypatch, "_write")
    assert tracker(tmp_path) == "1"
    chosen, remarks = checkpoint.find_resumable(tmp_path)
    assert chosen.step == 2 and "names step 1" in remarks[0]


def test_saving_a_step_again_replaces_it(tmp_path):
    save(tmp_path, 2)
    first = (tmp_path / "global_step_2" / checkpoint.MANIFEST).read_text()
    save(tmp_path, 2)
    assert (tmp_path / "global_step_2" / checkpoint.MANIFEST).read_text() != first
    assert checkpoint.inspect(tmp_path / "global_step_2").complete and not (tmp_path / checkpoint.WORK).exists()


# -------------------------------------------------------------------------------------------------------------- finding


def test_tracker_rules_over_older_saves_with_higher_numbers(tmp_path):
    """Going back to step 25 and training on must not be undone by the 75 of the abandoned branch."""
    for step in (25, 50, 75):
        save(tmp_path, step)
    save(tmp_path, 50)
    assert checkpoint.find_resumable(tmp_path)[0].step == 50


def test_tracker_set_back_by_hand_is_followed(tmp_path):
    for step in (1, 2):
        save(tmp_path, step)
    (tmp_path / checkpoint.TRACKER).write_text("1\n")
    assert checkpoint.find_resumable(tmp_path)[0].step == 1


def test_damaged_latest_is_named_and_the_one_before_is_taken(tmp_path):
    for step in (1, 2):
        save(tmp_path, step)
    with open(tmp_path / "global_step_2/actor/model_world_size_1_rank_0.pt", "r+b") as file:
        file.truncate(10)
    chosen, remarks = checkpoint.find_resumable(tmp_path)
    assert chosen.step == 1
    assert "global_step_2 is not whole (actor/model_world_size_1_rank_0.pt has 10 bytes" in remarks[0]


def test_half_folder_without_manifest_is_recognised(tmp_path):
    """As upstream leaves it when it is killed while saving in place."""
    write_shards(tmp_path / "global_step_1")
    write_shards(tmp_path / "global_step_2")
    (tmp_path / "global_step_2/actor/extra_state_world_size_1_rank_0.pt").unlink()
    chosen, remarks = checkpoint.find_resumable(tmp_path)
    assert chosen.step == 1 and "extra_state_world_size_1_rank_0.pt is missing" in remarks[0]


def test_nothing_there_starts_from_scratch(tmp_path):
    assert checkpoint.find_resumable(tmp_path) == (None, [])
    assert checkpoint.find_resumable(tmp_path / "none") == (None, [])


def test_lost_checkpoints_do_not_restart_silently(tmp_path):
    save(tmp_path, 4)
    shutil.rmtree(tmp_path / "global_step_4")
    with pytest.raises(CheckpointError, match=r"names step 4, but .* holds no whole checkpoint"):
        checkpoint.find_resumable(tmp_path)


def test_damaged_tracker_does_not_hide_checkpoints(tmp_path):
    save(tmp_path, 4)
    (tmp_path / checkpoint.TRACKER).write_text("")
    assert checkpoint.find_resumable(tmp_path)[0].step == 4


def test_merged_weights_do_not_change_the_verdict(tmp_path):
    save(tmp_path, 1)
    (tmp_path / "global_step_1/actor/huggingface/model.safetensors").write_bytes(b"merged later")
    assert checkpoint.inspect(tmp_path / "global_step_1").complete


def test_other_world_size_is_refused_with_both_numbers_and_the_way_out(tmp_path):
    save(tmp_path, 5, ranks=2)
    with pytest.raises(CheckpointError) as refusal:
        checkpoint.require(tmp_path / "global_step_5", world_size=4)
    message = str(refusal.value)
    assert (
        "with 4 ranks: 2 ranks wrote it" in message and "merge_fsdp_ckpt_to_hf.sh" in message and "STEPS=5" in message
    )
    assert checkpoint.require(tmp_path / "global_step_5", world_size=2).step == 5


# -------------------------------------------------------------------------------------------------------------- pruning


def test_prune_keeps_the_newest_and_never_the_damaged(tmp_path):
    for step in (1, 2, 3, 4):
        save(tmp_path, step)
    (tmp_path / "global_step_1/data.pt").unlink()
    gone = checkpoint.prune(tmp_path, 2)
    assert [path.name for path in gone] == ["global_step_2"]
    assert [item.step for item in checkpoint.scan(tmp_path)] == [1, 3, 4]
    assert checkpoint.prune(tmp_path, None) == [] and checkpoint.prune(tmp_path, 2) == []


def test_prune_goes_by_the_time_of_the_save(tmp_path):
    for step in (25, 50, 75, 50):
        save(tmp_path, step)
    assert [path.name for path in checkpoint.prune(tmp_path, 1)] == ["global_step_25", "global_step_75"]
    assert checkpoint.find_resumable(tmp_path)[0].step == 50


def test_killed_prune_leaves_no_half_checkpoint(tmp_path, monkeypatch):
    for step in (1, 2):
        save(tmp_path, step)

    def half(path):
        (Path(path) / "data.pt").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.shutil, "rmtree", half)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.prune(tmp_path, 1)
    assert [item.step for item in checkpoint.scan(tmp_path)] == [2]
    save(tmp_path, 3)
    assert not (tmp_path / checkpoint.WORK).exists()


# ----------------------------------------------------------------------------------------------------------------- disk


def test_size_comes_from_the_last_checkpoint_else_from_the_model(tmp_path, tiny_model):
    from safetensors import safe_open

    with safe_open(tiny_model / "model.safetensors", "pt") as file:
        count = sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118 - no iterator
    assert checkpoint.parameters(tiny_model) == count
    assert checkpoint.expected_bytes(tmp_path, tiny_model, ["model", "optimizer", "extra"]) == 12 * count
    assert checkpoint.expected_bytes(tmp_path, tiny_model, ["model", "optimizer", "hf_model"]) == 16 * count
    saved = save(tmp_path, 1)
    assert checkpoint.expected_bytes(tmp_path, tiny_model, ["model"]) == saved.size > 0


def test_low_disk_is_refused_with_numbers(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda path: usage(10**12, 0, 10**9))
    checkpoint.require_space(tmp_path, 9 * 10**8)
    save(tmp_path, 7)
    with pytest.raises(CheckpointError, match=r"needs about 2\.10 GB, .* has 1\.00 GB free.*global_step_7 is kept"):
        checkpoint.require_space(tmp_path, 2 * 10**9)


# --------------------------------------------------------------------------------------------------------- command line


def run_cli(*arguments) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "verl_hyocr.checkpoint", *map(str, arguments)], capture_output=True, text=True
    )


def test_command_line_lists_and_refuses(tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 2, ranks=2)
    (tmp_path / "global_step_1/data.pt").unlink()
    listing = run_cli(tmp_path, "--world-size", 2)
    assert listing.returncode == 0 and "NOT WHOLE: data.pt is missing" in listing.stdout
    assert listing.stdout.splitlines()[-1] == f"resume: {tmp_path / 'global_step_2'}"
    refused = run_cli(tmp_path, "--world-size", 1, "--json")
    report = json.loads(refused.stdout)
    assert refused.returncode == 2 and "2 ranks wrote it" in report["error"] and report["resume"] is None
    half = run_cli(tmp_path, "--resume", tmp_path / "global_step_1")
    assert half.returncode == 2 and "data.pt is missing" in half.stderr


# ---------------------------------------------------------------------------------------------------------- the trainer


@pytest.fixture()
def make_trainer(tmp_path, monkeypatch, tiny_model):
    """A trainer on real data order and real files; workers and Ray are left out."""
    import torch
    from omegaconf import OmegaConf
    from torchdata.stateful_dataloader import StatefulDataLoader
    from verl.trainer.ppo.checkpoint_callback import CheckpointCallback
    from verl.trainer.ppo.utils import create_rl_sampler
    from verl_hyocr.safe_trainer import SafeTrainerSync

    class Workers:
        world_size = 1

        def __init__(self):
            self.calls = []

        def save_checkpoint(self, path, remote, step, max_ckpt_to_keep):
            assert max_ckpt_to_keep is None, "the workers must not prune"
            folder = Path(path).parent
            write_shards(folder)
            (folder / "data.pt").unlink()
            self.calls.append(("save", step))

        def load_checkpoint(self, local_path, del_local_after_load):
            self.calls.append(("load", local_path))

    def make(workers: int = 0, **settings):
        config = OmegaConf.create(
            {
                "trainer": {
                    "default_local_dir": str(tmp_path / "ckpt"),
                    "default_hdfs_dir": None,
                    "max_actor_ckpt_to_keep": None,
                    "max_critic_ckpt_to_keep": None,
                    "resume_mode": "auto",
                    "resume_from_path": None,
                    "del_local_ckpt_after_load": False,
                    "save_freq": 1,
                    **settings,
                },
                "data": {"shuffle": True, "seed": 1, "train_batch_size": 2},
                "actor_rollout_ref": {
                    "model": {"path": str(tiny_model)},
                    "actor": {"checkpoint": {"save_contents": ["model", "optimizer", "extra"]}},
                },
            }
        )
        trainer = object.__new__(SafeTrainerSync)
        trainer.config, trainer.trainer_mode, trainer.use_critic = config, "sync", False
        trainer.checkpoint_callback = CheckpointCallback()
        trainer.actor_rollout_wg = Workers()
        dataset = [{"raw_prompt": [{"role": "user", "content": str(number)}], "index": number} for number in range(7)]
        trainer.train_dataloader = StatefulDataLoader(
            dataset,
            batch_size=2,
            num_workers=workers,
            drop_last=True,
            sampler=create_rl_sampler(config.data, dataset),
            collate_fn=lambda rows: {
                "raw_prompt": [row["raw_prompt"] for row in rows],
                "index": torch.tensor([row["index"] for row in rows]),
            },
        )
        trainer.val_dataloader = StatefulDataLoader(dataset, batch_size=7, num_workers=workers)
        trainer.train_dataloader_it = None
        trainer.total_training_steps = 10
        trainer._trained_step, trainer._saved_step, trainer._in_training_loop = 0, None, False
        trainer._data_before_step, trainer._fetched_prompts = None, 0
        trainer.checkpoint_manager = SimpleNamespace(
            update_weights=lambda step: None, abort_replicas=lambda: None, sleep_replicas=lambda: None
        )
        trainer._load_checkpoint()
        return trainer

    return make


def train(trainer, steps: int, save_at=()) -> list[list[int]]:
    """The indices of the prompts of each step."""
    seen = []
    for _ in range(steps):
        trainer.global_steps += 1
        trainer.on_step_begin()
        batch = trainer._next_train_batch()
        seen.append(batch["index"].tolist())
        trainer.timing_raw = {}
        if trainer.global_steps in save_at:
            trainer._save_checkpoint()
        trainer.on_step_end()
    return seen


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("stopped_at", [1, 3, 4, 6])
def test_data_order_continues_within_and_at_the_end_of_an_epoch(make_trainer, stopped_at, workers):
    """Three steps an epoch; a resume after any step sees what the uninterrupted run sees."""
    uninterrupted = make_trainer(workers, resume_mode="disable")
    whole = train(uninterrupted, 8)
    uninterrupted._close_dataloaders()
    first = make_trainer(workers)
    train(first, stopped_at, save_at=(stopped_at,))
    first._close_dataloaders()
    second = make_trainer(workers)
    assert second.global_steps == stopped_at
    assert train(second, 8 - stopped_at) == whole[stopped_at:]
    second._close_dataloaders()


def test_trainer_saves_aside_publishes_prunes_and_tells_the_callback(make_trainer, tmp_path):
    told = []
    trainer = make_trainer(max_actor_ckpt_to_keep=2)
    trainer.checkpoint_callback = SimpleNamespace(on_save=lambda **about: told.append(about))
    train(trainer, 4, save_at=(1, 2, 3, 4))
    root = tmp_path / "ckpt"
    assert [item.step for item in checkpoint.scan(root)] == [3, 4] and tracker(root) == "4"
    assert told[-1]["checkpoint_dir"] == str(root / "global_step_4") and told[-1]["global_step"] == 4
    assert trainer.config.trainer.default_local_dir == str(root), "the setting is as it was"
    assert trainer.config.trainer.max_actor_ckpt_to_keep == 2


def test_failed_save_keeps_everything_and_frees_the_disk(make_trainer, tmp_path):
    trainer = make_trainer(max_actor_ckpt_to_keep=1)
    train(trainer, 1, save_at=(1,))
    half = trainer.actor_rollout_wg.save_checkpoint

    def disk_full(*args, **kwargs):
        half(*args, **kwargs)
        raise OSError(28, "No space left on device")

    trainer.actor_rollout_wg.save_checkpoint = disk_full
    with pytest.raises(OSError, match="No space left"):
        train(trainer, 1, save_at=(2,))
    root = tmp_path / "ckpt"
    assert [item.step for item in checkpoint.scan(root)] == [1] and tracker(root) == "1"
    assert not (root / checkpoint.WORK).exists()


def test_low_disk_stops_before_anything_is_written(make_trainer, tmp_path, monkeypatch):
    trainer = make_trainer()
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda path: usage(10**12, 0, 1000))
    with pytest.raises(CheckpointError, match="not enough disk space"):
        train(trainer, 1, save_at=(1,))
    assert trainer.actor_rollout_wg.calls == []


def test_resume_with_another_world_size_is_refused_before_loading(make_trainer, tmp_path):
    save(tmp_path / "ckpt", 3, ranks=2)
    with pytest.raises(CheckpointError, match="with 1 ranks: 2 ranks wrote it"):
        make_trainer()


def test_resume_from_a_path(make_trainer, tmp_path):
    train(make_trainer(), 2, save_at=(1, 2))
    trainer = make_trainer(resume_mode="resume_path", resume_from_path=str(tmp_path / "ckpt/global_step_1"))
    assert trainer.global_steps == 1
    assert trainer.actor_rollout_wg.calls == [("load", str(tmp_path / "ckpt/global_step_1/actor"))]


def test_nothing_left_to_train_is_said(make_trainer, caplog):
    train(make_trainer(), 2, save_at=(2,))
    trainer = make_trainer()
    trainer.total_training_steps = 2
    with caplog.at_level("WARNING"):
        trainer._load_checkpoint()
    assert "is step 2 of 2: there is nothing left to train" in caplog.text


def test_other_number_of_loader_processes_is_refused_with_both(make_trainer):
    trainer = make_trainer(workers=1)
    train(trainer, 1, save_at=(1,))
    trainer._close_dataloaders()
    with pytest.raises(
        CheckpointError, match=r"with 1 data loader processes, and this run has 0.*DATALOADER_WORKERS=1"
    ):
        make_trainer(workers=0)


# ------------------------------------------------------------------------------------------------------ stop on request


def test_stop_during_the_rollout_saves_the_step_before_with_its_data(make_trainer, tmp_path):
    """The batch whose answers were being sampled is fetched again after the resume."""
    whole = train(make_trainer(resume_mode="disable"), 4)
    trainer = make_trainer()
    train(trainer, 2)
    trainer.global_steps += 1
    trainer.on_step_begin()
    trainer._next_train_batch()  # asked to stop while these are answered
    message = str(trainer._save_and_stop())
    assert "step 2 is saved" in message and tracker(tmp_path / "ckpt") == "2" and trainer.global_steps == 3
    assert train(make_trainer(), 2) == whole[2:]


def test_stop_between_steps_saves_the_finished_one_once(make_trainer, tmp_path):
    whole = train(make_trainer(resume_mode="disable"), 3)
    trainer = make_trainer()
    train(trainer, 1)
    assert "step 1 is saved" in str(trainer._save_and_stop())
    assert "which is saved already" in str(trainer._save_and_stop())
    assert train(make_trainer(), 2) == whole[1:]


def test_stop_before_the_first_step_saves_nothing(make_trainer, tmp_path):
    assert "nothing to save" in str(make_trainer()._save_and_stop())
    assert checkpoint.scan(tmp_path / "ckpt") == []


def test_stop_saves_although_the_rollout_server_is_gone(make_trainer, tmp_path, monkeypatch):
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
    from verl_hyocr import stop

    trainer = make_trainer()
    train(trainer, 1)

    def asked_to_stop(*args):
        raise stop.StopRequested

    def gone():
        raise ConnectionError("no server")

    monkeypatch.setattr(PPOTrainerSync, "fit", asked_to_stop)
    monkeypatch.setattr(stop, "announce_training", lambda: None)
    trainer.checkpoint_manager.abort_replicas = gone
    with pytest.raises(stop.Stopped, match="step 1 is saved"):
        trainer.fit(None)
    assert checkpoint.find_resumable(tmp_path / "ckpt")[0].step == 1


def test_stop_request_is_seen_at_the_next_step(make_trainer, monkeypatch):
    from verl_hyocr import stop

    trainer = make_trainer()
    monkeypatch.setattr(stop, "is_requested", lambda: True)
    with pytest.raises(stop.StopRequested):
        trainer.on_step_begin()


def test_waiting_for_answers_is_left_on_request(monkeypatch):
    from verl_hyocr import stop
    from verl_hyocr.sampler import HyocrReplayBuffer

    monkeypatch.setattr(stop, "is_requested", lambda: True)
    with pytest.raises(stop.StopRequested):
        object.__new__(HyocrReplayBuffer)._wait_for_next_poll("train", 0.0)


# -------------------------------------------------------------------------------------------------- order and sampling


def test_ids_follow_the_data_and_not_chance(make_trainer):
    trainer = make_trainer()
    trainer.global_steps = 7
    trainer.on_step_begin()
    assert list(trainer._next_train_batch()["uid"]) == ["000000007-000000", "000000007-000001"]
    assert list(trainer._next_train_batch()["uid"]) == ["000000007-000002", "000000007-000003"]


def test_rows_are_ordered_by_prompt_and_session():
    from verl_hyocr.sampler import _row_order

    keys = ["000000001-000001_0_0", "000000001-000000_10_0", "000000001-000000_2_1", "000000001-000000_2_0"]
    assert sorted(keys, key=_row_order) == [keys[3], keys[2], keys[1], keys[0]]


def test_seeds_differ_by_everything_that_tells_requests_apart():
    from verl_hyocr.adapt.seeded_sampling import derive

    seeds = {
        derive(seed, validate, step, index, session)
        for seed in ("1", "2")
        for validate in (False, True)
        for step in (1, 11)
        for index in (1, 11)
        for session in (1, 11)
    }
    assert len(seeds) == 32 and all(0 <= seed < 2**48 for seed in seeds)
    assert derive("1", False, 3, 4, 0) == derive("1", False, 3, 4, 0)


# ----------------------------------------------------------------------------------------------------------- the driver


def actor_row(message: str, reason: str) -> dict:
    from ray.core.generated import common_pb2

    cause = common_pb2.ActorDeathCause()
    cause.actor_died_error_context.error_message = message
    cause.actor_died_error_context.reason = common_pb2.ActorDiedErrorContext.Reason.Value(reason)
    return {"ActorClassName": "RewardLoopWorker", "Pid": 7, "Address": {"IPAddress": "10.0.0.1"}, "DeathCause": cause}


def test_only_unexpected_deaths_are_reported():
    from verl_hyocr.lost_workers import describe_death

    killed = actor_row("Worker exit type: SYSTEM_ERROR", "WORKER_DIED")
    assert describe_death(killed) == "RewardLoopWorker (pid 7 on 10.0.0.1): its process died"
    assert describe_death(actor_row("exit type: INTENDED_USER_EXIT", "WORKER_DIED")) == ""
    for reason in ("RAY_KILL", "OUT_OF_SCOPE", "NODE_DIED", "REF_DELETED"):
        assert describe_death(actor_row("", reason)) == ""


def failed_group(monkeypatch, lost: list[str]):
    """A replay buffer with one finished and one failed prompt."""
    from verl_hyocr import lost_workers
    from verl_hyocr.sampler import HyocrReplayBuffer

    monkeypatch.setattr(lost_workers, "lost_workers", lambda: lost)
    monkeypatch.setattr(lost_workers, "PROMPT_S", 0.0)
    buffer = object.__new__(HyocrReplayBuffer)
    buffer.failure_keys = {"train": {"000000001-000000"}}
    buffer.partitions, buffer.prompt_global_steps = {"train": {}}, {"train": {}}
    return buffer


def test_answers_lost_to_a_dead_worker_are_not_trained_without(monkeypatch):
    from verl_hyocr.lost_workers import WorkerLost

    buffer = failed_group(monkeypatch, ["RewardLoopWorker (pid 7 on 10.0.0.1): its process died"])
    keys = {"000000001-000001", "000000001-000000"}
    with pytest.raises(WorkerLost, match=r"1 of 2 prompts .*RewardLoopWorker \(pid 7"):
        buffer._select_prompt_uids("train", keys, 2)


def test_a_prompt_that_failed_by_itself_is_left_to_upstream(monkeypatch):
    buffer = failed_group(monkeypatch, [])
    selected, _, _ = buffer._select_prompt_uids("train", {"000000001-000001", "000000001-000000"}, 2)
    assert selected == ["000000001-000000", "000000001-000001"]


SIGNALS = """
import os, signal, sys, time
from verl_hyocr import main
signal.signal(signal.SIGTERM, main._on_signal)
print("ready", flush=True)
sys.stdin.readline()
print("stopping" if main._signals.stopping else "deaf", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_second_signal_ends_at_once(second):
    with subprocess.Popen(
        [sys.executable, "-c", SIGNALS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert "saving after the current step" in process.stderr.readline()
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "stopping\n"
        process.send_signal(second)
        assert process.wait(timeout=30) == 128 + second


# -------------------------------------------------------------- a training that is killed, with real shards and a real model


def start_training(model: Path, run: Path, *options: str) -> subprocess.Popen:
    script = Path(__file__).with_name("tiny_training.py")
    return subprocess.Popen(
        [sys.executable, str(script), str(model), str(run), *options],
        env={**os.environ, "VERL_PLATFORM": "cpu", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish_training(model: Path, run: Path, steps: int, *options: str) -> str:
    process = start_training(model, run, "--steps", str(steps), *options)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output[-3000:]
    return output


def losses(run: Path) -> list[dict]:
    """A line a step; a step that was run again must have given the same loss to the last bit."""
    by_step: dict[int, dict] = {}
    for line in (run / "losses.jsonl").read_text().splitlines():
        record = json.loads(line)
        assert by_step.setdefault(record["step"], record) == record
    return [by_step[step] for step in sorted(by_step)]


@pytest.fixture(scope="module")
def uninterrupted(tiny_model, tmp_path_factory) -> list[dict]:
    """Four steps, three an epoch."""
    run = tmp_path_factory.mktemp("uninterrupted")
    finish_training(tiny_model, run, 4)
    return losses(run)


@pytest.mark.parametrize(
    ("moment", "whole"),
    [
        pytest.param("rollout:3", 2, marks=pytest.mark.slow),
        pytest.param("update:3", 2, marks=pytest.mark.slow),
        ("save:3", 2),
        pytest.param("publish:3", 3, marks=pytest.mark.slow),
    ],
)
def test_training_goes_on_to_the_same_losses_after_kill_9(tiny_model, tmp_path, uninterrupted, moment, whole):
    with start_training(tiny_model, tmp_path, "--steps", "4", "--pause", moment) as process:
        output = ""
        for line in process.stdout:
            output += line
            if line == "PAUSED\n":
                process.kill()
        assert process.wait() == -signal.SIGKILL, output[-3000:]
    root = tmp_path / "ckpt"
    assert tracker(root) == "2"
    assert checkpoint.find_resumable(root)[0].step == whole
    assert all(item.complete for item in checkpoint.scan(root))
    finish_training(tiny_model, tmp_path, 4)
    assert losses(tmp_path) == uninterrupted
    assert [item.step for item in checkpoint.scan(root)] == [1, 2, 3, 4]
    assert not (root / checkpoint.WORK).exists()


@pytest.fixture()
def small_disk(tmp_path):
    """A file system of its own for two checkpoints of the tiny model; root only."""
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=250m", "tmpfs", str(disk)], capture_output=True, text=True
    )
    if mount.returncode != 0:
        pytest.skip(f"no tmpfs: {mount.stderr.strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_full_disk_keeps_the_last_checkpoint_and_training_goes_on(tiny_model, tmp_path, small_disk, uninterrupted):
    run = small_disk / "run"
    process = start_training(tiny_model, run, "--steps", "4")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "not enough disk space for the next checkpoint" in output and "global_step_2 is kept" in output
    root = run / "ckpt"
    assert checkpoint.find_resumable(root)[0].step == 2 and not (root / checkpoint.WORK).exists()
    # What a user does: clear out old ones, and let the kit do so from now on.
    shutil.rmtree(root / "global_step_1")
    finish_training(tiny_model, run, 4, "--keep", "1")
    assert losses(run) == uninterrupted
    assert [item.step for item in checkpoint.scan(root)] == [4]


@pytest.mark.slow
def test_disk_that_fills_up_during_the_save(tiny_model, tmp_path, small_disk):
    """The check before the save cannot know what others write meanwhile."""
    run = small_disk / "run"
    finish_training(tiny_model, run, 1)
    with start_training(tiny_model, run, "--steps", "2", "--pause", "save:2") as process:
        output = ""
        for line in process.stdout:
            output += line
            if line == "PAUSED\n":
                with open(small_disk / "ballast", "wb") as file, pytest.raises(OSError, match="No space left"):
                    while file.write(bytes(1 << 20)):
                        file.flush()
                process.stdin.close()
        assert process.wait(timeout=300) == 1, output[-3000:]
    root = run / "ckpt"
    assert [item.step for item in checkpoint.scan(root)] == [1] and tracker(root) == "1"
    (small_disk / "ballast").unlink()
    assert not (root / checkpoint.WORK).exists(), "the half save no longer takes up the disk"
    finish_training(tiny_model, run, 2)
    assert checkpoint.find_resumable(root)[0].step == 2
