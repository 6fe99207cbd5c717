"""Hosts for Ray tests: the scripts as a user calls them, with a run directory and, if wanted, a network of their own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
# Settings of the calling shell that would change what the scripts do.
CLEARED = (
    "HEAD_IP", "HOSTS_FILE", "NODE_IP", "NNODES", "NGPUS_PER_NODE", "RAY_ADDRESS", "RAY_PORT", "RAY_LOGICAL_GPUS",
    "RAY_NUM_CPUS", "RAY_TEMP_DIR", "NET_TIER", "DISABLE_IB", "DASHBOARD", "CUDA_VISIBLE_DEVICES",
)  # fmt: skip


# Arguments: kit folder, environment, command. An environment inside the kit's folder stays visible.
HIDE = """set -e
kit=$1 venv=$2; shift 2
keep=$(mktemp -d)
mount --bind "$venv" "$keep"
mount -t tmpfs none "$kit"
case $venv/ in "$kit"/*) mkdir -p "$venv"; mount --move "$keep" "$venv" ;; *) umount "$keep" ;; esac
rmdir "$keep"
exec "$@"
"""


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
        self.folder = REPO
        self.defaults = {"RAY_RUN_DIR": str(self.run_dir), "RAY_OBJECT_STORE_GB": "0.1", "RAY_LOGICAL_GPUS": "1"}

    def hide_kit(self, folder: Path) -> None:
        """From now on the kit's folder is empty for what starts here (it needs a namespace); ``folder`` gets the scripts."""
        for name in ("utils/ray", "utils/install"):
            shutil.copytree(REPO / name, folder / name)
        self.prefix += ["bash", "-c", HIDE, "hide", str(REPO), sys.prefix]
        self.folder = folder

    def environment(self, **changes: str) -> dict[str, str]:
        return clean_environment(**{**self.defaults, **changes})

    def popen(self, *command: str, **changes: str) -> subprocess.Popen:
        return subprocess.Popen(
            [*self.prefix, *command],
            env=self.environment(**changes),
            cwd=self.folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *command: str, timeout: float = 240, **changes: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [*self.prefix, *command],
            env=self.environment(**changes),
            cwd=self.folder,
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


@dataclass(frozen=True)
class Site:
    """A network namespace with one interface, whose other end is in the other namespace."""

    namespace: str
    device: str
    address: str

    def ip(self, *args: str) -> None:
        ip("-n", self.namespace, *args)

    def processes(self) -> list[int]:
        """Process ids in the namespace."""
        done = subprocess.run(["ip", "netns", "pids", self.namespace], capture_output=True, text=True, check=True)
        return [int(pid) for pid in done.stdout.split()]

    def lose_power(self, cut_network_first: bool) -> None:
        """Ends every process at once; with the network cut before, not even a connection reset gets out."""
        if cut_network_first:
            self.ip("link", "set", self.device, "down")
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def restore_network(self) -> None:
        self.ip("link", "set", self.device, "up")


def ip(*args: str) -> None:
    done = subprocess.run(["ip", *args], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no network namespaces here: ip {' '.join(args)}: {done.stderr.strip()}")


@contextlib.contextmanager
def two_sites(network: str) -> Iterator[tuple[Site, Site]]:
    """Two namespaces that reach each other, and nothing else; skips the test where there can be none.

    Args:
        network: the first three numbers of the addresses, ``"10.231.77"``.
    """
    if not shutil.which("ip"):
        pytest.skip("no network namespaces here: the ip command (package iproute2) is missing")
    tag = uuid.uuid4().hex[:6]
    sites = tuple(Site(f"hy{end}{tag}", f"ve{end}{tag}", f"{network}.{i}") for i, end in enumerate("AB", start=1))
    try:
        for site in sites:
            ip("netns", "add", site.namespace)
        one, two = sites
        ends = ("netns", one.namespace, "type", "veth", "peer", "name", two.device, "netns", two.namespace)
        ip("link", "add", one.device, *ends)
        for site in sites:
            site.ip("addr", "add", f"{site.address}/24", "dev", site.device)
            site.ip("link", "set", site.device, "up")
            site.ip("link", "set", "lo", "up")
        yield sites
    finally:
        for site in sites:
            subprocess.run(["ip", "netns", "del", site.namespace], capture_output=True)
