"""The Megatron rules of the preflight: the published layout passes, each mistake is named with its remedy."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from utils.preflight.megatron import (
    MegatronSettings,
    ModelShape,
    check_all,
    read_model,
    settings_from_environment,
)

PUBLISHED = MegatronSettings(gpu_gib=96, host_gib=2000)


def failed(found) -> dict[str, str]:
    return {finding.name: finding.remedy for finding in found if not finding.ok}


def test_published_layout_passes_on_h20():
    assert failed(check_all(PUBLISHED)) == {}


def test_parameter_count_is_the_published_one():
    # The model card says 295B.
    assert round(ModelShape().parameters / 1e9) == 295


@pytest.mark.parametrize(
    ("change", "name", "remedy"),
    [
        ({"nodes": 12}, "world", "NNODES"),
        ({"etp": 2}, "expert world", "TRAIN_EP"),
        ({"ep": 7, "pp": 1, "cp": 1}, "experts", "TRAIN_EP"),
        ({"pp": 32, "cp": 4, "ep": 4}, "layers", "TRAIN_PP"),
        ({"tp": 128, "pp": 1, "cp": 1, "ep": 1}, "heads", "TRAIN_TP"),
        ({"etp": 5, "pp": 1}, "expert width", "TRAIN_ETP"),
        ({"max_response_length": 16384}, "model length", "MAX_MODEL_LEN to 18432"),
        ({"actor_tokens_per_gpu": 1279}, "actor budget", "ACTOR_MAX_TOKENS_PER_GPU to 1280"),
        ({"log_prob_tokens_per_gpu": 1000}, "log-prob budget", "LOGPROB_MAX_TOKENS_PER_GPU to 1280"),
        ({"mini_batch_size": 48}, "mini-batch", "PPO_MINI_BATCH_SIZE"),
        ({"cp": 1, "rollout_n": 1, "mini_batch_size": 4}, "data parallel", "multiple of 8"),
        ({"rollout_tp": 12}, "rollout GPUs", "ROLLOUT_TP"),
        ({"rollout_tp": 128}, "rollout heads", "ROLLOUT_TP"),
        ({"rollout_tp": 8}, "rollout weights", "ROLLOUT_TP to 16"),
        ({"pp": 8, "nodes": 8, "gpu_gib": 80}, "training memory", "OPTIMIZER_CPU_OFFLOAD=True"),
        ({"host_gib": 100}, "host memory", "add nodes"),
        ({"pp": 0}, "sizes", "positive"),
        ({"rollout_memory": 1.5}, "sizes", "GPU_MEMORY_UTILIZATION"),
    ],
)
def test_each_mistake_is_named_with_its_remedy(change, name, remedy):
    found = failed(check_all(replace(PUBLISHED, **change)))
    assert remedy in found[name]


def test_budget_times_cp_is_the_bound():
    # 1280 x CP 8 = 10240 = prompt + response: the smallest budget that works.
    assert failed(check_all(replace(PUBLISHED, actor_tokens_per_gpu=1280, log_prob_tokens_per_gpu=1280))) == {}


def test_uneven_stages_are_counted():
    # 80 = 4 + 14 x 5 + 6
    assert failed(check_all(replace(PUBLISHED, first_stage_layers=4, last_stage_layers=6))) == {}
    assert "layers" in failed(check_all(replace(PUBLISHED, first_stage_layers=3)))


def test_unknown_memory_is_said():
    found = {finding.name: finding for finding in check_all(MegatronSettings())}
    assert "not checked" in found["rollout weights"].message
    assert "not checked" in found["training memory"].message


def test_optimizer_on_the_host_needs_less_gpu_memory():
    tight = replace(PUBLISHED, pp=8, nodes=8, gpu_gib=80, optimizer_on_gpu=False)
    assert "training memory" not in failed(check_all(tight))


def test_settings_come_from_the_variables_of_the_script(tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "model_type": "hy_v3",
                "num_hidden_layers": 4,
                "hidden_size": 64,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "num_experts": 8,
                "first_k_dense_replace": 1,
                "expert_hidden_dim": 32,
            }
        )
    )
    found = settings_from_environment(
        {
            "NNODES": "1",
            "NGPUS_PER_NODE": "2",
            "TRAIN_PP": "2",
            "TRAIN_CP": "",
            "USE_DYNAMIC_BSZ": "False",
            "GPU_MEMORY_UTILIZATION": "0.4",
            "MAX_RESPONSE_LENGTH": "512",
            "MODEL_PATH": str(tmp_path),
        },
        gpu_gib=141.0,
    )
    assert (found.world, found.pp, found.cp, found.dynamic_batch) == (2, 2, 8, False)
    assert (found.max_model_len, found.rollout_memory, found.gpu_gib) == (2560, 0.4, 141.0)
    assert (found.model.num_layers, found.model.num_dense_layers, found.model.expert_ffn_size) == (4, 1, 32)


@pytest.mark.parametrize(
    ("variable", "value"), [("TRAIN_PP", "many"), ("USE_DYNAMIC_BSZ", "maybe"), ("GPU_MEMORY_UTILIZATION", "most")]
)
def test_a_value_that_is_no_number_names_its_variable(variable, value):
    with pytest.raises(ValueError, match=f"{variable}.*{value}"):
        settings_from_environment({variable: value})


def test_another_architecture_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ValueError, match="llama"):
        read_model(tmp_path)
    with pytest.raises(ValueError, match="MODEL_PATH"):
        read_model(tmp_path / "missing")


sizes = st.integers(min_value=1, max_value=16)


@settings(max_examples=100)
@given(tp=sizes, pp=sizes, cp=sizes, ep=sizes, etp=sizes, nodes=sizes)
def test_a_layout_that_passes_fills_the_cluster(tp, pp, cp, ep, etp, nodes):
    layout = replace(PUBLISHED, tp=tp, pp=pp, cp=cp, ep=ep, etp=etp, nodes=nodes, rollout_tp=8)
    names = failed(check_all(layout))
    assert ("world" in names) == (layout.world % (tp * pp * cp) != 0)
    assert ("expert world" in names) == (layout.world % (etp * ep * pp) != 0)
    assert ("experts" in names) == (192 % ep != 0)
    assert ("layers" in names) == (80 % pp != 0)
