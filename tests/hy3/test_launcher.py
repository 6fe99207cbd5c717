"""The launcher: published values, every algorithm against the pinned verl's Megatron configuration, refusals."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

A = "actor_rollout_ref"
T = f"{A}.actor.megatron.override_transformer_config"

# The published run: 16 nodes x 8 H20. Keys are those of the pinned verl.
PUBLISHED = {
    "trainer.nnodes": 16,
    "trainer.n_gpus_per_node": 8,
    f"{A}.actor.strategy": "megatron",
    f"{A}.actor.megatron.use_mbridge": True,
    f"{A}.actor.megatron.vanilla_mbridge": False,
    f"{A}.actor.megatron.tensor_model_parallel_size": 1,
    f"{A}.actor.megatron.pipeline_model_parallel_size": 16,
    f"{A}.actor.megatron.expert_model_parallel_size": 8,
    f"{A}.actor.megatron.context_parallel_size": 8,
    f"{A}.actor.megatron.expert_tensor_parallel_size": 1,
    f"{A}.actor.megatron.param_offload": True,
    f"{A}.actor.megatron.optimizer_offload": True,
    f"{A}.ref.megatron.context_parallel_size": 8,
    f"{A}.actor.ppo_micro_batch_size_per_gpu": 2,
    f"{A}.actor.use_dynamic_bsz": True,
    f"{A}.actor.ppo_max_token_len_per_gpu": 30720,
    f"{A}.ref.log_prob_max_token_len_per_gpu": 40960,
    f"{A}.rollout.log_prob_max_token_len_per_gpu": 40960,
    f"{T}.recompute_granularity": "full",
    f"{T}.recompute_method": "uniform",
    f"{T}.recompute_num_layers": 1,
    f"{T}.moe_router_enable_expert_bias": True,
    f"{T}.moe_router_bias_update_rate": 0,
    f"{T}.moe_router_load_balancing_type": "none",
    f"{T}.moe_grouped_gemm": True,
    f"{T}.moe_permute_fusion": True,
    f"{A}.rollout.name": "vllm",
    f"{A}.rollout.tensor_model_parallel_size": 16,
    f"{A}.rollout.gpu_memory_utilization": 0.65,
    f"{A}.rollout.n": 16,
    f"{A}.rollout.enable_chunked_prefill": True,
    f"{A}.rollout.max_model_len": 10240,
    f"{A}.rollout.temperature": 0.9,
    f"{A}.rollout.top_p": 1.0,
    "data.train_batch_size": 128,
    f"{A}.actor.ppo_mini_batch_size": 128,
    "data.max_prompt_length": 2048,
    "data.max_response_length": 8192,
    "data.trust_remote_code": True,
    f"{A}.model.trust_remote_code": True,
    "reward.reward_manager.name": "dapo",
    "reward.reward_kwargs.overlong_buffer_cfg.enable": True,
    "reward.reward_kwargs.overlong_buffer_cfg.len": 4096,
    "reward.reward_kwargs.overlong_buffer_cfg.penalty_factor": 1.0,
    "reward.reward_kwargs.max_resp_len": 8192,
    "algorithm.adv_estimator": "grpo",
    "algorithm.norm_adv_by_std_in_grpo": False,
    f"{A}.actor.clip_ratio_low": 0.2,
    f"{A}.actor.clip_ratio_high": 0.28,
    f"{A}.actor.clip_ratio_c": 10.0,
    f"{A}.actor.use_kl_loss": False,
    f"{A}.actor.loss_agg_mode": "seq-mean-token-mean",
    "algorithm.rollout_correction.rollout_is": "token",
    "algorithm.rollout_correction.rollout_is_threshold": "0.5_4.0",
    f"{A}.actor.optim.lr": 1e-6,
}
ESTIMATORS = [
    "gae",
    "grpo",
    "grpo_vectorized",
    "grpo_passk",
    "rloo",
    "rloo_vectorized",
    "remax",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "opo",
    "gpg",
    "optimal_token_baseline",
    "tir_optimal_token_baseline",
]
LOSSES = ["vanilla", "gspo", "cispo", "clip_cov", "kl_cov", "geo_mean", "gpg", "sapo", "dppo_tv", "dppo_kl"]


def overrides(launcher, **settings: str) -> list[str]:
    result = launcher("--print-overrides", **settings)
    assert result.returncode == 0, result.stderr
    return [line for line in result.stdout.splitlines() if "=" in line]


@pytest.fixture(scope="module")
def compose():
    """Compose, complete and validate as ``verl.trainer.main_ppo`` does; unknown keys raise."""
    from verl_hyocr.dry_run import compose

    return compose


@pytest.fixture(scope="module")
def default_config(launcher, compose, tiny_hy3):
    return compose(overrides(launcher, MODEL_PATH=str(tiny_hy3)))


def test_published_values_are_the_defaults(default_config):
    from omegaconf import OmegaConf

    found = {key: OmegaConf.select(default_config, key) for key in PUBLISHED}
    assert found == PUBLISHED


def test_the_reference_follows_the_actors_layout(default_config):
    actor, ref = default_config.actor_rollout_ref.actor.megatron, default_config.actor_rollout_ref.ref.megatron
    for name in ("pipeline_model_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size"):
        assert ref[name] == actor[name]
    assert ref.override_transformer_config == actor.override_transformer_config


def test_the_vision_guard_leaves_a_text_model_alone(default_config):
    assert default_config.actor_rollout_ref.model.external_lib is None
    assert default_config.trainer.v1.trainer_mode == "sync"
    assert default_config.data.custom_cls.path is None


def test_the_lists_are_verls(launcher):
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY

    # gdpo needs a list of reward keys; bypass_mode and dro need settings of their own: with `--`, not by one variable.
    assert set(map(str, ADV_ESTIMATOR_REGISTRY)) - {"gdpo"} == set(ESTIMATORS)
    assert set(POLICY_LOSS_REGISTRY) - {"bypass_mode", "dro"} == set(LOSSES)


# Every estimator once, and every loss with it.
@pytest.mark.parametrize(("estimator", "loss"), zip(ESTIMATORS, itertools.cycle(LOSSES)))
def test_every_algorithm_composes_and_carries_hy3s_keys(launcher, compose, tiny_hy3, estimator, loss):
    from verl.trainer.ppo.utils import need_critic

    config = compose(overrides(launcher, MODEL_PATH=str(tiny_hy3), ADV_ESTIMATOR=estimator, LOSS_MODE=loss))
    assert config.algorithm.adv_estimator == estimator
    assert config.actor_rollout_ref.actor.policy_loss.loss_mode == loss
    parts = [config.actor_rollout_ref.actor] + ([config.critic] if need_critic(config) else [])
    assert len(parts) == (2 if estimator == "gae" else 1)
    for part in parts:
        assert part.megatron.use_mbridge and not part.megatron.vanilla_mbridge
        transformer = part.megatron.override_transformer_config
        assert transformer.moe_router_enable_expert_bias is True
        assert transformer.moe_router_bias_update_rate == 0
        assert transformer.moe_router_load_balancing_type == "none"
        assert transformer.moe_grouped_gemm is True
    # These need what only verl's older trainer computes.
    assert config.trainer.use_v1 == (estimator not in ("remax", "optimal_token_baseline", "tir_optimal_token_baseline"))


def test_every_setting_reaches_the_configuration(launcher, compose, tiny_hy3):
    """Switches that are off by default, all at once."""
    config = compose(
        overrides(
            launcher,
            MODEL_PATH=str(tiny_hy3),
            OPTIMIZER_CPU_OFFLOAD="True",
            FIRST_STAGE_LAYERS="4",
            LAST_STAGE_LAYERS="6",
            RECOMPUTE_GRANULARITY="none",
            GRADIENT_ACCUMULATION_FUSION="False",
            TRANSFORMER_IMPL="local",
            USE_KL_LOSS="True",
            KL_LOSS_COEF="0.001",
            REWARD_FN_PATH=str(Path(__file__)),
            MAX_CKPT_TO_KEEP="2",
            SAVE_HF_MODEL="0",
            USE_DYNAMIC_BSZ="False",
        )
    )
    actor = config.actor_rollout_ref.actor
    assert actor.optim.override_optimizer_config.optimizer_cpu_offload is True
    transformer = actor.megatron.override_transformer_config
    assert (transformer.num_layers_in_first_pipeline_stage, transformer.num_layers_in_last_pipeline_stage) == (4, 6)
    assert transformer.recompute_granularity is None and transformer.transformer_impl == "local"
    assert transformer.gradient_accumulation_fusion is False
    assert actor.use_kl_loss and actor.kl_loss_coef == 0.001
    assert config.reward.custom_reward_function.path == __file__
    assert list(actor.checkpoint.save_contents) == ["model", "optimizer", "extra"]
    assert config.trainer.max_actor_ckpt_to_keep == 2


def test_an_unknown_key_is_refused(launcher, compose):
    from hydra.errors import ConfigCompositionException

    lines = overrides(launcher, MODEL_PATH="/none")
    with pytest.raises(ConfigCompositionException, match="grad_offload"):
        compose([*lines, "actor_rollout_ref.actor.megatron.grad_offload=True"])


def test_fsdp2_composes_with_the_same_algorithm(launcher, compose, tiny_hy3):
    config = compose(overrides(launcher, BACKEND="fsdp2", VERL_PLATFORM="cpu", MODEL_PATH=str(tiny_hy3)))
    assert config.actor_rollout_ref.actor.strategy == "fsdp2"
    same = [key for key in PUBLISHED if key.startswith(("algorithm.", "reward.", "data."))]
    from omegaconf import OmegaConf

    assert {key: OmegaConf.select(config, key) for key in same} == {key: PUBLISHED[key] for key in same}
    assert config.actor_rollout_ref.actor.clip_ratio_c == 10.0


def test_help_lists_every_setting(launcher):
    result = launcher("--help")
    assert result.returncode == 0
    for name in ("DATA_DIR", "MODEL_PATH", "TRAIN_PP", "MOE_BIAS_UPDATE_RATE", "ADV_ESTIMATOR", "LOSS_MODE"):
        assert f"  {name} " in result.stdout


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"TRAIN_PP": "many"}, "TRAIN_PP must be a positive integer"),
        ({"ADV_ESTIMATOR": "ppo"}, "ADV_ESTIMATOR must be one of"),
        ({"LOSS_MODE": "none"}, "LOSS_MODE must be one of"),
        ({"PARAM_OFFLOAD": "yes"}, "PARAM_OFFLOAD must be True or False"),
        ({"GRAD_OFFLOAD": "False"}, "frees gradient buffers with PARAM_OFFLOAD"),
        ({"MAX_MODEL_LEN": "10239"}, "set it to 10240"),
        ({"OVERLONG_BUFFER_LEN": "9000"}, "OVERLONG_BUFFER_LEN=9000 is longer"),
        ({"PPO_MINI_BATCH_SIZE": "48"}, "must divide TRAIN_BATCH_SIZE"),
        ({"TRAIN_EP": "7"}, "this layout cannot run"),
        ({"ROLLOUT_TP": "8", "GPU_MEMORY_GIB": "96"}, "this layout cannot run"),
        ({"REWARD_FN_PATH": "/no/such.py"}, "does not exist"),
        ({"RESUME_MODE": "newest"}, "RESUME_MODE must be auto, disable"),
    ],
)
def test_wrong_settings_end_with_the_reason(launcher, settings, message):
    result = launcher("--dry-run", **settings)
    assert result.returncode == 2
    assert message in result.stderr


def test_a_run_needs_model_and_data(launcher, tmp_path):
    assert "MODEL_PATH is not set" in launcher().stderr
    (tmp_path / "config.json").write_text("{}")
    result = launcher(MODEL_PATH=str(tmp_path), DATA_DIR=str(tmp_path))
    assert result.returncode == 2
    assert "dapo-math-17k.parquet" in result.stderr and "prepare_data.py" in result.stderr


def test_megatron_is_refused_without_gpus(launcher, tiny_hy3):
    file = str(Path(__file__))
    result = launcher(VERL_PLATFORM="cpu", PREFLIGHT="0", MODEL_PATH=str(tiny_hy3), TRAIN_FILES=file, VAL_FILES=file)
    assert result.returncode == 2
    assert "only BACKEND=fsdp2 runs" in result.stderr


def test_thawed_routing_bias_is_warned_about(launcher):
    assert "WARNING: Hy3 was trained with" in launcher("--print-overrides", MOE_BIAS_UPDATE_RATE="0.001").stdout


def test_an_unknown_argument_names_the_separator(launcher):
    result = launcher("trainer.save_freq=5")
    assert result.returncode == 2 and "go after --" in result.stderr


def test_names_are_megatrons():
    """Keys below override_transformer_config are free-form for hydra; Megatron's own class knows them."""
    pytest.importorskip("megatron.core", reason="Megatron is not installed (requirements/hy3.txt, Python 3.12, GPU)")
    import re
    from dataclasses import fields

    from megatron.core.transformer import TransformerConfig

    known = {field.name for field in fields(TransformerConfig)}
    text = (Path(__file__).resolve().parents[2] / "verl/examples/grpo_trainer/run_hy_v3_megatron.sh").read_text()
    used = set(re.findall(r"\$T\.(\w+)=", text)) - {"attention_backend"}
    assert used <= known
