"""A node dies under a driver that waits for something else: the driver ends within a minute and names the node."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.slow
# One rank on each node; the driver waits for the rank that lives on, as verl does in a collective that never ends.
DRIVER = """
import sys, time
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as At
from verl_hyocr import node_watch
node_watch.start()
# The address is Ray's guess from the default route, which a namespace does not have.
ray.init(address=sys.argv[1], _node_ip_address=sys.argv[2], log_to_driver=False)
@ray.remote(num_gpus=1)
class Rank:
    def ready(self):
        return True
    def collective(self):
        while True:
            time.sleep(1)
ranks = {n["NodeManagerAddress"]: Rank.options(scheduling_strategy=At(n["NodeID"], soft=False)).remote()
         for n in ray.nodes() if n["Alive"]}
ray.get([rank.ready.remote() for rank in ranks.values()])
time.sleep(2 * node_watch.PERIOD_S)
print("waiting", flush=True)
ray.get(ranks[sys.argv[2]].collective.remote())
"""


@pytest.fixture
def cluster(sites, make_host):
    """Head and worker node, running; the hosts know their namespaces."""
    head, worker = (make_host(site.namespace) for site in sites)
    for host, index in ((head, "0"), (worker, "1")):
        done = host.start("2", index, HEAD_IP=sites[0].address)
        assert done.returncode == 0, done.stderr
    return head, worker


def waiting_driver(host, head_ip: str, waits_for: str) -> subprocess.Popen:
    process = host.popen(sys.executable, "-c", DRIVER, f"{head_ip}:6379", waits_for)
    lines = iter(process.stdout.readline, "")
    assert any(line == "waiting\n" for line in lines), process.communicate()[1]
    return process


@pytest.mark.parametrize("cut_network_first", [False, True], ids=["killed", "silent"])
def test_the_driver_names_the_lost_node_within_a_minute(sites, cluster, cut_network_first):
    head, _ = cluster
    driver = waiting_driver(head, sites[0].address, sites[0].address)
    sites[1].lose_power(cut_network_first)
    lost = time.monotonic()
    _, errors = driver.communicate(timeout=60)
    print(f"the driver ended {time.monotonic() - lost:.0f} s after the loss")
    assert driver.returncode == 1, errors
    assert f"node hyocr-1 ({sites[1].address}) is dead; of this run it had: 1 Rank" in errors.splitlines()[-1]
    rows = {node["ip"]: node["alive"] for node in head.status()[0]["nodes"]}
    assert rows == {sites[0].address: True, sites[1].address: False}


def test_the_driver_names_a_lost_head(sites, cluster):
    _, worker = cluster
    driver = waiting_driver(worker, sites[0].address, sites[1].address)
    sites[0].lose_power(cut_network_first=True)
    _, errors = driver.communicate(timeout=60)
    assert driver.returncode == 1, errors
    assert f"the head of the Ray cluster ({sites[0].address}:6379) is lost" in errors


def test_an_unused_node_may_go(sites, cluster):
    """The run's nodes count, not the cluster's."""
    head, worker = cluster
    one_node = DRIVER.replace('if n["Alive"]}', 'if n["Alive"] and n["NodeManagerAddress"] == sys.argv[2]}')
    program = one_node.replace("ray.get(ranks[sys.argv[2]].collective.remote())", "sys.stdin.readline(); print('done')")
    process = subprocess.Popen(
        [*head.prefix, sys.executable, "-c", program, f"{sites[0].address}:6379", sites[0].address],
        env=head.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert "waiting\n" in iter(process.stdout.readline, "")
    assert worker.stop().returncode == 0
    while any(node["alive"] and node["ip"] == sites[1].address for node in head.status()[0]["nodes"]):
        assert process.poll() is None
    out, errors = process.communicate("\n", timeout=60)
    assert process.returncode == 0 and "done" in out, errors
