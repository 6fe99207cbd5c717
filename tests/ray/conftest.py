"""A host of its own for each Ray test: run directory, ports and the scripts as a user calls them."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
# Settings of the calling shell that would change what the scripts do.
CLEARED = (
    "HEAD_IP", "HOSTS_FILE", "NODE_IP", "NNODES", "NGPUS_PER_NODE", "RAY_ADDRESS", "RAY_PORT", "RAY_LOGICAL_GPUS",
    "RAY_NUM_CPUS", "RAY_TEMP_DIR", "NET_TIER", "DISABLE_IB", "DASHBOARD", "CUDA_VISIBLE_DEVICES",
)  # fmt: skip


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def clean_environment(**changes: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in CLEARED and not k.startswith(("NCCL_", "GLOO_", "UCX_"))}
    return {**kept, "PYTHON": sys.executable, **changes}


class Host:
    """The scripts of utils/ray with one run directory, optionally inside a network namespace."""

    def __init__(self, namespace: str | None = None) -> None:
        # Short: Ray puts sockets below it.
        self.run_dir = Path(tempfile.mkdtemp(prefix="hr-", dir="/tmp"))
        self.prefix = ["ip", "netns", "exec", namespace] if namespace else []
        self.defaults = {"RAY_RUN_DIR": str(self.run_dir), "RAY_OBJECT_STORE_GB": "0.1", "RAY_LOGICAL_GPUS": "1"}

    def environment(self, **changes: str) -> dict[str, str]:
        return clean_environment(**{**self.defaults, **changes})

    def popen(self, *command: str, **changes: str) -> subprocess.Popen:
        return subprocess.Popen(
            [*self.prefix, *command],
            env=self.environment(**changes),
            cwd=REPO,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *command: str, timeout: float = 240, **changes: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [*self.prefix, *command],
            env=self.environment(**changes),
            cwd=REPO,
            text=True,
            capture_output=True,
            timeout=timeout,
        )

    def start(self, *args: str, **changes: str) -> subprocess.CompletedProcess:
        return self.run("bash", "utils/ray/start_ray.sh", *args, **changes)

    def stop(self, *args: str, **changes: str) -> subprocess.CompletedProcess:
        return self.run("bash", "utils/ray/stop_ray.sh", *args, **changes)

    def status(self) -> list[dict]:
        return json.loads(self.run(sys.executable, "utils/ray/cluster.py", "status", "--json").stdout)

    def recorded(self) -> list[Path]:
        return list(self.run_dir.glob("*.env"))

    def driver(self, code: str, address: str) -> str:
        """Runs ``code`` with Ray connected to ``address``; returns what it printed."""
        program = f"import ray\nray.init(address={address!r}, log_to_driver=False, logging_level='ERROR')\n{code}"
        done = self.run(sys.executable, "-c", program)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def close(self) -> None:
        if self.recorded():
            done = self.stop("--all", "--purge")
            assert done.returncode == 0, done.stderr
        shutil.rmtree(self.run_dir)


@pytest.fixture
def make_host():
    hosts: list[Host] = []

    def make(namespace: str | None = None) -> Host:
        hosts.append(Host(namespace))
        return hosts[-1]

    yield make
    for host in hosts:
        host.close()


@pytest.fixture
def ray_host(make_host) -> Host:
    return make_host()


@pytest.fixture
def port() -> str:
    return str(free_port())


@pytest.fixture
def other_port() -> str:
    return str(free_port())


@pytest.fixture
def own_address() -> str:
    """An address of this host that a second Ray node can use."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("8.8.8.8", 53))
        except OSError as error:
            pytest.skip(f"no route to anywhere, so no address but loopback: {error}")
        return probe.getsockname()[0]
