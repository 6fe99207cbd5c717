"""Two FSDP ranks and two vLLM replicas on one machine, with a batch that verl pads with text-only rows."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def run_dir(launch, tmp_path_factory):
    """Two steps of 3 samples: one prompt, group size 3, on 2 ranks, so one rank gets a padding row without image."""
    work = tmp_path_factory.mktemp("two_ranks")
    result = launch(
        work,
        "data.train_batch_size=1",
        "actor_rollout_ref.actor.ppo_mini_batch_size=1",
        "actor_rollout_ref.rollout.n=3",
        NGPUS_PER_NODE="2",
        TOTAL_STEPS="2",
        SAVE_FREQ="2",
        TEST_FREQ="-1",
        EXPERIMENT_NAME="two",
    )
    assert result.returncode == 0, result.stdout[-6000:]
    return work / "demo/runs/demo/two"


def test_both_ranks_saved_their_shards(run_dir):
    actor = run_dir / "ckpt/global_step_2/actor"
    for rank in (0, 1):
        assert (actor / f"model_world_size_2_rank_{rank}.pt").is_file()


def test_two_replicas_served(run_dir):
    log = (run_dir / "stdout.log").read_text(errors="replace")
    assert "'n_gpus_per_node': 2" in log and "'tensor_model_parallel_size': 1" in log


def test_actor_and_rollout_agree_with_padding_rows(run_dir, steps_of):
    steps = steps_of(run_dir)
    assert list(steps) == [1, 2]
    for metrics in steps.values():
        assert metrics["rollout_corr/log_ppl_abs_diff"] < 1e-4
        # Three real samples of four rows: the group is one prompt's.
        assert metrics["training/rollout_actor_probs_pearson_corr"] > 0.999
