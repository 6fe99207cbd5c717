"""start_ray.sh and stop_ray.sh refuse what cannot work, with the reason, before Ray runs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from utils.ray import cluster, host, node_state


@pytest.mark.parametrize(
    "args, changes, words",
    [
        (["two"], {}, "NNODES must be"),
        (["0", "0"], {}, "NNODES must be"),
        (["2"], {}, "which of the 2 nodes"),
        (["2", "2"], {}, "INDEX must be 0..1"),
        (["local", "1"], {}, "takes no index"),
        (["2", "1"], {}, "where is the head"),
        (["2", "1"], {"HOSTS_FILE": "/nowhere"}, "HOSTS_FILE /nowhere"),
        (["2", "0"], {"HEAD_IP": "203.0.113.7"}, "not an address of this host"),
        (["local"], {"NODE_IP": "203.0.113.7"}, "NODE_IP=203.0.113.7 is not an address"),
        (["local"], {"RAY_LOGICAL_GPUS": ""}, "RAY_LOGICAL_GPUS=1"),
        (["local"], {"RAY_LOGICAL_GPUS": "0"}, "at least 1"),
        (["local"], {"RAY_LOGICAL_GPUS": "x"}, "RAY_LOGICAL_GPUS='x' is not a number"),
        (["local"], {"RAY_LOGICAL_GPUS": "", "NGPUS_PER_NODE": "9"}, "this host has 0"),
        (["local"], {"NGPUS_PER_NODE": "2"}, "contradicts"),
        (["local"], {"RAY_PORT": "70000"}, "not a port"),
        (["local"], {"RAY_OBJECT_STORE_GB": "0.01"}, "at least 0.08"),
        (["local"], {"RAY_TEMP_DIR": "/tmp/" + "x" * 60}, "too long"),
        (["local"], {"NET_TIER": "Z"}, "NET_TIER=Z"),
    ],
)
def test_bad_requests(ray_host, port, args, changes, words):
    # CUDA_VISIBLE_DEVICES empty: the same answers on a host with GPUs.
    done = ray_host.start(*args, **{"RAY_PORT": port, "CUDA_VISIBLE_DEVICES": "", **changes})
    assert done.returncode == (1 if "NET_TIER" in changes else 2)
    assert words in done.stderr
    assert ray_host.recorded() == []


@pytest.mark.parametrize("script", ["start_ray.sh", "stop_ray.sh"])
def test_help_names_the_environment_variables(ray_host, script):
    done = ray_host.run("bash", f"utils/ray/{script}", "--help")
    assert done.returncode == 0 and script in done.stdout and "RAY_PORT" in done.stdout


def test_busy_port_names_its_owner(ray_host, port):
    with socket.socket() as listener:
        listener.bind(("", int(port)))
        listener.listen()
        done = ray_host.start("local", RAY_PORT=port)
    assert done.returncode == 1
    assert f"port {port} is in use by pid {os.getpid()}" in done.stderr and "RAY_PORT" in done.stderr


def test_head_that_is_not_up_is_reported_as_refused(ray_host, port, own_address):
    done = ray_host.start("2", "1", HEAD_IP=own_address, RAY_PORT=port, RAY_WAIT_SECONDS="1")
    assert done.returncode == 1
    assert f"waiting for the head {own_address}:{port}" in done.stderr
    assert "not reached within" in done.stderr and "refused: the host answers" in done.stderr


def test_unknown_head_name(ray_host, port, tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("# cluster\nno-such-host.invalid slots=8\nother\n")
    done = ray_host.start("2", "1", HOSTS_FILE=str(hosts), RAY_PORT=port, RAY_WAIT_SECONDS="0")
    assert done.returncode == 1 and "'no-such-host.invalid' does not resolve" in done.stderr


def test_loopback_is_no_head_for_others(ray_host, port):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", int(port)))
        listener.listen()
        done = ray_host.start("2", "1", HEAD_IP="127.0.0.1", RAY_PORT=port)
    assert done.returncode == 2 and "loopback" in done.stderr


def test_dry_run_prints_the_command_and_starts_nothing(ray_host, port):
    done = ray_host.start("local", "--dry-run", "--", "--resources={}", RAY_PORT=port, RAY_NUM_CPUS="3")
    assert done.returncode == 0
    assert f"--port={port}" in done.stdout and "--num-cpus=3" in done.stdout and "--resources={}" in done.stdout
    assert ray_host.recorded() == [] and host.listener_on(int(port)) is None


def test_stop_without_anything_to_stop(ray_host):
    done = ray_host.stop()
    assert done.returncode == 0 and "nothing to stop" in done.stderr


def test_run_directory_of_somebody_else_is_refused(ray_host, port, tmp_path):
    file = tmp_path / "file"
    file.touch()
    done = ray_host.start("local", RAY_PORT=port, RAY_RUN_DIR=str(file))
    assert done.returncode == 1 and "RAY_RUN_DIR" in done.stderr


def test_damaged_state_file_is_named(ray_host):
    (ray_host.run_dir / "6379.env").write_text("RAY_PORT=6379\n")
    done = ray_host.stop()
    assert done.returncode == 1 and "6379.env is damaged" in done.stderr
    (ray_host.run_dir / "6379.env").unlink()


def state(**changes) -> node_state.NodeState:
    values = {
        "RAY_ADDRESS": "10.0.0.1:6379",
        "RAY_PORT": 6379,
        "NODE_INDEX": 0,
        "NNODES": 1,
        "NODE_IP": "10.0.0.1",
        "RAY_TEMP_DIR": "/tmp/with space",
        "NODE_ID": "abc",
        "NUM_GPUS": 1,
        "HOST_BOOT_ID": node_state.boot_id(),
        "STARTED_AT": "now",
    }
    return node_state.NodeState(**{**values, **changes})


def test_state_file_round_trip_and_is_shell_code(tmp_path):
    path = tmp_path / "6379.env"
    written = state(processes=["1:2.00:raylet", "3:4.00:ray::IDLE"])
    node_state.write_state(path, written)
    assert node_state.read_state(path) == written
    shell = subprocess.run(
        ["bash", "-euc", f'source {path}; echo "$RAY_TEMP_DIR|$PROCESSES"'], capture_output=True, text=True
    )
    assert shell.stdout == "/tmp/with space|1:2.00:raylet 3:4.00:ray::IDLE\n"


def test_recycled_process_ids_are_not_touched():
    """A recorded pid that now belongs to another process (another start time) is left alone, also after a reboot."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as bystander:
        wrong_time = state(processes=[f"{bystander.pid}:1.00:raylet"])
        other_boot = state(HOST_BOOT_ID="another", NODE_ID="abc")
        assert node_state.stop_node(wrong_time) == (0, [])
        assert node_state.stop_node(other_boot) == (0, [])
        assert bystander.poll() is None
        bystander.communicate(b"\n")


def test_marked_processes_and_their_children_are_stopped():
    """A process without a record is found by its marker, its children as its descendants."""
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'], env={})"
    node = state(NODE_ID="marker-of-this-test")
    marked = subprocess.Popen([sys.executable, "-c", program], env={**os.environ, node_state.MARKER: node.NODE_ID})
    while len(node_state.node_processes(node)) < 2:
        assert marked.poll() is None
    count, left = node_state.stop_node(node)
    assert (count, left) == (2, []) and marked.poll() is not None


@pytest.mark.parametrize(
    "record, ray_version, allow, words",
    [
        ({"versions": {"transformers": "0.0.1"}}, None, False, "transformers: head 0.0.1"),
        ({"versions": {"transformers": "0.0.1"}}, None, True, None),
        (None, "0.0.1", True, "ray: head 0.0.1"),
        (None, None, False, None),
    ],
)
def test_version_mismatch_names_package_and_both_versions(record, ray_version, allow, words, capsys):
    from utils.ray import gcs

    mine = gcs.local_versions()
    probe = {"record": record, "ray_version": ray_version or mine["ray"], "python_version": mine["python"]}
    if words is None:
        cluster.check_versions(probe, "10.0.0.1:6379", allow)
        assert ("transformers differs" in capsys.readouterr().err) == allow
    else:
        with pytest.raises(cluster.ClusterError, match=words):
            cluster.check_versions(probe, "10.0.0.1:6379", allow)


@pytest.mark.parametrize(
    "visible, count", [("", 0), ("0", 1), ("0,3", 2), ("GPU-a,GPU-b,GPU-c", 3), ("-1", 0), ("NoDevFiles", 0)]
)
def test_visible_devices_count_as_gpus(monkeypatch, visible, count):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert host.detect_gpus() == (count, "CUDA_VISIBLE_DEVICES")


def test_gpus_are_counted_by_nvidia_smi_else_by_the_driver_directory(monkeypatch, tmp_path):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpus = tmp_path / "proc/driver/nvidia/gpus"
    for name in ("0000:1a:00.0", "0000:3b:00.0"):
        (gpus / name).mkdir(parents=True)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert host.detect_gpus(tmp_path / "proc")[0] == 2
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin/nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H200 (UUID: GPU-1)'\n")
    tool.chmod(0o755)
    assert host.detect_gpus(tmp_path / "proc") == (1, "nvidia-smi")
    tool.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'\nexit 9\n")
    count, reason = host.detect_gpus(tmp_path / "proc")
    assert count == 0 and "NVIDIA-SMI has failed" in reason


def test_this_folder_never_shadows_ray():
    """utils/ray has no __init__.py: with utils/ on the path `import ray` still finds Ray."""
    utils = Path(cluster.__file__).parents[1]
    out = subprocess.run(
        [sys.executable, "-c", "import ray; print(ray.__version__)"], env={**os.environ, "PYTHONPATH": str(utils)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert out.stdout.strip() == cluster.gcs.local_versions()["ray"]


def test_json_of_a_dead_node(ray_host):
    """A node whose processes are gone shows as dead and is forgotten by stop."""
    node_state.write_state(ray_host.run_dir / "6379.env", state(processes=["1:2.00:raylet"]))
    (row,) = ray_host.status()
    assert row["alive"] is False and json.dumps(row)
    done = ray_host.stop("--port", "6379")
    assert done.returncode == 0 and "stopped, 0 processes" in done.stderr and ray_host.status() == []
