"""Weights of Hy3 under the released names: on their way to vLLM and on disk. The tiny checkpoint has the released layout."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def model(tiny_hy3):
    from transformers.models.hy_v3 import HYV3ForCausalLM

    return HYV3ForCausalLM.from_pretrained(tiny_hy3, dtype="float32")


@pytest.fixture(scope="module")
def on_disk(tiny_hy3):
    from safetensors.torch import load_file

    return load_file(tiny_hy3 / "model.safetensors")


def test_the_rollout_gets_exactly_what_is_on_disk(model, on_disk):
    """verl's names after its own splitting of fused experts, which vLLM's loader reads."""
    import torch
    from verl.utils.model import convert_weight_keys
    from verl.workers.engine.fsdp.utils import unfuse_moe_params

    sent = dict(unfuse_moe_params(convert_weight_keys(model.state_dict(), model).items(), "hy_v3"))
    assert set(sent) == set(on_disk)
    assert all(torch.equal(sent[name], on_disk[name]) for name in sent)


def test_the_renamings_are_transformers_own():
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping
    from transformers.core_model_loading import WeightRenaming
    from verl_hyocr.adapt.weight_names import HY3_NAMES

    renamings = [item for item in get_checkpoint_conversion_mapping("hy_v3") if isinstance(item, WeightRenaming)]
    found = {
        (item.target_patterns[0].strip("."), item.source_patterns[0].replace("\\", "").strip(".")) for item in renamings
    }
    assert found == {(ours.strip("."), released.strip(".")) for ours, released in HY3_NAMES}


def test_the_routing_bias_is_there_random_and_fp32(model, on_disk):
    import torch

    biases = {name: value for name, value in on_disk.items() if name.endswith("mlp.expert_bias")}
    assert len(biases) == model.config.num_hidden_layers - 1
    assert all(value.dtype == torch.float32 and value.std() > 0 for value in biases.values())
    assert not any(name.endswith("e_score_correction_bias") for name, _ in model.named_parameters()), "no gradient"


def test_the_bias_decides_the_routing(model):
    import torch

    moe = model.model.layers[1].mlp
    hidden = torch.randn(64, model.config.hidden_size, generator=torch.Generator().manual_seed(0))
    with_bias = moe.gate(hidden, moe.e_score_correction_bias)[2].sort(dim=-1).values
    without = moe.gate(hidden, torch.zeros_like(moe.e_score_correction_bias))[2].sort(dim=-1).values
    assert not torch.equal(with_bias, without)


def test_bf16_checkpoints_keep_the_bias_in_fp32(script, tmp_path):
    import torch
    from safetensors.torch import load_file

    folder = script("build_tiny_model").build(tmp_path / "m", dtype="bfloat16", layers=2, experts=2)
    weights = load_file(folder / "model.safetensors")
    assert weights["model.layers.1.mlp.expert_bias"].dtype == torch.float32
    assert weights["model.layers.1.mlp.experts.0.down_proj.weight"].dtype == torch.bfloat16


def test_the_builder_reuses_and_refuses(script, tiny_hy3, tmp_path, capsys):
    build = script("build_tiny_model")
    before = (tiny_hy3 / "model.safetensors").stat().st_mtime_ns
    assert build.build(tiny_hy3) == tiny_hy3
    assert (tiny_hy3 / "model.safetensors").stat().st_mtime_ns == before
    (tmp_path / "mine.txt").write_text("x")
    assert build.main([str(tmp_path)]) == 2 and "choose another folder" in capsys.readouterr().err
    assert build.main([str(tmp_path / "new"), "--layers", "1"]) == 2


def test_the_config_has_both_libraries_keys(tiny_hy3):
    config = json.loads((tiny_hy3 / "config.json").read_text())
    assert config["expert_hidden_dim"] == config["moe_intermediate_size"]
    assert config["mlp_layer_types"].count("dense") == config["first_k_dense_replace"]


def test_every_id_has_a_token(tiny_hy3):
    """verl bars the rollout from ids beyond the tokenizer; any left would weigh in the actor's probabilities only."""
    from transformers import AutoTokenizer

    config = json.loads((tiny_hy3 / "config.json").read_text())
    assert len(AutoTokenizer.from_pretrained(tiny_hy3)) == config["vocab_size"]


def test_vllm_on_the_cpu_keeps_experts_unpacked():
    """Upstream repacks experts, after which no weight can be synced into them (D2.engine)."""
    code = """
from vllm.model_executor.layers.fused_moe.cpu_fused_moe import CPUFusedMOE
upstream = CPUFusedMOE.check_grouped_gemm
from verl_hyocr import vllm_plugin
vllm_plugin.register()
assert CPUFusedMOE.check_grouped_gemm is not upstream
print("UNPACKED", CPUFusedMOE.check_grouped_gemm(None, None))
"""
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "VERL_PLATFORM": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "UNPACKED (False, 'none')" in result.stdout, result.stderr[-2000:]
