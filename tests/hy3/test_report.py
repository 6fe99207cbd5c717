"""The report of a finished run: what it accepts and what it calls a failure."""

from __future__ import annotations

import json
import shutil

import pytest


@pytest.fixture
def run(tmp_path, tiny_hy3):
    """A run's folder with two good steps and an export in which one expert moved."""
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "run"
    export = folder / "ckpt/global_step_10/actor/huggingface"
    shutil.copytree(tiny_hy3, export)
    (folder / "ckpt/global_step_9/actor/huggingface").mkdir(parents=True)
    weights = load_file(export / "model.safetensors")
    weights["model.layers.1.mlp.experts.0.down_proj.weight"] += 0.01
    save_file(weights, export / "model.safetensors", metadata={"format": "pt"})
    write_metrics(folder, [0.001, 0.002])
    return folder


def write_metrics(folder, gaps, norm=1.0):
    lines = [{"step": 0, "data": {"val/x": 1}}]
    for step, gap in enumerate(gaps, 1):
        data = {"training/global_step": step, "training/rollout_probs_diff_mean": gap, "actor/grad_norm": norm}
        lines.append({"step": step, "data": data})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def change_export(run, change):
    from safetensors.torch import load_file, save_file

    file = run / "ckpt/global_step_10/actor/huggingface/model.safetensors"
    weights = load_file(file)
    change(weights)
    save_file(weights, file, metadata={"format": "pt"})


def test_a_good_run(script, run, tiny_hy3, capsys):
    report = script("report_run").judge(run, tiny_hy3, 0.015)
    assert report["failures"] == [] and report["steps"] == 2
    assert report["weights"]["moved"] == 1 and report["weights"]["biases"] == 3
    assert report["reload"]["loads"] is True
    assert script("report_run").main([str(run), "--start", str(tiny_hy3)]) == 0
    assert "all well" in capsys.readouterr().out


def test_a_gap_is_a_failure(script, run, tiny_hy3):
    write_metrics(run, [0.001, 0.02])
    assert "actor and rollout differ" in script("report_run").judge(run, tiny_hy3, 0.015, reload=False)["failures"][0]


def test_no_gradient_is_a_failure(script, run, tiny_hy3):
    write_metrics(run, [0.001], norm=0.0)
    assert script("report_run").judge(run, tiny_hy3, 0.015, reload=False)["failures"] == ["no step had a gradient"]


def test_a_changed_bias_is_a_failure(script, run, tiny_hy3, capsys):
    change_export(run, lambda weights: weights["model.layers.2.mlp.expert_bias"].add_(1e-7))
    assert script("report_run").main([str(run), "--start", str(tiny_hy3), "--json", "--no-reload"]) == 1
    failures = json.loads(capsys.readouterr().out)["failures"]
    assert failures == ["routing biases changed: ['model.layers.2.mlp.expert_bias']"]


def test_a_missing_tensor_is_a_failure(script, run, tiny_hy3):
    change_export(run, lambda weights: weights.pop("model.norm.weight"))
    failures = script("report_run").judge(run, tiny_hy3, 0.015, reload=False)["failures"]
    assert failures == ["the export has other tensors than the start checkpoint"]


def test_an_export_that_does_not_load_is_a_failure(script, run, tiny_hy3):
    (run / "ckpt/global_step_10/actor/huggingface/config.json").write_text("{}")
    assert any("does not load" in line for line in script("report_run").judge(run, tiny_hy3, 0.015)["failures"])


def test_nothing_to_judge(script, tmp_path, capsys):
    assert script("report_run").main([str(tmp_path)]) == 2
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "data": {}}\n')
    assert script("report_run").main([str(tmp_path)]) == 2
    assert "no training step" in capsys.readouterr().err
