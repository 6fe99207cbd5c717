"""Training on two Ray nodes with networks of their own; the worker has no kit folder and loses its power in a step.

Two network namespaces on one machine; on the worker's side the kit's folder is hidden, so that it runs on what Ray ships.
One run, the worker's end and the resumed run serve all tests. Needs root, iproute2 and about 17 GB of memory.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from tests.ray.hosts import Host, Site, two_sites

pytestmark = [pytest.mark.slow, pytest.mark.timeout(5400)]
SETTINGS = {
    "NNODES": "2",
    "NGPUS_PER_NODE": "1",
    "SHIP_CODE": "1",
    "TRAIN_BATCH_SIZE": "2",
    "PPO_MINI_BATCH_SIZE": "2",
    "ROLLOUT_N": "2",
    "MAX_RESPONSE_LENGTH": "8",
    "SAVE_FREQ": "1",
    "TEST_FREQ": "-1",
    "SAVE_HF_MODEL": "0",
    "REWARD_WORKERS": "2",
    "EXPERIMENT_NAME": "two_nodes",
    "RAY_DEDUP_LOGS": "0",
    # As a user may have it in the shell of the driver: right there, and unknown on the other node.
    "VLLM_HOST_IP": "10.231.78.1",
}


@dataclass
class Story:
    """What happened: ``log`` is the launcher's output of each run, ``left_after`` seconds from the loss to its end."""

    head: Site
    worker: Site
    run_dir: Path
    hidden: bool
    first_log: str
    first_code: int
    left_after: float
    saved: int
    saved_files: list[str]
    second_log: str
    second_code: int


def newest(run_dir: Path) -> int:
    tracker = run_dir / "ckpt/latest_checkpointed_iteration.txt"
    return int(tracker.read_text()) if tracker.exists() else 0


def launcher(host: Host, kit: Path, log: Path, address: str, **settings: str) -> subprocess.Popen:
    wanted = {"VERL_PLATFORM": "cpu", "HF_HUB_OFFLINE": "1", "RAY_ADDRESS": address, **SETTINGS, **settings}
    with open(log, "w") as output:
        return subprocess.Popen(
            [*host.prefix, "bash", str(kit / "train_grpo.sh"), "--skip-preflight"],
            env={**host.environment(), **wanted}, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip


def wait_for_step(process: subprocess.Popen, run_dir: Path, step: int, log: Path, limit_s: float) -> None:
    """Returns when the step is saved and its metrics, which come last, are logged."""
    deadline = time.monotonic() + limit_s
    metrics = run_dir / "metrics.jsonl"
    while newest(run_dir) < step or metrics.read_text().count("training/global_step") < step:
        assert process.poll() is None, log.read_text(errors="replace")[-6000:]
        assert time.monotonic() < deadline, log.read_text(errors="replace")[-6000:]
        time.sleep(0.5)


@pytest.fixture(scope="module")
def story(kit_root, tmp_path_factory):
    work = tmp_path_factory.mktemp("two_nodes")
    demo, first_log, second_log = work / "demo", work / "first.log", work / "second.log"
    run_dir = demo / "runs/demo/two_nodes"
    with two_sites("10.231.78") as sites:
        head, worker = (Host(site.namespace) for site in sites)
        worker.hide_kit(work / "bare")
        for host in (head, worker):
            host.defaults.update(RAY_NUM_CPUS="10", RAY_OBJECT_STORE_GB="0.3", HEAD_IP=sites[0].address)
        address = f"{sites[0].address}:6379"
        first = second = None
        try:
            for host, index in ((head, "0"), (worker, "1")):
                done = host.start("2", index)
                assert done.returncode == 0, done.stderr
            hidden = not any(Path(f"/proc/{pid}/root{kit_root}/train_grpo.sh").exists() for pid in sites[1].processes())
            first = launcher(head, kit_root, first_log, address, DEMO_DIR=str(demo), TOTAL_STEPS="50")
            wait_for_step(first, run_dir, 2, first_log, limit_s=2400)
            sites[1].lose_power(cut_network_first=True)
            lost = time.monotonic()
            first_code = first.wait(timeout=300)
            left_after = time.monotonic() - lost
            saved = newest(run_dir)
            folder = run_dir / f"ckpt/global_step_{saved}"
            saved_files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.pt"))

            sites[1].restore_network()
            done = worker.start("2", "1")
            assert done.returncode == 0, done.stderr
            second = launcher(head, kit_root, second_log, address, DEMO_DIR=str(demo), TOTAL_STEPS=str(saved + 1))
            second_code = second.wait(timeout=2400)
            yield Story(
                *sites, run_dir, hidden, first_log.read_text(errors="replace"), first_code, left_after, saved,
                saved_files, second_log.read_text(errors="replace"), second_code,
            )  # fmt: skip
        finally:
            for process in (first, second):
                if process is not None and process.poll() is None:
                    process.terminate()
                    process.wait(timeout=120)
            for host in (worker, head):
                host.close()


def addresses(log: str, actor: str, own: str) -> set[str]:
    """Where actors of that class printed something; Ray leaves the address out on the driver's node."""
    found = re.findall(rf"\({actor} pid=\d+(?:, ip=([\d.]+))?\)", log)
    return {address or own for address in found}


def test_ranks_and_replicas_are_on_both_nodes(story):
    both = {story.head.address, story.worker.address}
    for actor in ("WorkerDict", "vLLMHttpServer"):
        assert addresses(story.first_log, actor, story.head.address) == both


def test_the_worker_ran_on_what_ray_shipped(story):
    assert story.hidden
    active = [line for line in story.first_log.splitlines() if "verl-hyocr 0.1.0 on verl" in line]
    assert any(f"ip={story.worker.address}" in line and " active" in line for line in active)


def test_per_node_variables_of_the_driver_stay_there(story):
    assert re.search(r"VLLM_HOST_IP.* of this shell is not forwarded", story.first_log)


def test_actor_and_rollout_agree_across_nodes(story, steps_of):
    steps = steps_of(story.run_dir)
    assert list(steps) == list(range(1, story.saved + 2)), "the resumed run went on where the checkpoint was"
    for metrics in steps.values():
        assert metrics["rollout_corr/log_ppl_abs_diff"] < 1e-4
        assert metrics["training/rollout_actor_probs_pearson_corr"] > 0.999


def test_the_lost_node_is_named_within_a_minute(story):
    assert story.first_code == 1 and story.left_after < 60
    lines = [line for line in story.first_log.splitlines() if line.startswith("verl-hyocr: node")]
    assert f"node hyocr-1 ({story.worker.address}) is dead" in lines[-1] and "WorkerDict" in lines[-1]
    assert "start_ray.sh" in lines[-1]
    assert lines[-1] in story.first_log.splitlines()[-10:], "the reason is at the end of the log"


def test_the_last_checkpoint_is_whole(story):
    wanted = [
        f"actor/{part}_world_size_2_rank_{rank}.pt" for part in ("model", "optim", "extra_state") for rank in (0, 1)
    ]
    assert story.saved_files == sorted([*wanted, "data.pt"])
    for name in wanted:
        torch.load(story.run_dir / f"ckpt/global_step_{story.saved}" / name, weights_only=False, map_location="cpu")


def test_the_restarted_node_takes_part_again(story):
    assert story.second_code == 0, story.second_log[-6000:]
    both = {story.head.address, story.worker.address}
    assert addresses(story.second_log, "WorkerDict", story.head.address) == both
    assert os.path.isdir(story.run_dir / f"ckpt/global_step_{story.saved + 1}")
