"""The embedded demo, as a user runs it: train, validate, save, resume, load the export. One run serves all tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fork import rlb_ui

HERE = Path(__file__).parent


def read_metrics(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def demo(launch, tmp_path_factory) -> Path:
    """Three steps, then a second start that resumes for a fourth. Returns the working folder."""
    work = tmp_path_factory.mktemp("demo")
    first = launch(work)
    assert first.returncode == 0, first.stdout[-6000:]
    (work / "after_three.jsonl").write_bytes((work / "demo/runs/demo/tiny/metrics.jsonl").read_bytes())
    second = launch(work, TOTAL_STEPS="4", SAVE_FREQ="4", TEST_FREQ="-1")
    assert second.returncode == 0, second.stdout[-6000:]
    return work


@pytest.fixture(scope="module")
def run_dir(demo) -> Path:
    return demo / "demo/runs/demo/tiny"


def test_says_that_it_is_the_demo(demo):
    assert "MODEL_PATH and TRAIN_FILES are not set: running the embedded demo" in (demo / "launcher.log").read_text()


def test_artefacts_are_where_the_readme_says(run_dir):
    for name in ("ckpt", "tensorboard", "metrics.jsonl", "stdout.log", "rl_logging_board"):
        assert (run_dir / name).exists(), name
    assert any((run_dir / "tensorboard").iterdir())
    actor = run_dir / "ckpt/global_step_3/actor"
    for name in ("model", "optim", "extra_state"):
        assert (actor / f"{name}_world_size_1_rank_0.pt").is_file()
    assert (actor / "fsdp_config.json").is_file() and (actor / "huggingface/model.safetensors").is_file()


def test_actor_and_rollout_agree_at_every_step(run_dir, steps_of):
    steps = steps_of(run_dir)
    assert list(steps) == [1, 2, 3, 4]
    for number, metrics in steps.items():
        assert metrics["rollout_corr/log_ppl_abs_diff"] < 1e-4, number
        assert metrics["training/rollout_actor_probs_pearson_corr"] > 0.999


def test_it_really_trains(run_dir, steps_of):
    steps = steps_of(run_dir).values()
    assert any(step["critic/score/max"] > step["critic/score/min"] for step in steps), "rewards vary within the run"
    assert any(step["actor/grad_norm"] > 0 for step in steps)


def test_health_is_watched_without_false_alarm(run_dir, steps_of):
    for number, metrics in steps_of(run_dir).items():
        names = ("logprob_gap", "entropy", "truncated_share", "repetition_share", "zero_variance_share")
        assert all(f"hyocr/health/{name}" in metrics for name in names), number
        assert 0 <= metrics["hyocr/health/reward_time_share"] < 1 and metrics["hyocr/health/reward_seconds_max"] > 0
        assert metrics["hyocr/health/nonfinite"] == 0 == metrics["hyocr/health/alarms"], number
    assert "docs/health.md" not in (run_dir / "stdout.log").read_text()


def test_samples_of_every_step_load_in_rl_logging_board(demo, run_dir, steps_of):
    folder = run_dir / "rl_logging_board"
    assert sorted(path.name for path in folder.iterdir()) == [f"step_{number}.jsonl" for number in (1, 2, 3, 4)]
    columns = rlb_ui.load(folder)
    for number, metrics in steps_of(run_dir).items():
        rows = [json.loads(line) for line in (folder / f"step_{number}.jsonl").read_text().splitlines()]
        assert len(rows) == 16 and {row["data_source"] for row in rows} <= {"Parsing", "Spotting", "IE"}
        assert {row["group_size"] for row in rows} == {4}
        assert sum(row["reward"] for row in rows) / 16 == pytest.approx(metrics["critic/rewards/mean"], abs=1e-6)
        assert max(max(row["advantages"]) for row in rows) == pytest.approx(metrics["critic/advantages/max"], abs=1e-5)
        lengths = [row["response_length"] for row in rows]
        assert sum(lengths) / 16 == pytest.approx(metrics["response_length/mean"])
        for row in rows:
            assert "".join(row["response_tokens"]) == row["response"]
            assert len(row["response_tokens"]) == len(row["logprobs"]) == row["response_length"]
            assert row["logprobs"] == pytest.approx(row["rollout_logprobs"], abs=1e-3)
            assert Path(row["img_path"]).is_file() and row["ground_truth"] and row["prompt"].startswith("&lt;image&gt;")
            assert row["task_type"] == row["scores"]["task"] and row["scores"]["valid"] == 1.0 and not row["dropped"]
        # Before the first update policy and reference are the same model.
        gap = max(abs(value) for one in columns[number]["log_ratio"] for value in one)
        assert gap < 1e-4 if number == 1 else gap > 0
    assert "RLLoggingBoard" not in (run_dir / "stdout.log").read_text(), "nothing went wrong"


def test_validation_ran(run_dir):
    keys = {key for record in read_metrics(run_dir) for key in record["data"]}
    assert any(key.startswith("val-core/Parsing/") for key in keys)


def test_resume_continues_and_keeps_the_history(demo, run_dir):
    before = (demo / "after_three.jsonl").read_text().splitlines()
    after = (run_dir / "metrics.jsonl").read_text().splitlines()
    assert after[: len(before)] == before
    assert json.loads(after[-1])["step"] == 4
    assert (run_dir / "ckpt/latest_checkpointed_iteration.txt").read_text().strip() == "4"
    assert (run_dir / "stdout.log").read_text().count("verl_hyocr.main") >= 2, "both starts are in stdout.log"


def test_activation_line_in_driver_log(run_dir):
    assert "A1 A2 A3 A4 A5" in (run_dir / "stdout.log").read_text()


def test_vision_tower_was_trained(demo, run_dir):
    from safetensors.torch import load_file

    start = load_file(demo / "demo/model/model.safetensors")
    end = load_file(run_dir / "ckpt/global_step_3/actor/huggingface/model.safetensors")
    assert set(start) == set(end), "the export has the released names"
    assert all(start[name].shape == end[name].shape for name in start)
    for part in ("vit.", "model."):
        moved = max(
            (end[name].float() - start[name].float()).abs().max().item() for name in start if name.startswith(part)
        )
        assert moved > 0, f"{part} did not move"


def test_export_has_the_released_config(demo, run_dir):
    exported = json.loads((run_dir / "ckpt/global_step_3/actor/huggingface/config.json").read_text())
    assert exported == json.loads((demo / "demo/model/config.json").read_text())


def test_export_answers_alike_in_transformers_and_vllm(demo, run_dir):
    model = run_dir / "ckpt/global_step_3/actor/huggingface"
    images = [str(path) for path in sorted((demo / "demo/data/images").glob("*.png"))[:3]]
    answers = {}
    for engine in ("transformers", "vllm"):
        result = subprocess.run(
            [sys.executable, str(HERE / "greedy.py"), engine, str(model), *images],
            env={**os.environ, "VERL_PLATFORM": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert result.returncode == 0, result.stderr[-4000:]
        line = next(line for line in result.stdout.splitlines() if line.startswith("ANSWERS "))
        answers[engine] = json.loads(line.removeprefix("ANSWERS "))
    assert answers["transformers"] == answers["vllm"]
    assert len({json.dumps(answer) for answer in answers["vllm"]}) >= 1 and all(answers["vllm"])
