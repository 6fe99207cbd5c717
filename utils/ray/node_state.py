"""What start_ray.sh started on this host: state files and the processes behind them.

Every process of a node inherits a marker variable with the node's id, so stopping one node can tell its processes from
those of any other cluster on the host, whatever name the processes give themselves.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import stat
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import psutil

MARKER = "HYOCR_RAY_NODE"
# Seconds between SIGTERM and SIGKILL for each group of processes.
GRACE_S = 8.0


class StateError(RuntimeError):
    """The run directory or a state file cannot be used; the message says why and what to do."""


def boot_id() -> str:
    """Identifies the host's boot: process ids recorded in another boot or on another host mean nothing here."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def default_run_dir() -> Path:
    """RAY_RUN_DIR, else /tmp/hyocr-ray-<uid>.

    XDG_RUNTIME_DIR would be removed when the user logs out, while the cluster lives on.
    """
    return Path(os.environ.get("RAY_RUN_DIR") or f"/tmp/hyocr-ray-{os.getuid()}")


def ensure_run_dir(run_dir: Path) -> None:
    """Creates ``run_dir`` (mode 700). Raises StateError when it belongs to somebody else or cannot be made."""
    try:
        run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = run_dir.lstat()
    except OSError as error:
        raise StateError(f"run directory {run_dir}: {error.strerror}; set RAY_RUN_DIR to another one") from None
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
        raise StateError(f"run directory {run_dir} is not a directory of yours; set RAY_RUN_DIR to another one")


@dataclass
class NodeState:
    """One started node. ``processes`` holds "pid:create_time:name" of what ``ray start`` left running."""

    RAY_ADDRESS: str
    RAY_PORT: int
    NODE_INDEX: int
    NNODES: int
    NODE_IP: str
    RAY_TEMP_DIR: str
    NODE_ID: str
    NUM_GPUS: int
    HOST_BOOT_ID: str
    STARTED_AT: str
    DASHBOARD_URL: str = ""
    processes: list[str] = field(default_factory=list)

    @property
    def role(self) -> str:
        return "head" if self.NODE_INDEX == 0 else f"worker {self.NODE_INDEX}"


def state_path(run_dir: Path, port: int) -> Path:
    return run_dir / f"{port}.env"


def write_state(path: Path, state: NodeState) -> None:
    """Writes ``state`` as KEY=value lines that a shell can source."""
    values = asdict(state)
    values["PROCESSES"] = " ".join(values.pop("processes"))
    text = "".join(f"{key}={shlex.quote(str(value))}\n" for key, value in values.items())
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(handle, "w") as stream:
        stream.write(text)
    os.replace(temporary, path)


def read_state(path: Path) -> NodeState:
    """Reads a state file. Raises StateError when it is incomplete or damaged."""
    values = {}
    for line in path.read_text().splitlines():
        key, _, value = line.partition("=")
        values[key] = " ".join(shlex.split(value))
    values["processes"] = values.pop("PROCESSES", "").split()
    try:
        for item in fields(NodeState):
            if item.type in (int, "int"):
                values[item.name] = int(values[item.name])
        return NodeState(**values)
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"state file {path} is damaged ({error}); look for its processes by hand, then delete it"
        ) from None


def list_states(run_dir: Path) -> list[tuple[Path, NodeState]]:
    """All state files of ``run_dir`` in port order. Raises StateError on a damaged one."""
    return [(path, read_state(path)) for path in sorted(run_dir.glob("*.env"))]


def describe_process(process: psutil.Process) -> str:
    """ "pid:create_time:name" for a state file."""
    return f"{process.pid}:{process.create_time():.2f}:{'_'.join(process.name().split())}"


def _recorded(state: NodeState) -> list[psutil.Process]:
    if boot_id() != state.HOST_BOOT_ID:
        return []
    found = []
    for entry in state.processes:
        pid, created, _ = entry.split(":", 2)
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(int(pid))
            if abs(process.create_time() - float(created)) < 0.1:
                found.append(process)
    return found


def marked_processes(node_id: str) -> list[psutil.Process]:
    """Processes of this user whose environment carries the marker of ``node_id``."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARKER) == node_id and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def node_processes(state: NodeState) -> list[psutil.Process]:
    """Every live process of the node: recorded, marked, and all their descendants; never this process or its parents.

    Ray's workers overwrite their command line and with it their environment block; as children of the raylet they are
    found all the same.
    """
    if boot_id() != state.HOST_BOOT_ID:
        return []
    found = {process.pid: process for process in [*_recorded(state), *marked_processes(state.NODE_ID)]}
    for process in list(found.values()):
        with contextlib.suppress(psutil.Error):
            for child in process.children(recursive=True):
                found.setdefault(child.pid, child)
    this = psutil.Process()
    for own in (this, *this.parents()):
        found.pop(own.pid, None)
    return [process for process in found.values() if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def is_alive(state: NodeState) -> bool:
    """Whether the node's raylet (and on the head its GCS server) still runs."""
    names = {process.name() for process in _recorded(state) if process.status() != psutil.STATUS_ZOMBIE}
    return "raylet" in names and (state.NODE_INDEX != 0 or "gcs_server" in names)


def _end(processes: Iterable[psutil.Process], grace_s: float) -> list[psutil.Process]:
    processes = list(processes)
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGTERM)
    _, alive = psutil.wait_procs(processes, timeout=grace_s)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    _, alive = psutil.wait_procs(alive, timeout=5.0)
    return alive


def stop_node(state: NodeState, grace_s: float = GRACE_S) -> tuple[int, list[psutil.Process]]:
    """Ends the node's processes: raylet first, GCS server last, as Ray's own agents expect.

    Returns:
        (number of processes that were running, those that survived even SIGKILL)
    """
    total: set[int] = set()
    survivors: list[psutil.Process] = []

    def rank(process: psutil.Process) -> int:
        with contextlib.suppress(psutil.Error):
            return {"raylet": 0, "gcs_server": 2}.get(process.name(), 1)
        return 1

    everything = node_processes(state)
    for group in range(3):
        members = [process for process in everything if rank(process) == group]
        total.update(process.pid for process in members)
        survivors += _end(members, grace_s)
    # A worker may have started a child between the first look and its end.
    deadline = time.monotonic() + grace_s
    while (left := node_processes(state)) and time.monotonic() < deadline:
        total.update(process.pid for process in left)
        _end(left, 1.0)
    return len(total), [process for process in node_processes(state)] or [p for p in survivors if p.is_running()]
