"""What the driver sends to the nodes of a run: variables, code, and the version that they have to have."""

from __future__ import annotations

import importlib.metadata
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf
from verl_hyocr import launch_env, versions

from tests.ray.hosts import clean_environment

SHELL = {
    "HYOCR_FORWARD": "GLOO_SOCKET_IFNAME NCCL_IB_HCA NCCL_DEBUG",
    "GLOO_SOCKET_IFNAME": "eth7",
    "NCCL_IB_HCA": "mlx5_0",
    "NCCL_DEBUG": "INFO",
    "VLLM_HOST_IP": "10.0.0.1",
    "VERL_PLATFORM": "cpu",
}


@pytest.fixture
def shell(monkeypatch):
    for name, value in SHELL.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(launch_env.SHIP_ENV, raising=False)


def config(nodes: int, **runtime_env):
    return OmegaConf.create({"trainer": {"nnodes": nodes}, "ray_kwargs": {"ray_init": {"runtime_env": runtime_env}}})


def sent(conf) -> dict:
    return OmegaConf.to_container(conf.ray_kwargs.ray_init.runtime_env)


def test_one_node_gets_everything(shell, capsys):
    conf = config(1)
    launch_env.forward(conf)
    assert SHELL.items() <= sent(conf)["env_vars"].items()
    assert versions.FORK_ENV not in sent(conf)["env_vars"] and capsys.readouterr().out == ""


def test_several_nodes_keep_their_own_addresses_and_interfaces(shell, capsys):
    conf = config(2)
    launch_env.forward(conf)
    variables = sent(conf)["env_vars"]
    assert variables.keys() & {"GLOO_SOCKET_IFNAME", "NCCL_IB_HCA", "VLLM_HOST_IP"} == set()
    assert variables["NCCL_DEBUG"] == "INFO" and variables["VERL_PLATFORM"] == "cpu"
    assert variables[versions.FORK_ENV] == versions.fork()
    said = capsys.readouterr().out
    assert "GLOO_SOCKET_IFNAME, NCCL_IB_HCA, VLLM_HOST_IP of this shell is not forwarded" in said
    assert "+ray_kwargs.ray_init.runtime_env.env_vars.GLOO_SOCKET_IFNAME=eth7" in said


def test_a_value_for_all_nodes_can_be_set_in_the_configuration(shell, capsys):
    conf = config(2, env_vars={"GLOO_SOCKET_IFNAME": "bond0"})
    launch_env.forward(conf)
    assert sent(conf)["env_vars"]["GLOO_SOCKET_IFNAME"] == "bond0"
    assert "GLOO_SOCKET_IFNAME" not in capsys.readouterr().out


def test_shipped_code_comes_with_the_plugins_metadata(shell, monkeypatch, tmp_path):
    """On a node without the kit, with only the shipped folders on the path, Python finds package, plugin and reward."""
    (tmp_path / "own_reward.py").write_text("def compute_score(*args, **kwargs): return 1.0\n")
    kit = Path(launch_env.__file__).parents[2]
    monkeypatch.setenv(launch_env.SHIP_ENV, f"{kit}/reward:{tmp_path}/own_reward.py")
    conf = config(2, py_modules=["/own/module"])
    launch_env.forward(conf)
    first, *rest = sent(conf)["py_modules"]
    assert first == "/own/module"
    names = [Path(path).name for path in rest]
    version = importlib.metadata.version("verl-hyocr")
    assert names == ["verl_hyocr", f"verl_hyocr-{version}.dist-info", "reward", "own_reward.py"]

    # Ray puts each folder, and each file, into a folder of its own on the path of the workers.
    folders = []
    for number, path in enumerate(rest):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / Path(path).name).symlink_to(path)
        folders.append(str(folder))
    program = (
        "import importlib.metadata as m, sys; sys.path[:0] = sys.argv[1:]; import own_reward, reward, verl_hyocr;"
        "print(*{e.value for e in m.entry_points(group='verl.plugins')}, m.version('verl-hyocr'), verl_hyocr.__file__)"
    )
    # -S: without site-packages, so without the installed copy.
    done = subprocess.run([sys.executable, "-S", "-c", program, *folders], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["verl_hyocr.bootstrap", version, f"{folders[0]}/verl_hyocr/__init__.py"]


def dry_run(kit: Path, **settings: str) -> subprocess.CompletedProcess:
    env = clean_environment(VERL_PLATFORM="cpu", HF_HUB_OFFLINE="1", SHIP_CODE="1", NNODES="2", **settings)
    command = ["bash", str(kit / "train_grpo.sh"), "--dry-run"]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)


def test_the_launcher_ships_the_reward_by_name(kit_root, tmp_path):
    done = dry_run(kit_root, OUTPUT_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    command, _, rest = done.stdout.partition("\n\n")
    assert "reward.custom_reward_function.path=pkg://reward_ocr" in command
    modules = yaml.safe_load(rest[rest.index("actor_rollout_ref:") :])["ray_kwargs"]["ray_init"]["runtime_env"][
        "py_modules"
    ]
    assert f"{kit_root}/reward" in modules and f"{kit_root}/reward_ocr.py" in modules


def test_a_reward_file_that_cannot_be_imported_by_name_is_refused(kit_root, tmp_path):
    (tmp_path / "my-reward.py").touch()
    done = dry_run(kit_root, OUTPUT_DIR=str(tmp_path), REWARD_FN_PATH=f"{tmp_path}/my-reward.py")
    assert done.returncode == 2 and "rename" in done.stderr and "my-reward.py" in done.stderr


def test_what_cannot_be_shipped_is_named(shell, monkeypatch, tmp_path):
    monkeypatch.setenv(launch_env.SHIP_ENV, f"{tmp_path}/gone.py")
    with pytest.raises(FileNotFoundError, match=r"gone\.py, which is neither a folder nor a \.py file"):
        launch_env.forward(config(2))


def test_another_fork_on_a_node_is_refused_with_both_versions(monkeypatch):
    monkeypatch.delenv(versions.FORK_ENV, raising=False)
    assert versions.fork_mismatch() is None, "the driver itself, and runs on one node"
    monkeypatch.setenv(versions.FORK_ENV, versions.fork())
    assert versions.fork_mismatch() is None
    monkeypatch.setenv(versions.FORK_ENV, "0.1.0+000000000000")
    message = versions.fork_mismatch()
    for words in (versions.fork(), "the driver has 0.1.0+000000000000", "SHIP_CODE=1"):
        assert words in message


def test_upstream_seams():
    from ray._private.state import GlobalState
    from verl.trainer import main_ppo

    assert {"job_id", "actor_state_name"} <= inspect.signature(GlobalState.actor_table).parameters.keys()
    source = inspect.getsource(main_ppo.run_ppo)
    assert 0 < source.index("get_ppo_ray_runtime_env(config)") < source.index("ray.init(**")
