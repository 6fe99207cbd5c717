"""Against real Ray nodes: who is missing, too few slots, and facts of each node through a task on it."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.ray.hosts import Host, free_port
from utils.preflight.network import adapter_problem, interface_problem
from utils.preflight.ray_cluster import Cluster, missing_nodes
from utils.preflight.ray_probe import deviation

FAULTY_VERSION = "9.9.9"


@dataclass
class Pair:
    """A head that was started for two nodes, and the second, which joins on demand. One host, two raylets."""

    head: Host
    second: Host
    address: str
    port: str

    def join(self, **changes: str) -> None:
        ip = self.address.rpartition(":")[0]
        done = self.second.start("2", "1", HEAD_IP=ip, NODE_IP=ip, RAY_PORT=self.port, RAY_NUM_CPUS="6", **changes)
        assert done.returncode == 0, done.stderr

    def leave(self) -> None:
        done = self.second.stop()
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("8.8.8.8", 53))
        except OSError as error:
            pytest.skip(f"no route to anywhere, so no address but loopback: {error}")
        ip = probe.getsockname()[0]
    head, second, port = Host(), Host(), str(free_port())
    try:
        done = head.start("2", "0", "--json", HEAD_IP=ip, RAY_PORT=port, RAY_NUM_CPUS="6")
        assert done.returncode == 0, done.stderr
        yield Pair(head, second, json.loads(done.stdout)["RAY_ADDRESS"], port)
    finally:
        second.close()
        head.close()


@pytest.fixture
def cluster(preflight, monkeypatch, pair) -> Callable:
    """``cluster(nnodes)``: the checks that need Ray, for so many nodes of one GPU slot."""
    monkeypatch.setenv("RAY_ADDRESS", pair.address)
    monkeypatch.setenv("PPO_MINI_BATCH_SIZE", "4")

    def call(nnodes: int, *arguments: str):
        monkeypatch.setenv("NNODES", str(nnodes))
        return preflight(*arguments, stage="cluster")

    return call


def test_one_node(cluster):
    report = cluster(1)
    assert report.bad() == {} and report.code == 0
    assert "the cluster has 1 GPU(s) on 1 node(s)" in report.row("ray.nodes")["found"]


def test_missing_node_is_named(cluster, monkeypatch, tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("gpu-node-a\ngpu-node-b slots=8\n")
    report = cluster(2)
    assert report.bad() == {"ray.nodes": "FAIL", "ray.cpus": "FAIL"} and report.code == 1
    row = report.row("ray.nodes")
    assert "missing: INDEX 1" in row["found"] and "bash utils/ray/start_ray.sh 2 INDEX" in row["remedy"]
    assert "set NNODES=1" in row["remedy"]
    monkeypatch.setenv("HOSTS_FILE", str(hosts))
    assert "missing: INDEX 1 on gpu-node-b" in cluster(2).row("ray.nodes")["found"]


def test_more_gpus_than_the_nodes_have(cluster, monkeypatch):
    monkeypatch.setenv("NGPUS_PER_NODE", "2")
    report = cluster(1)
    assert report.bad()["ray.nodes"] == "FAIL"
    assert (
        "too few GPUs on" in report.row("ray.nodes")["found"]
        and "set NGPUS_PER_NODE=1" in report.row("ray.nodes")["remedy"]
    )


def test_too_few_cpu_slots(cluster):
    report = cluster(1, "--", "transfer_queue.backend.SimpleStorage.num_data_storage_units=8")
    assert report.bad() == {"ray.cpus": "FAIL"}
    row = report.row("ray.cpus")
    assert "13 in all" in row["found"] and "RAY_NUM_CPUS=13" in row["remedy"]


def test_two_nodes_and_what_is_wrong_on_the_second(cluster, pair, monkeypatch, tmp_path):
    """A healthy second node, which dies; then one with another version and a wrong interface."""
    pair.join()
    report = cluster(2)
    assert report.bad() == {}, report.bad()
    assert "2 nodes" in report.row("host.versions")["found"] and report.row("host.clock")["status"] == "PASS"
    assert report.row("host.paths")["status"] == "PASS"

    pair.leave()
    report = cluster(2)
    assert "INDEX 1" in report.row("ray.nodes")["found"] and "died" in report.row("ray.nodes")["found"]

    site = tmp_path / f"site/transformers-{FAULTY_VERSION}.dist-info"
    site.mkdir(parents=True)
    (site / "METADATA").write_text(f"Metadata-Version: 2.1\nName: transformers\nVersion: {FAULTY_VERSION}\n")
    pair.join(PYTHONPATH=str(site.parent), RAY_ALLOW_VERSION_MISMATCH="1", NCCL_SOCKET_IFNAME="nosuch0")
    report = cluster(2)
    assert report.bad() == {"host.versions": "FAIL", "network.interfaces": "FAIL"}
    assert "(hyocr-1): transformers: here" in report.row("host.versions")["found"]
    assert f"there {FAULTY_VERSION}" in report.row("host.versions")["found"]
    assert "(hyocr-1): NCCL_SOCKET_IFNAME=nosuch0: no such interface" in report.row("network.interfaces")["found"]

    # What the launcher forwards wins over the node's own value.
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("HYOCR_FORWARD", "NCCL_SOCKET_IFNAME")
    assert "reaches no other node" in cluster(2).row("network.interfaces")["found"]
    pair.leave()


def test_unreachable_cluster(preflight, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    report = preflight(stage="cluster")
    assert report.bad() == {"ray.address": "FAIL"} and report.code == 1
    row = report.row("ray.address")
    assert "no usable Ray cluster at RAY_ADDRESS=127.0.0.1:1" in row["found"] and "start_ray.sh local" in row["remedy"]


def test_something_else_listens_there(preflight, monkeypatch):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{listener.getsockname()[1]}")
        monkeypatch.setattr("utils.ray.gcs.probe_head.__defaults__", (8.0,))
        report = preflight(stage="cluster")
    assert report.bad() == {"ray.address": "FAIL"} and "Ray" in report.row("ray.address")["found"]


# ------------------------------------------------------------------------------------------------------- pure functions
def node(index: int | None, ip: str, alive: bool = True) -> dict:
    return {"name": "other" if index is None else f"hyocr-{index}", "ip": ip, "alive": alive, "resources": {"GPU": 8.0}}


def test_missing_nodes_are_named_as_exactly_as_is_known():
    nodes = [node(0, "10.0.0.1"), node(1, "10.0.0.2", alive=False), node(3, "10.0.0.4")]
    named = missing_nodes(Cluster("10.0.0.1:6379", nodes, None), 4, ["a", "b", "c", "d"])
    assert named == ["INDEX 1 on b (10.0.0.2 died)", "INDEX 2 on c"]
    # Started with plain "ray start": only what died is known.
    nodes = [node(None, "10.0.0.1"), node(None, "10.0.0.2", alive=False)]
    assert missing_nodes(Cluster("10.0.0.1:6379", nodes, None), 2, []) == ["10.0.0.2 (died)"]
    # A node that came back is not missing.
    nodes = [node(0, "10.0.0.1"), node(1, "10.0.0.2", alive=False), node(1, "10.0.0.2")]
    assert missing_nodes(Cluster("10.0.0.1:6379", nodes, None), 2, []) == []


@pytest.mark.parametrize(("sent", "shown", "received", "off"), [(10, 11, 12, 0), (10, 7, 12, 3), (10, 100, 12, 88)])
def test_clock_deviation_is_what_is_certain(sent, shown, received, off):
    assert deviation(sent, shown, received) == off


UP = {"lo": True, "eth0": True, "eth1": False, "ens5": True}


@pytest.mark.parametrize(
    ("variable", "text", "problem"),
    [
        ("NCCL_SOCKET_IFNAME", "eth", None),
        ("NCCL_SOCKET_IFNAME", "=eth", "no such interface"),
        ("NCCL_SOCKET_IFNAME", "=eth1", "eth1 is down"),
        ("NCCL_SOCKET_IFNAME", "^lo,docker", None),
        ("NCCL_SOCKET_IFNAME", "ib,ens", None),
        ("GLOO_SOCKET_IFNAME", "eth", "no such interface"),
        ("GLOO_SOCKET_IFNAME", "eth0", None),
        ("GLOO_SOCKET_IFNAME", "lo", "reaches no other node"),
    ],
)
def test_interfaces_as_nccl_and_gloo_read_them(variable, text, problem):
    found = interface_problem(variable, text, UP, nnodes=2)
    assert (found is None) if problem is None else (problem in found)


ADAPTERS = {"mlx5_0": {"1": True}, "mlx5_1": {"1": False}, "mlx5_10": {"1": True, "2": False}, "roce_0": {"1": False}}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("mlx5", None),
        ("=mlx5_0:1", None),
        ("mlx5_1", None),
        ("=mlx5_1", "no active port on mlx5_1"),
        ("=mlx5_0:2", "mlx5_0 has no port 2"),
        ("=mlx5_7", "no such adapter"),
        ("^mlx5_0,mlx5_1", "no active port on roce_0"),
    ],
)
def test_adapters_as_nccl_reads_them(text, problem):
    found = adapter_problem(text, ADAPTERS)
    assert (found is None) if problem is None else (problem in found)


def test_no_adapter_at_all():
    assert "no InfiniBand" in adapter_problem("=mlx5_0", {})


def test_a_silent_cluster_is_asked_once(preflight, monkeypatch):
    from utils.preflight import ray_cluster

    asked = []
    monkeypatch.setattr(ray_cluster, "head_address", lambda environ: asked.append(1) or "127.0.0.1:1")
    assert preflight(stage="cluster").bad() == {"ray.address": "FAIL"}
    assert len(asked) == 1
