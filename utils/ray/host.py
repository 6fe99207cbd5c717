"""Facts about this host that starting a Ray node needs: GPUs, addresses, listeners, shared memory. No torch, no Ray."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
from pathlib import Path


def detect_gpus(proc_root: Path = Path("/proc")) -> tuple[int, str]:
    """Number of NVIDIA GPUs this process may use, and where the number comes from.

    CUDA_VISIBLE_DEVICES counts when it is set; else nvidia-smi; else the driver's directory in /proc.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = [name for name in visible.split(",") if name.strip() not in ("", "-1", "NoDevFiles")]
        return len(names), "CUDA_VISIBLE_DEVICES"
    if shutil.which("nvidia-smi"):
        try:
            done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
        except subprocess.TimeoutExpired:
            return 0, "nvidia-smi -L did not answer within 60 s"
        if done.returncode == 0:
            return sum(line.startswith("GPU ") for line in done.stdout.splitlines()), "nvidia-smi"
        return 0, f"nvidia-smi failed: {(done.stdout + done.stderr).strip().splitlines()[0:1]}"
    gpus = proc_root / "driver/nvidia/gpus"
    if gpus.is_dir():
        return len(list(gpus.iterdir())), str(gpus)
    return 0, "no nvidia-smi, no NVIDIA driver"


def own_addresses() -> set[str]:
    """IPv4 and IPv6 addresses of this host's interfaces."""
    import psutil

    families = (socket.AF_INET, socket.AF_INET6)
    return {a.address.split("%")[0] for found in psutil.net_if_addrs().values() for a in found if a.family in families}


def address_towards(target: str) -> str | None:
    """Local address of the route to ``target``; nothing is sent. None when there is no route."""
    family = socket.AF_INET6 if ":" in target else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((target, 53))
            return probe.getsockname()[0]
        except OSError:
            return None


def resolve(host: str) -> str | None:
    """IPv4 (else IPv6) address of ``host``; None when the name is unknown."""
    try:
        found = socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)
    except socket.gaierror:
        return None
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return found[0][4][0]


def read_hosts(path: Path) -> list[str]:
    """Host names of a hosts file: the first word of each line; the head comes first. Comments start with #."""
    lines = (line.split("#", 1)[0].split() for line in path.read_text().splitlines())
    return [words[0] for words in lines if words]


def listener_on(port: int) -> str | None:
    """Who listens on TCP ``port`` here: "pid 12 (gcs_server)", or None when the port is free."""
    import psutil

    for connection in psutil.net_connections(kind="tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
            if connection.pid is None:
                return "a process of another user"
            try:
                process = psutil.Process(connection.pid)
                return f"pid {process.pid} ({process.name()}, user {process.username()})"
            except psutil.Error:
                return f"pid {connection.pid}"
    return None


def try_connect(address: str, port: int, timeout_s: float = 3.0) -> str | None:
    """None when a TCP connection works; else the reason in words."""
    try:
        socket.create_connection((address, port), timeout=timeout_s).close()
    except ConnectionRefusedError:
        return (
            f"refused: the host answers, but nothing listens on port {port} (head not started yet, or another RAY_PORT)"
        )
    except TimeoutError:
        return "no answer: wrong address, host down, or a firewall drops the packets"
    except OSError as error:
        if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
            return f"no way there ({error.strerror}): wrong address or wrong interface"
        return error.strerror or str(error)
    return None


def free_shared_memory() -> int | None:
    """Free bytes in /dev/shm, where Ray keeps its object store; None when there is no /dev/shm."""
    try:
        info = os.statvfs("/dev/shm")
    except OSError:
        return None
    return info.f_bavail * info.f_frsize
