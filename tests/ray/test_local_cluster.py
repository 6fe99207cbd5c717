"""A real one-node cluster through the scripts: start, look, use, stop."""

from __future__ import annotations

import json

import psutil

ACTOR = """
import subprocess, sys
@ray.remote(num_gpus=1, lifetime="detached", name="keeper", namespace="t")
class Keeper:
    def start(self):
        # A grandchild in a session of its own, without Ray's environment: like a server that an actor launches.
        command = [sys.executable, "-c", "import time; time.sleep(3600)"]
        self.child = subprocess.Popen(command, start_new_session=True, env={})
        return self.child.pid
print(ray.get(Keeper.remote().start.remote()))
"""


def test_start_use_and_stop(ray_host, port):
    done = ray_host.start("local", "--json", RAY_PORT=port, RAY_NUM_CPUS="3")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["NUM_GPUS"] == 1 and record["RAY_ADDRESS"].endswith(f":{port}")

    (row,) = ray_host.status()
    assert row["alive"] and [node["resources"]["GPU"] for node in row["nodes"]] == [1.0]
    assert row["nodes"][0]["resources"]["CPU"] == 3.0

    again = ray_host.start("local", RAY_PORT=port)
    assert again.returncode == 0 and "already running" in again.stderr
    other = ray_host.start("local", RAY_PORT=port, RAY_LOGICAL_GPUS="2")
    assert other.returncode == 1 and "stop_ray.sh --port" in other.stderr

    grandchild = psutil.Process(int(ray_host.driver(ACTOR, record["RAY_ADDRESS"]).split()[-1]))
    assert grandchild.is_running()
    planned = ray_host.stop("--dry-run")
    assert planned.returncode == 0 and str(grandchild.pid) in planned.stdout and grandchild.is_running()

    done = ray_host.stop("--purge")
    assert done.returncode == 0, done.stderr
    assert not grandchild.is_running()
    left = [p.info for p in psutil.process_iter(["pid", "cmdline"]) if str(ray_host.run_dir) in str(p.info["cmdline"])]
    assert left == []
    assert not list(ray_host.run_dir.rglob("session_*")) and ray_host.status() == []
