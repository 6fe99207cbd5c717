"""Two Ray nodes with addresses of their own on one box: two network namespaces joined by a veth pair."""

from __future__ import annotations

import json
import shutil
import subprocess
import uuid

import pytest

pytestmark = pytest.mark.slow
HEAD, WORKER, NOBODY = "10.231.77.1", "10.231.77.2", "10.231.77.9"
WHERE = """
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as At
import os
@ray.remote(num_gpus=1)
def where():
    return ray.util.get_node_ip_address(), os.environ.get("GLOO_SOCKET_IFNAME"), os.readlink("/proc/self/ns/net")
nodes = [n["NodeID"] for n in ray.nodes() if n["Alive"]]
import json
print(json.dumps(sorted(ray.get([where.options(scheduling_strategy=At(n, soft=False)).remote() for n in nodes]))))
"""


def ip(*args: str) -> None:
    done = subprocess.run(["ip", *args], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no network namespaces here: ip {' '.join(args)}: {done.stderr.strip()}")


@pytest.fixture
def namespaces():
    """Names of two namespaces that reach each other, and nothing else."""
    if not shutil.which("ip"):
        pytest.skip("no network namespaces here: the ip command (package iproute2) is missing")
    tag = uuid.uuid4().hex[:6]
    names = (f"hyA{tag}", f"hyB{tag}")
    try:
        for name in names:
            ip("netns", "add", name)
        ip(
            "link",
            "add",
            f"veA{tag}",
            "netns",
            names[0],
            "type",
            "veth",
            "peer",
            "name",
            f"veB{tag}",
            "netns",
            names[1],
        )
        for name, device, address in zip(names, (f"veA{tag}", f"veB{tag}"), (HEAD, WORKER)):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", device)
            ip("-n", name, "link", "set", device, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def test_two_nodes_as_a_user_starts_them(namespaces, make_host):
    head, worker = (make_host(name) for name in namespaces)

    wrong = worker.start("2", "1", HEAD_IP=NOBODY, RAY_WAIT_SECONDS="2")
    assert wrong.returncode == 1 and f"head {NOBODY}:6379 not reached" in wrong.stderr
    assert "no way there" in wrong.stderr or "no answer" in wrong.stderr

    # The worker comes first and waits.
    waiting = worker.popen("bash", "utils/ray/start_ray.sh", "2", "1", HEAD_IP=HEAD, RAY_WAIT_SECONDS="180")
    done = head.start("2", "0", "--wait-for-nodes", HEAD_IP=HEAD)
    assert done.returncode == 0, done.stderr
    assert "all 2 nodes are there" in done.stderr
    _, errors = waiting.communicate(timeout=120)
    assert waiting.returncode == 0 and "waiting for the head" in errors, errors

    found = json.loads(head.driver(WHERE, f"{HEAD}:6379"))
    assert [row[0] for row in found] == [HEAD, WORKER]
    assert [row[1][:3] for row in found] == ["veA", "veB"], "each node has its own interface's name"
    assert found[0][2] != found[1][2], "the tasks ran in different network namespaces"

    assert worker.stop().returncode == 0
    nodes = head.status()[0]["nodes"]
    assert {node["ip"]: node["alive"] for node in nodes} == {HEAD: True, WORKER: False}

    # The node comes back under the same index.
    back = worker.start("2", "1", HEAD_IP=HEAD)
    assert back.returncode == 0, back.stderr
    assert len(json.loads(head.driver(WHERE, f"{HEAD}:6379"))) == 2
