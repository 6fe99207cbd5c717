"""The settings of a run: hydra overrides win over environment variables, these over the launcher's defaults."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

REPO = Path(__file__).resolve().parents[2]
A = "actor_rollout_ref"


VERL_REWARD = "verl's own rules"
"""``reward_path`` of a run without a custom reward function."""


class SettingsError(ValueError):
    """A setting cannot be read; the message names it."""


def _setting(default: Any, variable: str, *keys: str) -> Any:
    return field(default=default, metadata={"variable": variable, "keys": keys})


@dataclass(frozen=True)
class Settings:
    """What the checks look at. Each field names its variable and the hydra keys that override it.

    Lengths are in tokens, sizes of batches in prompts. A budget or count of 0 means: not set.
    """

    model_path: str = _setting("", "MODEL_PATH", f"{A}.model.path")
    train_files: tuple[str, ...] = _setting((), "TRAIN_FILES", "data.train_files")
    val_files: tuple[str, ...] = _setting((), "VAL_FILES", "data.val_files")
    image_key: str = _setting("images", "", "data.image_key")
    output_dir: str = _setting(str(REPO / "outputs"), "OUTPUT_DIR")
    project_name: str = _setting("hyocr_1_5_verl", "PROJECT_NAME", "trainer.project_name")
    experiment_name: str = _setting("hyocr_1_5_grpo", "EXPERIMENT_NAME", "trainer.experiment_name")
    ckpt_dir: str = _setting("", "", "trainer.default_local_dir")
    reward_path: str = _setting(
        str(REPO / "reward_ocr.py"),
        "REWARD_FN_PATH",
        "reward.custom_reward_function.path",
        "custom_reward_function.path",
    )
    reward_name: str = _setting(
        "compute_score_async", "REWARD_FN_NAME", "reward.custom_reward_function.name", "custom_reward_function.name"
    )

    nnodes: int = _setting(1, "NNODES", "trainer.nnodes")
    gpus_per_node: int = _setting(8, "NGPUS_PER_NODE", "trainer.n_gpus_per_node")
    start_ray: int = _setting(0, "START_RAY")
    ship_code: int = _setting(0, "SHIP_CODE")

    train_batch_size: int = _setting(128, "TRAIN_BATCH_SIZE", "data.train_batch_size")
    mini_batch_size: int = _setting(128, "PPO_MINI_BATCH_SIZE", f"{A}.actor.ppo_mini_batch_size")
    rollout_n: int = _setting(16, "ROLLOUT_N", f"{A}.rollout.n")
    max_prompt_length: int = _setting(8192, "MAX_PROMPT_LENGTH", "data.max_prompt_length")
    max_response_length: int = _setting(8192, "MAX_RESPONSE_LENGTH", "data.max_response_length")
    max_model_len: int = _setting(16384, "MAX_MODEL_LEN", f"{A}.rollout.max_model_len")
    max_batched_tokens: int = _setting(0, "", f"{A}.rollout.max_num_batched_tokens")
    max_tokens_per_gpu: int = _setting(16384, "MAX_TOKENS_PER_GPU", f"{A}.actor.ppo_max_token_len_per_gpu")
    logprob_tokens_per_gpu: int = _setting(
        16384,
        "LOGPROB_MAX_TOKENS_PER_GPU",
        f"{A}.rollout.log_prob_max_token_len_per_gpu",
        f"{A}.ref.log_prob_max_token_len_per_gpu",
    )
    use_dynamic_bsz: bool = _setting(True, "USE_DYNAMIC_BSZ", f"{A}.actor.use_dynamic_bsz")
    use_remove_padding: bool = _setting(True, "USE_REMOVE_PADDING", f"{A}.model.use_remove_padding")
    use_fused_kernels: bool = _setting(True, "USE_FUSED_KERNELS", f"{A}.model.use_fused_kernels")
    max_images: int = _setting(5, "MAX_IMAGES", f"{A}.rollout.limit_images")

    clip_ratio_low: float = _setting(0.2, "CLIP_RATIO_LOW", f"{A}.actor.clip_ratio_low")
    rollout_is: str = _setting("token", "ROLLOUT_IS", "algorithm.rollout_correction.rollout_is")
    rollout_is_threshold: str = _setting(
        "0.2_5.0", "ROLLOUT_IS_THRESHOLD", "algorithm.rollout_correction.rollout_is_threshold"
    )
    gradient_checkpointing: bool = _setting(True, "GRADIENT_CHECKPOINTING", f"{A}.model.enable_gradient_checkpointing")
    param_offload: bool = _setting(True, "PARAM_OFFLOAD", f"{A}.actor.fsdp_config.param_offload")
    optimizer_offload: bool = _setting(True, "OPTIMIZER_OFFLOAD", f"{A}.actor.fsdp_config.optimizer_offload")

    temperature: float = _setting(1.0, "TEMPERATURE", f"{A}.rollout.temperature")
    top_p: float = _setting(1.0, "TOP_P", f"{A}.rollout.top_p")
    rollout_tp: int = _setting(1, "ROLLOUT_TP", f"{A}.rollout.tensor_model_parallel_size")
    gpu_memory_utilization: float = _setting(0.6, "GPU_MEMORY_UTILIZATION", f"{A}.rollout.gpu_memory_utilization")
    max_num_seqs: int = _setting(256, "MAX_NUM_SEQS", f"{A}.rollout.max_num_seqs")
    chunked_prefill: bool = _setting(False, "ENABLE_CHUNKED_PREFILL", f"{A}.rollout.enable_chunked_prefill")
    free_cache_engine: bool = _setting(True, "FREE_CACHE_ENGINE", f"{A}.rollout.free_cache_engine")
    calculate_log_probs: bool = _setting(True, "CALCULATE_LOG_PROBS", f"{A}.rollout.calculate_log_probs")
    weight_bucket_mb: int = _setting(
        2048, "WEIGHT_BUCKET_MB", f"{A}.rollout.checkpoint_engine.update_weights_bucket_megabytes"
    )
    agent_workers: int = _setting(8, "AGENT_WORKERS", f"{A}.rollout.agent.num_workers")

    total_epochs: int = _setting(30, "TOTAL_EPOCHS", "trainer.total_epochs")
    total_steps: int = _setting(0, "TOTAL_STEPS", "trainer.total_training_steps")
    save_freq: int = _setting(25, "SAVE_FREQ", "trainer.save_freq")
    max_ckpt_to_keep: int = _setting(0, "MAX_CKPT_TO_KEEP", "trainer.max_actor_ckpt_to_keep")
    resume_mode: str = _setting("auto", "RESUME_MODE", "trainer.resume_mode")
    resume_path: str = _setting("", "", "trainer.resume_from_path")
    save_hf_model: int = _setting(1, "SAVE_HF_MODEL")
    loggers: tuple[str, ...] = _setting(("console", "tensorboard", "file"), "LOGGERS", "trainer.logger")
    storage_units: int = _setting(0, "", "transfer_queue.backend.SimpleStorage.num_data_storage_units")

    on_cpu: bool = field(default=False, metadata={"variable": "", "keys": ()})
    """verl and vLLM run on the CPU platform (``VERL_PLATFORM=cpu``)."""
    path: str = field(default="fsdp", metadata={"variable": "", "keys": ()})
    """``"fsdp"`` (HunyuanOCR, train_grpo.sh) or ``"megatron"`` (Hy3)."""

    @property
    def world(self) -> int:
        return self.nnodes * self.gpus_per_node

    @property
    def longest(self) -> int:
        """Tokens of the longest sample: prompt and response."""
        return self.max_prompt_length + self.max_response_length

    @property
    def run_dir(self) -> Path:
        return Path(self.output_dir) / self.project_name / self.experiment_name

    @property
    def checkpoints(self) -> Path:
        return Path(self.ckpt_dir) if self.ckpt_dir else self.run_dir / "ckpt"

    @property
    def uses_kit_reward(self) -> bool:
        return Path(self.reward_path).resolve() == REPO / "reward_ocr.py"

    @property
    def data_files(self) -> tuple[str, ...]:
        """Training and validation files, each once."""
        return tuple(dict.fromkeys((*self.train_files, *self.val_files)))


def variable(name: str) -> str:
    """The environment variable of a field, as remedies name it; its hydra key when it has none."""
    item = next(item for item in fields(Settings) if item.name == name)
    return item.metadata["variable"] or item.metadata["keys"][0]


def read_settings(environ: Mapping[str, str], overrides: Sequence[str] = (), path: str = "fsdp") -> Settings:
    """Settings of a run.

    Args:
        environ: usually ``os.environ``; an empty variable counts as unset.
        overrides: hydra arguments, ``key=value``; the last of a key counts. Keys that no check looks at are ignored.
        path: ``"fsdp"`` or ``"megatron"``.

    Raises:
        SettingsError: naming the variable or key whose value cannot be read.
    """
    given = dict(_split(text) for text in overrides)
    if path == "megatron":
        environ = {**_megatron_defaults(environ), **{name: text for name, text in environ.items() if text.strip()}}
    values: dict[str, Any] = {
        "path": path,
        "on_cpu": given.get("trainer.device") == "cpu" or environ.get("VERL_PLATFORM", "").strip().lower() == "cpu",
    }
    for item in fields(Settings):
        if item.name in values:
            continue
        source, text = item.metadata["variable"], environ.get(item.metadata["variable"], "").strip()
        for key in item.metadata["keys"]:
            if key in given:
                source, text = key, given[key]
        if (text and text.lower() not in ("null", "none")) or (item.name == "rollout_is" and text):
            values[item.name] = _parse(source, text, item.type)
    resume = values.get("resume_mode", "auto")
    if resume == "resume_path":
        values["resume_mode"] = values.pop("resume_path", "")
    return Settings(**values)


def _megatron_defaults(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables with the values that ``run_hy_v3_megatron.sh`` gives them when they are not set."""
    from utils.preflight import megatron

    try:
        found = megatron.settings_from_environment({**environ, "MODEL_PATH": ""})
    except ValueError as error:
        raise SettingsError(str(error)) from error
    defaults = {name: str(getattr(found, item)) for item, name in megatron.ENVIRONMENT.items()}
    # Without a function of the user's, verl scores by the row's data_source.
    return {**defaults, "PROJECT_NAME": "hy3_grpo", "EXPERIMENT_NAME": "hy3_dapo_math", "REWARD_FN_PATH": VERL_REWARD}


def _split(override: str) -> tuple[str, str]:
    key, _, text = override.partition("=")
    return key.strip().lstrip("+~"), text.strip()


def _parse(source: str, text: str, kind: str) -> Any:
    text = text.strip("'\"") if not text.startswith("[") else text
    if kind == "str":
        return text
    if kind == "bool":
        if text.lower() not in ("true", "false", "1", "0"):
            raise SettingsError(f"{source} must be True or False, got {text!r}")
        return text.lower() in ("true", "1")
    if kind.startswith("tuple"):
        try:
            read = yaml.safe_load(text) if text.startswith("[") else text.split(",")
        except yaml.YAMLError:
            raise SettingsError(f"{source} is no list: {text!r}") from None
        return tuple(str(entry).strip() for entry in read if str(entry).strip())
    number = re.fullmatch(r"-?\d+" if kind == "int" else r"-?\d*\.?\d+([eE][-+]?\d+)?", text)
    if not number:
        raise SettingsError(f"{source} must be a {'whole number' if kind == 'int' else 'number'}, got {text!r}")
    return int(text) if kind == "int" else float(text)
