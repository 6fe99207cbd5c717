"""Two Ray nodes with addresses of their own on one box: two network namespaces joined by a veth pair."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.slow
NOBODY = "10.231.77.9"
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


def test_two_nodes_as_a_user_starts_them(sites, make_host):
    head, worker = (make_host(site.namespace) for site in sites)
    head_ip, worker_ip = (site.address for site in sites)

    wrong = worker.start("2", "1", HEAD_IP=NOBODY, RAY_WAIT_SECONDS="2")
    assert wrong.returncode == 1 and f"head {NOBODY}:6379 not reached" in wrong.stderr
    assert "no way there" in wrong.stderr or "no answer" in wrong.stderr

    # The worker comes first and waits.
    waiting = worker.popen("bash", "utils/ray/start_ray.sh", "2", "1", HEAD_IP=head_ip, RAY_WAIT_SECONDS="180")
    done = head.start("2", "0", "--wait-for-nodes", HEAD_IP=head_ip)
    assert done.returncode == 0, done.stderr
    assert "all 2 nodes are there" in done.stderr
    _, errors = waiting.communicate(timeout=120)
    assert waiting.returncode == 0 and "waiting for the head" in errors, errors

    found = json.loads(head.driver(WHERE, f"{head_ip}:6379"))
    assert [row[0] for row in found] == [head_ip, worker_ip]
    assert [row[1][:3] for row in found] == ["veA", "veB"], "each node has its own interface's name"
    assert found[0][2] != found[1][2], "the tasks ran in different network namespaces"

    assert worker.stop().returncode == 0
    nodes = head.status()[0]["nodes"]
    assert {node["ip"]: node["alive"] for node in nodes} == {head_ip: True, worker_ip: False}

    # The node comes back under the same index.
    back = worker.start("2", "1", HEAD_IP=head_ip)
    assert back.returncode == 0, back.stderr
    assert len(json.loads(head.driver(WHERE, f"{head_ip}:6379"))) == 2
