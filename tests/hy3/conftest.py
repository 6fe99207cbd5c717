"""What the Hy3 tests share: its folder of scripts, a tiny checkpoint, and how the launcher is called."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "verl" / "examples"
LAUNCHER = EXAMPLES / "grpo_trainer" / "run_hy_v3_megatron.sh"


def load_script(name: str):
    """A script of ``verl/examples/hy3`` as a module; its neighbours are importable as they are for the script itself."""
    folder = EXAMPLES / "hy3"
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def run_launcher(*arguments: str, **settings: str) -> subprocess.CompletedProcess:
    """``bash run_hy_v3_megatron.sh ARGUMENTS`` with no settings but these."""
    keep = {name: os.environ[name] for name in ("PATH", "HOME", "VIRTUAL_ENV", "TMPDIR") if name in os.environ}
    return subprocess.run(
        ["bash", str(LAUNCHER), *arguments],
        env={**keep, "PYTHON": sys.executable, "HF_HUB_OFFLINE": "1", **settings},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=300,
    )


@pytest.fixture(scope="session")
def launcher():
    return run_launcher


@pytest.fixture(scope="session")
def script():
    return load_script


@pytest.fixture(scope="session")
def tiny_hy3(tmp_path_factory) -> Path:
    """A tiny random Hy3 checkpoint in the released layout (fp32)."""
    return load_script("build_tiny_model").build(tmp_path_factory.mktemp("hy3") / "model")
