"""What a HunYuanVL run needs in verl's configuration, and what it must not have.

:func:`prepare` works on the composed hydra configuration in the driver: it fills in what the adaptations need where the
user left upstream's default, and refuses, with the reason, what would train on wrong numbers.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from verl_hyocr import launch_env, registry, sampling_guards, weight_check
from verl_hyocr.adapt import dropped_samples, packing
from verl_hyocr.board import BoardSettings
from verl_hyocr.health import HealthWatch
from verl_hyocr.hf import MODEL_TYPE, is_hunyuan_checkpoint, read_config

EXTERNAL_LIB = "verl_hyocr.activate"
WORKER_EXTENSION = "verl_hyocr.vllm_ext.HyocrWorkerExtension"
DEFAULT_ATTENTION = "sdpa"
DATASET = ("pkg://verl_hyocr.dataset", "HyocrDataset")


class ConfigError(ValueError):
    """The configuration cannot be trained as asked; the message lists every reason and remedy."""


def _model_config(config: DictConfig) -> dict[str, Any]:
    """Content of the actor's config.json (local folder, or hub id already in the cache); empty when there is none."""
    path = os.path.expanduser(str(OmegaConf.select(config, "actor_rollout_ref.model.path", default="") or ""))
    if os.path.isdir(path):
        return read_config(path) if is_hunyuan_checkpoint(path) else {}
    from transformers import PretrainedConfig

    try:
        return PretrainedConfig.get_config_dict(path)[0]
    except OSError:
        return {}


def is_hunyuan_run(config: DictConfig) -> bool:
    """Whether the actor's checkpoint is HunYuanVL (local folder, or hub id already in the cache)."""
    return _model_config(config).get("model_type") == MODEL_TYPE


def _get(config: DictConfig, key: str, default: Any = None) -> Any:
    return OmegaConf.select(config, key, default=default)


def _set(config: DictConfig, key: str, value: Any) -> None:
    with open_dict(config):
        OmegaConf.update(config, key, value, force_add=True)


def is_our_extension(name: str) -> bool:
    """Whether a dotted class name is (a subclass of) the fork's worker extension; our own is not imported for that."""
    if name == WORKER_EXTENSION:
        return True
    from verl_hyocr.vllm_ext import HyocrWorkerExtension

    module, _, attribute = name.rpartition(".")
    candidate = getattr(importlib.import_module(module), attribute, None)
    return isinstance(candidate, type) and issubclass(candidate, HyocrWorkerExtension)


def refusals(config: DictConfig) -> list[str]:
    """Reasons why this configuration would train HunYuanVL on wrong numbers, one line each, with the remedy."""
    found = []

    def refuse(condition: Any, message: str) -> None:
        if condition:
            found.append(message)

    model = "actor_rollout_ref.model"
    packed = _get(config, f"{model}.use_remove_padding")
    attention = _get(config, f"{model}.override_config.attn_implementation") or DEFAULT_ATTENTION
    refuse(
        packed and registry.is_disabled("C1"),
        f"{model}.use_remove_padding=True while {registry.DISABLE_ENV} switches C1 off: packed samples would attend to each "
        "other on HunYuanVL (log-probs off by 1e-3 and more, silently). Set it to False, or leave C1 on.",
    )
    refuse(
        packed and not packing.supports(attention),
        f"{model}.use_remove_padding=True with attn_implementation={attention}: packed samples are kept apart under sdpa and "
        f"flash_attention_2 only. Set +{model}.override_config.attn_implementation=sdpa, or use_remove_padding to False.",
    )
    refuse(
        _get(config, f"{model}.use_fused_kernels") and registry.is_disabled("P2"),
        f"{model}.use_fused_kernels=True while {registry.DISABLE_ENV} switches P2 off: upstream's fused forward does not know "
        "this vision-language model. Set it to False, or leave P2 on.",
    )
    refuse(_get(config, f"{model}.use_liger"), f"{model}.use_liger=True is not adapted to HunYuanVL. Set it to False.")
    for part in ("actor", "ref"):
        for key in (
            f"actor_rollout_ref.{part}.ulysses_sequence_parallel_size",
            f"actor_rollout_ref.{part}.fsdp_config.ulysses_sequence_parallel_size",
        ):
            refuse(
                (_get(config, key) or 1) > 1,
                f"{key}>1: Ulysses splits positions that HunYuanVL's attention needs whole. Set it to 1.",
            )
    strategy = _get(config, "actor_rollout_ref.actor.strategy")
    refuse(
        strategy not in ("fsdp", "fsdp2"),
        f"actor_rollout_ref.actor.strategy={strategy}: HunYuanVL is adapted for fsdp2 (and fsdp) only.",
    )
    rollout = _get(config, "actor_rollout_ref.rollout.name")
    refuse(rollout != "vllm", f"actor_rollout_ref.rollout.name={rollout}: HunYuanVL rollouts run on vllm only.")
    extra = _get(config, "data.mm_processor_kwargs") or {}
    engine_extra = _get(config, "actor_rollout_ref.rollout.engine_kwargs.vllm.mm_processor_kwargs") or {}
    for name, kwargs in (("data.mm_processor_kwargs", extra), ("engine_kwargs.vllm.mm_processor_kwargs", engine_extra)):
        refuse(
            kwargs.get("use_fast") or kwargs.get("backend") == "torchvision",
            f"{name} asks for the torchvision image processor, which orders patches wrongly for this model in "
            "transformers 5.13. Use backend=pil.",
        )
    refuse(
        os.environ.get("VLLM_USE_V2_MODEL_RUNNER", "0") != "0",
        "VLLM_USE_V2_MODEL_RUNNER is set: vLLM 0.25's second model runner cannot run HunYuanVL. Unset it.",
    )
    extension = _get(config, "actor_rollout_ref.rollout.engine_kwargs.vllm.worker_extension_cls")
    refuse(
        extension is not None and not is_our_extension(extension),
        f"engine_kwargs.vllm.worker_extension_cls={extension} does not derive from {WORKER_EXTENSION}: the rollout would keep "
        "old position tables after a weight sync (A6). Derive your class from it.",
    )
    lengths = [_get(config, "data.max_prompt_length") or 0, _get(config, "data.max_response_length") or 0]
    model_length = _get(config, "actor_rollout_ref.rollout.max_model_len")
    refuse(
        model_length is not None and model_length < sum(lengths),
        f"actor_rollout_ref.rollout.max_model_len={model_length} is below prompt + response = {sum(lengths)}. "
        f"Set it to {sum(lengths)} or more.",
    )
    for check in (
        HealthWatch.from_env,
        BoardSettings.from_env,
        weight_check.check_settings,
        lambda: sampling_guards.config_defaults(config, _model_config(config)),
    ):
        try:
            check()
        except ValueError as error:
            found.append(str(error))
    return found + dropped_samples.config_refusals(config)


def complete(config: DictConfig) -> list[str]:
    """Fill in what the adaptations need where the user left upstream's default; returns what was set."""
    wanted = {
        "actor_rollout_ref.model.external_lib": EXTERNAL_LIB,
        "actor_rollout_ref.rollout.engine_kwargs.vllm.worker_extension_cls": WORKER_EXTENSION,
        "actor_rollout_ref.rollout.engine_kwargs.vllm.mm_processor_kwargs": {"backend": "pil"},
        "data.custom_cls.path": DATASET[0],
        "data.custom_cls.name": DATASET[1],
        "data.return_raw_chat": True,
        "actor_rollout_ref.model.override_config.attn_implementation": DEFAULT_ATTENTION,
    }
    done = []
    for key, value in wanted.items():
        current = _get(config, key)
        empty = current is None or current == {} or (key == "data.return_raw_chat" and not current)
        if empty:
            _set(config, key, value)
            done.append(f"{key}={value}")
    guards = sampling_guards.config_defaults(config, _model_config(config))
    for key, value in {**dropped_samples.config_defaults(config), **guards}.items():
        _set(config, key, value)
        done.append(f"{key}={value}")
    return done


def prepare(config: DictConfig) -> None:
    """Complete and check the configuration of a HunYuanVL run; leaves other models alone but for the environment.

    Raises:
        ConfigError: with every reason, before anything was started.
    """
    launch_env.forward(config)
    if not is_hunyuan_run(config):
        return
    found = refusals(config)
    if found:
        raise ConfigError("this configuration would not train HunyuanOCR correctly:\n  - " + "\n  - ".join(found))
    for line in complete(config):
        print(f"verl-hyocr sets {line}", flush=True)
