"""Environment variables that Ray workers on every node must share with the driver.

Ray workers inherit their node's environment, not the driver's, so what matters is put into the job's runtime environment. An
entry there also wins over verl's own defaults, which drop a variable such as NCCL_DEBUG when the driver has it.
"""

from __future__ import annotations

import os

from omegaconf import DictConfig, OmegaConf, open_dict

LIST_ENV = "HYOCR_FORWARD"
"""Names of further variables to forward, separated by blanks. The launcher fills in the network variables that the user
exported (utils/ray/network_allowlist.txt, B7); add others, such as a judge's API key variable, yourself."""
PREFIXES = ("HYOCR_", "JUDGE_", "RM_SYSTEM_JUDGE_", "RLB_", "WEIGHT_SYNC_", "VLLM_CPU_")
NAMES = (
    "VERL_PLATFORM",
    "VERL_FILE_LOGGER_PATH",
    "TENSORBOARD_DIR",
    "VLLM_USE_V2_MODEL_RUNNER",
    "VLLM_HOST_IP",
    "VLLM_NO_USAGE_STATS",
    "HF_HOME",
    "HF_HUB_OFFLINE",
    "PYTHONPATH",
    "OMP_NUM_THREADS",
    "PYTHONHASHSEED",
)
"""Forwarded when the driver has them; the prefixes are forwarded whole."""


def collect(environ: dict[str, str] | None = None) -> dict[str, str]:
    """The variables of ``environ`` (default: this process) that workers need."""
    environ = dict(os.environ) if environ is None else environ
    wanted = {*NAMES, *environ.get(LIST_ENV, "").split()}
    return {name: value for name, value in sorted(environ.items()) if name in wanted or name.startswith(PREFIXES)}


def forward(config: DictConfig) -> None:
    """Put :func:`collect`'s variables under ``ray_kwargs.ray_init.runtime_env.env_vars``; the user's own entries win."""
    key = "ray_kwargs.ray_init.runtime_env.env_vars"
    present = OmegaConf.select(config, key) or {}
    merged = {**collect(), **dict(present)}
    with open_dict(config):
        OmegaConf.update(config, key, merged, force_add=True)
