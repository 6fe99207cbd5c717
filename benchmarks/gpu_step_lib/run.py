"""Runs the launcher and records it: log lines with arrival times, memory samples, transfer counts, metrics."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpu_step_lib import parse
from gpu_step_lib.count_transfers import FOLDER_ENV
from gpu_step_lib.plan import LAUNCHER, Plan, launcher_knobs
from gpu_step_lib.sampling import MARKER, Sampler

HOOK = "gpu_step_lib.count_transfers"
OBJECT_STORE_DUMP_MS = 2000
CACHES = {"VLLM_CACHE_ROOT": "vllm", "TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
RAY_LOGS = re.compile(r"\(logs: (\S+)\)")
READ_AFTER_EXIT_S = 10.0
PROJECT, EXPERIMENT = "gpu_step", "run"


@dataclass(frozen=True)
class Recording:
    """Files and clock of one run of the launcher."""

    folder: Path
    started: float
    seconds: float
    exit_code: int

    @property
    def log(self) -> Path:
        return self.folder / "run.log"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def samples(self) -> Path:
        return self.folder / "samples.jsonl"

    @property
    def transfers(self) -> Path:
        return self.folder / "transfers.jsonl"


def environment(
    plan: Plan, paths: Mapping[str, str], folder: Path, base: Mapping[str, str], ray_folder: Path, caches: Path | None
) -> dict[str, str]:
    """The launcher's environment: ``base`` without any launcher setting, and the plan's."""
    knobs = launcher_knobs(LAUNCHER.read_text(encoding="utf-8"))
    kept = {name: value for name, value in base.items() if name not in knobs}
    library = str(Path(__file__).resolve().parents[1])
    search = os.pathsep.join(part for part in (library, kept.get("PYTHONPATH", "")) if part)
    found = {
        **kept,
        **plan.launcher_settings(),
        **paths,
        "OUTPUT_DIR": str(folder / "launcher"),
        "PROJECT_NAME": PROJECT,
        "EXPERIMENT_NAME": EXPERIMENT,
        "PYTHON": sys.executable,
        "PYTHONPATH": search,
        "VERL_USE_EXTERNAL_MODULES": ",".join(filter(None, (kept.get("VERL_USE_EXTERNAL_MODULES"), HOOK))),
        FOLDER_ENV: str(folder / "transfers"),
        "RAY_RUN_DIR": str(ray_folder),
        "RAY_event_stats_print_interval_ms": str(OBJECT_STORE_DUMP_MS),
    }
    if caches is not None:
        found.update({name: str(caches / part) for name, part in CACHES.items()})
    return found


def command(plan: Plan) -> list[str]:
    return ["bash", str(LAUNCHER), "--", *plan.hydra()]


def announcements(line: str) -> list[str]:
    """What a log line means to somebody who waits, if anything."""
    found = [f"{name}: done" for name, pattern in parse.MILESTONES if re.search(pattern, line)]
    if match := parse.STEP_LINE.search(line):
        seconds = re.search(r"timing_s/step:([\d.]+)", line)
        found.append(f"step {match[1]}" + (f": {float(seconds[1]):.2f} s" if seconds else ""))
    return found


def record(
    plan: Plan,
    paths: Mapping[str, str],
    folder: Path,
    has_gpu: bool,
    say: Callable[[str], None],
    caches: Path | None = None,
    keep: bool = False,
) -> Recording:
    """Run the plan once; a SIGINT or SIGTERM reaches the launcher, which stops its Ray, before it is raised here.

    Args:
        folder: must not exist; gets ``run.log``, ``metrics.jsonl``, ``samples.jsonl``, ``transfers.jsonl``.
        caches: folder for compile caches (None: those of the machine).
        keep: keep the launcher's folder and Ray's, which are kept of a failed run in any case.
    """
    folder.mkdir(parents=True)
    (folder / "transfers").mkdir()
    # Ray's sockets need a short path.
    ray_folder = Path(tempfile.mkdtemp(prefix="gs-", dir="/tmp"))
    marker = uuid.uuid4().hex
    env = environment(plan, paths, folder, os.environ, ray_folder, caches)
    env[MARKER] = marker
    sampler = Sampler(folder / "samples.jsonl", marker, has_gpu=has_gpu)
    started = time.time()
    sampler.start()
    try:
        process = subprocess.Popen(
            command(plan),
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )

        def read() -> None:
            with open(folder / "run.log", "w", encoding="utf-8", buffering=1) as log:
                for raw in process.stdout:
                    now, line = time.time(), parse.ANSI.sub("", raw.rstrip("\n"))
                    log.write(f"{now:.3f}\t{line}\n")
                    for message in announcements(line):
                        say(f"{now - started:7.1f} s  {message}")
                    if match := RAY_LOGS.search(line):
                        sampler.ray_logs = Path(match[1])

        reader = threading.Thread(target=read, daemon=True, name="gpu-step-log")
        reader.start()
        with _forwarding(process):
            exit_code = process.wait()
        # A process that outlives the launcher may hold the pipe; it has nothing more to say.
        reader.join(READ_AFTER_EXIT_S)
    finally:
        sampler.stop()
        _collect(folder)
    if exit_code == 0 and not keep:
        shutil.rmtree(folder / "launcher", ignore_errors=True)
        shutil.rmtree(ray_folder, ignore_errors=True)
    else:
        say(f"kept: {folder / 'launcher'}, and Ray's logs in {ray_folder} if Ray was started")
        with contextlib.suppress(OSError):
            ray_folder.rmdir()
    return Recording(folder, started, time.time() - started, exit_code)


@contextlib.contextmanager
def _forwarding(process: subprocess.Popen):
    """Signals to this process go to the launcher; they end this process once the launcher has cleaned up."""
    received: list[int] = []

    def forward(number, frame):
        received.append(number)
        process.send_signal(number)

    previous = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if received:
        raise KeyboardInterrupt


def _collect(folder: Path) -> None:
    """Metrics out of the launcher's folder, and the processes' transfer counts into one file ordered by time."""
    metrics = folder / "launcher" / PROJECT / EXPERIMENT / "metrics.jsonl"
    if metrics.exists():
        shutil.copyfile(metrics, folder / "metrics.jsonl")
    counts = [
        record for path in (folder / "transfers").glob("*.jsonl") for record in parse.read_jsonl(path.read_text())
    ]
    counts.sort(key=lambda record: record["t"])
    temporary = folder / ".transfers.jsonl"
    temporary.write_text("".join(json.dumps(record) + "\n" for record in counts))
    os.replace(temporary, folder / "transfers.jsonl")
    shutil.rmtree(folder / "transfers")
