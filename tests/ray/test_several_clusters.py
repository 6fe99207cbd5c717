"""Two clusters and two nodes on one host, for real: nothing but the named node is ever stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import psutil
import pytest

pytestmark = pytest.mark.slow
ONE_TASK = "print('GPU task', ray.get(ray.remote(num_gpus=1)(lambda: 6 * 7).remote()))"


def test_stopping_one_cluster_leaves_the_other_alone(make_host, port, other_port):
    host = make_host()
    first = host.start("local", "--json", RAY_PORT=port)
    second = host.start("local", "--json", RAY_PORT=other_port)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr

    ambiguous = host.stop()
    assert (
        ambiguous.returncode == 2
        and f"--port {port}" in ambiguous.stderr
        and f"--port {other_port}" in ambiguous.stderr
    )

    done = host.stop("--port", port)
    assert done.returncode == 0, done.stderr
    (left,) = host.status()
    assert left["RAY_PORT"] == int(other_port) and left["alive"]
    assert "GPU task 42" in host.driver(ONE_TASK, left["RAY_ADDRESS"])

    # A foreign run directory (another user of the same host) does not even see it.
    stranger = make_host()
    foreign = stranger.start("local", RAY_PORT=other_port)
    assert foreign.returncode == 1 and "in use by pid" in foreign.stderr and "gcs_server" in foreign.stderr
    assert stranger.stop().returncode == 0 and host.status()[0]["alive"]


def test_worker_joins_and_mismatches_are_refused(make_host, port, own_address, tmp_path):
    head, worker, other = make_host(), make_host(), make_host()
    address = {"HEAD_IP": own_address, "RAY_PORT": port}
    done = head.start("2", "0", **address)
    assert done.returncode == 0 and f"HEAD_IP={own_address}" in done.stderr, done.stderr

    # Another transformers in front of the pinned one, as on a node with another environment.
    metadata = tmp_path / "transformers-0.0.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 0.0.1\n")
    done = worker.start("2", "1", **address, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1 and "version mismatch" in done.stderr and "here 0.0.1" in done.stderr

    done = worker.start("3", "1", **address)
    assert done.returncode == 1 and "was started for 2 nodes, not 3" in done.stderr

    hosts = tmp_path / "hosts"
    hosts.write_text(f"{own_address} slots=1\nother-node slots=1\n")
    done = worker.start("2", "1", "--json", HOSTS_FILE=str(hosts), RAY_PORT=port)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["RAY_ADDRESS"] == f"{own_address}:{port}"

    done = other.start("2", "1", **address)
    assert done.returncode == 1 and "INDEX 1 is already taken" in done.stderr

    done = head.start("2", "0", "--wait-for-nodes", **address)
    assert done.returncode == 0 and "all 2 nodes are there" in done.stderr

    assert worker.stop().returncode == 0
    late = head.start("2", "0", "--wait-for-nodes", RAY_WAIT_SECONDS="1", **address)
    assert late.returncode == 1 and "missing INDEX 1" in late.stderr
    assert head.status()[0]["alive"]


def test_blocking_start_reports_a_dead_raylet_and_stops_on_sigterm(make_host, port):
    host = make_host()
    blocked = host.popen("bash", "utils/ray/start_ray.sh", "local", "--block", RAY_PORT=port)
    state = wait_for_record(host, blocked)
    raylet = next(int(entry.split(":")[0]) for entry in state.processes if entry.endswith(":raylet"))
    os.kill(raylet, signal.SIGKILL)
    _, errors = blocked.communicate(timeout=120)
    assert blocked.returncode == 1 and "the node died" in errors
    assert host.recorded() == []

    blocked = host.popen("bash", "utils/ray/start_ray.sh", "local", "--block", RAY_PORT=port)
    state = wait_for_record(host, blocked)
    pids = [int(entry.split(":")[0]) for entry in state.processes]
    blocked.send_signal(signal.SIGTERM)
    blocked.communicate(timeout=120)
    assert blocked.returncode == 0 and host.recorded() == []
    assert not any(psutil.pid_exists(pid) for pid in pids)


def wait_for_record(host, process: subprocess.Popen):
    """The node's record once start_ray.sh has written the processes into it."""
    from utils.ray import node_state

    while process.poll() is None:
        for path in host.recorded():
            if (state := node_state.read_state(path)).processes:
                return state
    raise AssertionError(process.communicate()[1])
