"""Environment variables that Ray workers on every node must share with the driver.

Ray workers inherit their node's environment, not the driver's, so what matters is put into the job's runtime environment. An
entry there also wins over verl's own defaults, which drop a variable such as NCCL_DEBUG when the driver has it.
"""

from __future__ import annotations

import atexit
import importlib.metadata
import os
import shutil
import tempfile
from pathlib import Path

from omegaconf import DictConfig, OmegaConf, open_dict

from verl_hyocr import versions

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


PER_NODE = (
    "VLLM_HOST_IP",
    "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
    "NCCL_IB_HCA",
    "UCX_NET_DEVICES",
)
"""Addresses and names of interfaces and adapters: with several nodes each node keeps what Ray was started with there
(utils/ray/start_ray.sh finds it), because the driver's are right for the driver's node only."""
SHIP_ENV = "HYOCR_SHIP"
"""Paths of packages and single-file modules, separated by colons, that nodes without the kit's folder get through Ray."""


def collect(environ: dict[str, str] | None = None, nodes: int = 1) -> dict[str, str]:
    """The variables of ``environ`` (default: this process) that the workers of a run on ``nodes`` nodes need."""
    environ = dict(os.environ) if environ is None else environ
    wanted = {*NAMES, *environ.get(LIST_ENV, "").split()}
    if nodes > 1:
        wanted -= set(PER_NODE)
    return {name: value for name, value in sorted(environ.items()) if name in wanted or name.startswith(PREFIXES)}


def withheld(environ: dict[str, str], nodes: int) -> list[str]:
    """Names in ``environ`` that would be forwarded if the run had one node only."""
    return [name for name in collect(environ, 1) if name not in collect(environ, nodes)]


def shipped_modules(paths: str) -> list[str]:
    """What ``py_modules`` of the runtime environment needs for a node that has neither the kit's folder nor the plugin.

    Args:
        paths: the value of ``SHIP_ENV``.

    Returns:
        those paths, the package ``verl_hyocr`` and its metadata: Python finds a plugin by the metadata beside it. The
        metadata is in a temporary folder that lives as long as this process.

    Raises:
        FileNotFoundError: for a path that is neither a folder nor a .py file.
    """
    found = [Path(path).absolute() for path in paths.split(":") if path]
    for path in found:
        if not path.is_dir() and not (path.is_file() and path.suffix == ".py"):
            raise FileNotFoundError(f"{SHIP_ENV} names {path}, which is neither a folder nor a .py file")
    own = importlib.metadata.distribution("verl-hyocr")
    folder = Path(tempfile.mkdtemp(prefix="hyocr-ship-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    metadata = folder / f"verl_hyocr-{own.version}.dist-info"
    metadata.mkdir()
    for name in ("METADATA", "entry_points.txt"):
        (metadata / name).write_text(own.read_text(name))
    return [str(path) for path in (Path(__file__).parent, metadata, *found)]


def forward(config: DictConfig) -> None:
    """Complete ``ray_kwargs.ray_init.runtime_env``: variables and, when ``SHIP_ENV`` is set, code.

    The user's own entries win over variables, and come first among the modules.
    """
    nodes = int(OmegaConf.select(config, "trainer.nnodes") or 1)
    key = "ray_kwargs.ray_init.runtime_env"
    present = OmegaConf.to_container(OmegaConf.select(config, key) or OmegaConf.create())
    mine = collect(nodes=nodes)
    if nodes > 1:
        mine[versions.FORK_ENV] = versions.fork()
        kept = [name for name in withheld(dict(os.environ), nodes) if name not in (present.get("env_vars") or {})]
        if kept:
            print(
                f"verl-hyocr: {', '.join(kept)} of this shell is not forwarded, every node keeps its own. To set one on all "
                f"nodes: -- +{key}.env_vars.{kept[0]}={os.environ[kept[0]]}",
                flush=True,
            )
    with open_dict(config):
        OmegaConf.update(config, f"{key}.env_vars", {**mine, **(present.get("env_vars") or {})}, force_add=True)
        if paths := os.environ.get(SHIP_ENV):
            modules = [*(present.get("py_modules") or []), *shipped_modules(paths)]
            OmegaConf.update(config, f"{key}.py_modules", modules, force_add=True)
