"""train_grpo.sh and its preflight: a FAIL stops it before Ray starts, --skip-preflight goes on."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def launch(healthy, kit_root):
    """``launch(*arguments, NAME=value)``: the launcher with the healthy settings in its environment."""

    def run(*arguments: str, **changes: str) -> subprocess.CompletedProcess:
        keep = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        return subprocess.run(
            ["bash", str(kit_root / "train_grpo.sh"), *arguments],
            env={**keep, "PYTHON": os.sys.executable, "HF_HUB_OFFLINE": "1", **healthy, **changes},
            capture_output=True,
            text=True,
            timeout=300,
            stdin=subprocess.DEVNULL,
        )

    return run


def test_fail_stops_before_ray_starts(launch):
    with tempfile.TemporaryDirectory(prefix="pf-", dir="/tmp") as ray_dir:
        result = launch(START_RAY="1", RAY_RUN_DIR=ray_dir, LOGGERS="console,tensorbord")
        assert list(Path(ray_dir).iterdir()) == [], "start_ray.sh did not run"
    assert result.returncode == 2
    assert "FAIL  loggers.backends" in result.stdout and "do not start" in result.stdout
    assert "--skip-preflight goes on regardless" in result.stderr
    assert "ray.address" not in result.stdout, "what needs Ray is checked after its start"


def test_hydra_overrides_reach_it(launch):
    result = launch("--", "reward.custom_reward_function.name=no_such_function", RAY_ADDRESS="127.0.0.1:1")
    assert result.returncode == 2
    assert "FAIL  reward.function" in result.stdout and "FAIL  ray.address" in result.stdout


def test_skipping_it_goes_on(launch):
    result = launch("--skip-preflight", LOGGERS="console,tensorbord", RAY_ADDRESS="127.0.0.1:1")
    assert result.returncode == 2
    assert "preflight:" not in result.stdout + result.stderr and "loggers" not in result.stdout
    assert "no usable Ray cluster at RAY_ADDRESS=127.0.0.1:1" in result.stderr, (
        "only that there is a cluster is still asked"
    )


def test_help_names_the_option(launch):
    assert "--skip-preflight" in launch("--help").stdout
