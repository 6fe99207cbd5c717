"""Samples memory and Ray's object store while a run goes on, in a thread of the benchmark's own process."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import psutil

MARKER = "GPU_STEP_RUN"
"""Environment variable of all processes of a run."""
GB = 1024**3
CREATED = re.compile(r"num bytes created total: (\d+)")
TAIL_BYTES = 1 << 20


def run_processes(marker: str) -> list[psutil.Process]:
    """Processes whose environment carries the marker, and their descendants (Ray's workers overwrite theirs)."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARKER) == marker:
                found[process.pid] = process
    for process in list(found.values()):
        with contextlib.suppress(psutil.Error):
            for child in process.children(recursive=True):
                found.setdefault(child.pid, child)
    return list(found.values())


def run_memory_gb(marker: str) -> float:
    """Proportional memory (PSS) of the run's processes: shared pages are counted once."""
    total = 0
    for process in run_processes(marker):
        with contextlib.suppress(psutil.Error, OSError):
            total += process.memory_full_info().pss
    return total / GB


def created_bytes(raylet_log: Path) -> int | None:
    """Bytes ever created in the object store, from the newest dump in a ``raylet.out``."""
    try:
        with open(raylet_log, "rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - TAIL_BYTES))
            found = CREATED.findall(stream.read().decode(errors="replace"))
    except OSError:
        return None
    return int(found[-1]) if found else None


class GpuMemory:
    """Used memory of every GPU in GB, through NVML when its Python package is there, else nvidia-smi."""

    def __init__(self) -> None:
        self._handles: list[Any] | None = None
        try:
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml
            self._handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        except Exception:  # no package, no driver: nvidia-smi says so too, and its answer is what counts
            self._nvml = None

    def read(self) -> list[float]:
        """One figure per GPU; empty without a GPU."""
        if self._handles is not None:
            return [self._nvml.nvmlDeviceGetMemoryInfo(handle).used / GB for handle in self._handles]
        return [float(row) / 1024 for row in nvidia_smi("memory.used")]


def nvidia_smi(fields: str) -> list[str]:
    """Rows of ``nvidia-smi --query-gpu``; empty when there is no GPU or no answer."""
    query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []


class Sampler(threading.Thread):
    """Writes a JSON line per ``interval`` seconds to ``path`` until :meth:`stop`.

    Fields: ``t`` (epoch seconds), ``host_gb`` (used on the machine), ``gpu_gb`` (list), ``object_store_bytes`` (running
    total), and every ``run_every``-th time ``run_gb``. ``ray_logs`` is set by whoever learns where Ray logs.
    """

    def __init__(self, path: Path, marker: str, interval: float = 1.0, run_every: int = 5, has_gpu: bool = True):
        super().__init__(daemon=True, name="gpu-step-sampler")
        self.ray_logs: Path | None = None
        self._path, self._marker, self._interval, self._run_every = path, marker, interval, run_every
        self._gpus = GpuMemory() if has_gpu else None
        self._done = threading.Event()

    def sample(self, with_run: bool) -> dict[str, Any]:
        found: dict[str, Any] = {"t": time.time(), "host_gb": psutil.virtual_memory().used / GB}
        if self._gpus is not None:
            found["gpu_gb"] = self._gpus.read()
        if self.ray_logs is not None:
            created = created_bytes(self.ray_logs / "raylet.out")
            if created is not None:
                found["object_store_bytes"] = created
        if with_run:
            found["run_gb"] = run_memory_gb(self._marker)
        return found

    def run(self) -> None:
        count = 0
        with open(self._path, "w", encoding="utf-8", buffering=1) as stream:
            while True:
                stream.write(json.dumps(self.sample(count % self._run_every == 0)) + "\n")
                count += 1
                if self._done.wait(self._interval):
                    return

    def stop(self) -> None:
        self._done.set()
        self.join()
