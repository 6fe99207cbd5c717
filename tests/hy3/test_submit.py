"""The job submission: what travels to the cluster, and what is refused before anything is sent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "verl/examples/hy3"
SET = {"RAY_ADDRESS": "http://10.0.0.1:8265", "MODEL_PATH": "/m", "DATA_DIR": "/d", "OUTPUT_DIR": "/o"}


def submit(*arguments: str, **settings: str) -> subprocess.CompletedProcess:
    keep = {name: os.environ[name] for name in ("PATH", "HOME", "VIRTUAL_ENV") if name in os.environ}
    return subprocess.run(
        ["bash", str(FOLDER / "submit.sh"), *arguments],
        env={**keep, "PYTHON": sys.executable, **settings},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_settings_and_folder_travel(kit_root):
    result = submit(
        "--dry-run", "--", "--dry-run", **SET, TRAIN_PP="4", HY3_FORWARD="NCCL_DEBUG", NCCL_DEBUG="INFO", OTHER="x"
    )
    assert result.returncode == 0, result.stderr
    environment, command = json.JSONDecoder().raw_decode(result.stdout)[0], result.stdout.split("\n\n")[-1]
    assert environment["working_dir"] == str(kit_root)
    assert {"/.git/", "/.venv/", "*.safetensors"} <= set(environment["excludes"])
    variables = environment["env_vars"]
    assert variables["TRAIN_PP"] == "4" and variables["MODEL_PATH"] == "/m" and variables["NCCL_DEBUG"] == "INFO"
    assert variables["PYTHONPATH"].split(":")[0] == "."
    assert "OTHER" not in variables and "RAY_ADDRESS" not in variables
    assert "--no-wait" in command and command.strip().endswith("run_hy_v3_megatron.sh --dry-run")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"RAY_ADDRESS": ""}, "RAY_ADDRESS is not set"),
        ({"RAY_ADDRESS": "10.0.0.1:6379"}, "must be http://HEAD:PORT"),
        ({"MODEL_PATH": ""}, "MODEL_PATH is not set"),
        ({"MODEL_PATH": "models/x"}, "must be an absolute path"),
        ({"DATA_DIR": ""}, "set DATA_DIR"),
        ({"OUTPUT_DIR": ""}, "OUTPUT_DIR is not set"),
    ],
)
def test_refusals(change, message):
    result = submit("--dry-run", **{**SET, **change})
    assert result.returncode == 2 and message in result.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a list", "must be a YAML object"),
        ("env_vars: {A: 1}", "quote A"),
        ("working_dir: ./nowhere", "is no folder"),
        ("a: [", "cannot be read"),
    ],
)
def test_a_broken_environment_file_is_refused(script, tmp_path, text, message):
    (tmp_path / "env.yaml").write_text(text)
    with pytest.raises(ValueError, match=message):
        script("runtime_env").build(tmp_path / "env.yaml", {}, tmp_path)


def test_excludes_keep_the_package_small(kit_root, script):
    """What would travel, by Ray's own walk over the folder; Ray refuses packages above 500 MiB."""
    from ray._private.runtime_env.packaging import _dir_travel, _get_excludes

    environment = script("runtime_env").build(FOLDER / "runtime_env.yaml", {}, kit_root)
    found = []
    _dir_travel(kit_root, [_get_excludes(kit_root, environment["excludes"])], found.append, include_gitignore=True)
    names = {str(path.relative_to(kit_root)) for path in found}
    assert "verl/examples/grpo_trainer/run_hy_v3_megatron.sh" in names and "utils/cluster_check.py" in names
    assert not any(name.startswith((".git/", ".venv/", "outputs/")) for name in names)
    assert sum(path.stat().st_size for path in found if path.is_file()) < 100 * 2**20
