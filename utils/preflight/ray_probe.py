"""Runs :mod:`utils.preflight.node_probe` on every node of a Ray cluster.

    echo '{"paths": [], "variables": []}' | python -m utils.preflight.ray_probe 10.0.0.1:6379

Prints one JSON list: per node its address, its facts, and how far its clock is off at least. A process of its own, because
Ray's client may abort the process or hang. Starts a worker per node, and nothing else; uses no CPU or GPU slots.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

TIMEOUT_S = 90.0


class ProbeError(RuntimeError):
    """The nodes could not be asked; the message says what came back."""


def probe_nodes(address: str, paths: list[str], variables: list[str], timeout_s: float = TIMEOUT_S) -> list[dict]:
    """Facts of every node that is alive: those of ``node_probe.probe``, ``ip``, ``name`` and ``clock_s``.

    ``clock_s`` is how far the node's clock certainly is from this one's, in seconds: 0 within what the measurement can tell.
    A node that did not answer has ``error`` instead of facts.

    Raises:
        ProbeError: the cluster could not be joined, or did not answer within ``timeout_s``.
    """
    command = [sys.executable, "-m", "utils.preflight.ray_probe", address, str(timeout_s)]
    request = json.dumps({"paths": paths, "variables": variables})
    try:
        done = subprocess.run(command, input=request, capture_output=True, text=True, timeout=timeout_s + 30)
    except subprocess.TimeoutExpired:
        raise ProbeError(f"no answer from the nodes within {timeout_s + 30:.0f} s") from None
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        raise ProbeError((done.stderr.strip().splitlines() or ["no output"])[-1])
    return json.loads(lines[-1])


def deviation(sent: float, node: float, received: float) -> float:
    """How far a clock that showed ``node`` between ``sent`` and ``received`` of ours is off at least, in seconds."""
    return max(0.0, sent - node, node - received)


def _ask_all(address: str, timeout_s: float, paths: list[str], variables: list[str]) -> list[dict]:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from utils.preflight import node_probe

    # The nodes need not have this package: ship the functions themselves.
    ray.cloudpickle.register_pickle_by_value(node_probe)
    ray.init(address=address, log_to_driver=False, logging_level="ERROR", configure_logging=False)
    nodes = [node for node in ray.nodes() if node["Alive"]]

    def on(node: dict, function):
        strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        return ray.remote(function).options(num_cpus=0, scheduling_strategy=strategy, max_retries=0)

    started = [on(node, node_probe.probe).remote(paths, variables) for node in nodes]
    found = []
    deadline = time.monotonic() + timeout_s
    for node, reference in zip(nodes, started, strict=True):
        entry = {"ip": node["NodeManagerAddress"], "name": node.get("NodeName", "")}
        try:
            entry.update(ray.get(reference, timeout=max(1.0, deadline - time.monotonic())))
            # The worker is up now, so a second call bounds its clock tightly.
            sent = time.time()
            shown = ray.get(on(node, node_probe.clock).remote(), timeout=max(1.0, deadline - time.monotonic()))
            entry["clock_s"] = deviation(sent, shown, time.time())
        except (ray.exceptions.RayError, TimeoutError) as error:
            entry["error"] = str(error).strip().splitlines()[-1]
        found.append(entry)
    ray.shutdown()
    return found


if __name__ == "__main__":
    print(json.dumps(_ask_all(sys.argv[1], float(sys.argv[2]), **json.load(sys.stdin))))
