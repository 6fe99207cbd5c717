"""A worker node without the kit's folder runs the plugin and the reward that Ray brings; a node with another fork refuses."""

from __future__ import annotations

import json
import shutil
import sys

import pytest

from tests.ray.hosts import REPO, Host, two_sites

pytestmark = pytest.mark.slow
# On the head, with the launcher's variables: the runtime environment of the driver, and what the worker's process sees.
DRIVER = """
import json, sys
import ray
from omegaconf import OmegaConf
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as At
from verl_hyocr import launch_env
config = OmegaConf.create({"trainer": {"nnodes": 2}})
launch_env.forward(config)
ray.init(address=sys.argv[1], log_to_driver=False, runtime_env=OmegaConf.to_container(config.ray_kwargs.ray_init.runtime_env))
@ray.remote(num_gpus=1)
def look(kit):
    import os
    import verl
    from verl_hyocr import activate
    found = {"kit": os.listdir(kit), "status": activate.status, "fork": activate.__file__}
    if "HYOCR_SHIP" in os.environ:
        import reward, reward_ocr
        found.update(reward=reward.__file__, entry=reward_ocr.__file__)
    return found | {name: os.environ.get(name) for name in ("GLOO_SOCKET_IFNAME", "VLLM_HOST_IP", "NCCL_DEBUG")}
node = next(n["NodeID"] for n in ray.nodes() if n["Alive"] and n["NodeManagerAddress"] == sys.argv[2])
import json
try:
    print(json.dumps(ray.get(look.options(scheduling_strategy=At(node, soft=False), max_retries=0).remote(sys.argv[3]))))
except ray.exceptions.RayTaskError as error:
    print(json.dumps({"error": str(error)}))
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """(head, worker, their sites); the worker's kit folder is empty but for an environment in it."""
    with two_sites("10.231.79") as sites:
        head, worker = (Host(site.namespace) for site in sites)
        worker.hide_kit(tmp_path_factory.mktemp("bare") / "kit")
        try:
            for host, index in ((head, "0"), (worker, "1")):
                done = host.start("2", index, HEAD_IP=sites[0].address, RAY_NUM_CPUS="2")
                assert done.returncode == 0, done.stderr
            yield head, worker, sites
        finally:
            for host in (worker, head):
                host.close()


def ask(cluster, **changes: str) -> dict:
    """What the worker node's process answers to a driver with those variables."""
    head, _, sites = cluster
    command = (sys.executable, "-c", DRIVER, f"{sites[0].address}:6379", sites[1].address, str(REPO))
    done = head.run(*command, timeout=600, VERL_PLATFORM="cpu", VLLM_HOST_IP=sites[0].address, **changes)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_worker_uses_what_was_shipped(cluster):
    forward = {"HYOCR_FORWARD": "GLOO_SOCKET_IFNAME NCCL_DEBUG", "NCCL_DEBUG": "INFO"}
    found = ask(
        cluster, HYOCR_SHIP=f"{REPO}/reward:{REPO}/reward_ocr.py", GLOO_SOCKET_IFNAME=cluster[2][0].device, **forward
    )
    assert "error" not in found, found["error"]
    assert "train_grpo.sh" not in found["kit"] and "reward" not in found["kit"]
    for name in ("fork", "reward", "entry"):
        assert "/py_modules_files/" in found[name], found
    assert found["status"].endswith("active")
    # The shell's own interface and address are the driver's; the worker keeps its own.
    assert found["GLOO_SOCKET_IFNAME"] == cluster[2][1].device and found["VLLM_HOST_IP"] == cluster[2][1].address
    assert found["NCCL_DEBUG"] == "INFO"


def test_without_shipping_the_worker_has_no_plugin(cluster):
    found = ask(cluster)
    assert "No module named 'verl_hyocr'" in found["error"]


def test_another_copy_of_the_fork_on_the_worker_is_refused(cluster, tmp_path):
    shutil.copytree(REPO / "verl/verl_hyocr", tmp_path / "verl_hyocr", ignore=shutil.ignore_patterns("__pycache__"))
    with open(tmp_path / "verl_hyocr/versions.py", "a") as source:
        source.write("\n# an older checkout\n")
    # The driver's own copy comes first on its path; on the worker that folder does not exist.
    found = ask(cluster, PYTHONPATH=f"{REPO}/verl:{REPO}:{tmp_path}")
    assert "verl-hyocr is not active" in found["error"] and "the driver has 0.1.0+" in found["error"]
    assert "SHIP_CODE=1" in found["error"]


def test_the_preflight_can_ask_a_node_without_the_kit(cluster):
    head, _, sites = cluster
    request = json.dumps({"paths": [f"{REPO}/train_grpo.sh"], "variables": ["GLOO_SOCKET_IFNAME"]})
    probe = f"echo '{request}' | {sys.executable} -m utils.preflight.ray_probe {sites[0].address}:6379 120"
    done = head.run("bash", "-c", probe)
    assert done.returncode == 0, done.stderr
    found = {node["ip"]: node for node in json.loads(done.stdout.splitlines()[-1])}
    assert not any("error" in node for node in found.values()), found
    assert [len(found[site.address]["missing_paths"]) for site in sites] == [0, 1]
    assert [found[site.address]["environment"]["GLOO_SOCKET_IFNAME"] for site in sites] == [s.device for s in sites]
    assert all(node["clock_s"] < 1 for node in found.values())
