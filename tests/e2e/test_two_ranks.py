"""Two FSDP ranks and two vLLM replicas on one machine, with dropped samples, so that verl pads with text-only rows."""

from __future__ import annotations

import pytest

# Every fifth sample has no score: 3 of a step's 16 are dropped, 13 are left, and two ranks need an even number of rows.
REWARD = """
calls = 0


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    global calls
    calls += 1
    valid = float(calls % 5 != 0)
    score = solution_str.count("1") / 16 if valid else -1.0
    return {"score": score, "valid": valid, "task": "Parsing", "decision": "scored" if valid else "scorer_error"}
"""

# Read by every Python process of the run at its start: notes who opens weight files.
SITE = """
import safetensors

upstream = safetensors.safe_open


def safe_open(filename, *args, **kwargs):
    with open("/proc/self/cmdline") as file:
        title = file.read().replace(chr(0), " ").strip()
    import os

    with open({log!r}, "a") as file:
        file.write(f"{{os.getpid()}} {{title}}\\n")
    return upstream(filename, *args, **kwargs)


safetensors.safe_open = safe_open
"""


@pytest.fixture(scope="module")
def run_dir(launch, tmp_path_factory):
    work = tmp_path_factory.mktemp("two_ranks")
    (work / "reward.py").write_text(REWARD)
    (work / "site").mkdir()
    (work / "site/sitecustomize.py").write_text(SITE.format(log=str(work / "readers")))
    result = launch(
        work,
        NGPUS_PER_NODE="2",
        TOTAL_STEPS="2",
        SAVE_FREQ="2",
        TEST_FREQ="-1",
        EXPERIMENT_NAME="two",
        REWARD_FN_PATH=str(work / "reward.py"),
        REWARD_FN_NAME="compute_score",
        PYTHONPATH=str(work / "site"),
        WEIGHT_SYNC_CHECK_EVERY="1",
        WEIGHT_SYNC_STRICT="1",
    )
    assert result.returncode == 0, result.stdout[-6000:]
    return work / "demo/runs/demo/two"


def test_both_ranks_saved_their_shards(run_dir):
    actor = run_dir / "ckpt/global_step_2/actor"
    for rank in (0, 1):
        assert (actor / f"model_world_size_2_rank_{rank}.pt").is_file()


def test_two_replicas_served(run_dir):
    log = (run_dir / "stdout.log").read_text(errors="replace")
    replicas = {line.split("pid=")[1].split(")")[0] for line in log.splitlines() if "vLLMHttpServer pid=" in line}
    assert len(replicas) == 2


def test_samples_were_dropped_so_that_rows_were_padded(run_dir, steps_of):
    for metrics in steps_of(run_dir).values():
        assert metrics["hyocr/dropped/total"] >= 3
        assert metrics["hyocr/dropped/Parsing/scorer_error"] == 3


def test_actor_and_rollout_agree_with_padding_rows(run_dir, steps_of):
    steps = steps_of(run_dir)
    assert list(steps) == [1, 2]
    for metrics in steps.values():
        assert metrics["rollout_corr/log_ppl_abs_diff"] < 1e-4
        assert metrics["training/rollout_actor_probs_pearson_corr"] > 0.999
        assert metrics["actor/grad_norm"] > 0


def test_one_worker_read_the_checkpoint_and_no_engine_did(run_dir):
    lines = (run_dir.parents[3] / "readers").read_text().splitlines()
    readers = {line for line in lines if "ray::" in line or "VLLM" in line or "multiprocessing" in line}
    assert len({line.split()[0] for line in readers}) == 1, sorted(readers)
    assert "ray::" in readers.pop()


def test_every_weight_sync_reached_both_engines_unchanged(run_dir):
    log = (run_dir / "stdout.log").read_text(errors="replace")
    assert log.count("tensors reached 2 engine worker(s) unchanged, every engine weight was written") == 3
