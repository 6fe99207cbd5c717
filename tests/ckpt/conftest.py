"""Real sharded checkpoints of the tiny model, written once for each rank layout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> Path:
    """The tiny random HunYuanVL checkpoint in the released layout."""
    from utils.demo.build_model import build

    return build(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def write_checkpoints(model, tmp_path_factory):
    """write_checkpoints(ranks, hsdp=False) -> folder with global_step_1 and _2, HuggingFace export included."""
    done: dict[tuple[int, bool], Path] = {}

    def write(ranks: int, hsdp: bool = False) -> Path:
        if (ranks, hsdp) not in done:
            root = tmp_path_factory.mktemp("ckpt") / f"{ranks}{'-hsdp' if hsdp else ''}"
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
            command += [str(REPO / "tests/ckpt/save_checkpoint.py"), str(model), str(root), "--steps", "1", "2"]
            command += ["--export", *(["--hsdp"] if hsdp else [])]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            run = subprocess.run(command, env=environment, cwd=REPO, capture_output=True, text=True, timeout=600)
            assert run.returncode == 0, run.stderr[-4000:]
            done[ranks, hsdp] = root
        return done[ranks, hsdp]

    return write


@pytest.fixture
def run_copy(write_checkpoints, tmp_path):
    """run_copy(ranks, hsdp=False) -> (copy of the checkpoints without weights in huggingface/, the exports' folder)."""

    def copy(ranks: int, hsdp: bool = False) -> tuple[Path, Path]:
        exports = write_checkpoints(ranks, hsdp)
        root = tmp_path / "run/ckpt"
        shutil.copytree(exports, root)
        for weights in root.rglob("*.safetensors"):
            weights.unlink()
        return root, exports

    return copy


VARIABLES = ("STEPS", "CKPT_ROOT", "TARGET_DIR_MODE", "TARGET_ROOT", "DTYPE", "MODEL_PATH", "USE_CPU_INIT")


@pytest.fixture
def merge(monkeypatch, capsys):
    """merge(*options, **environment) -> (exit code, stdout, stderr) of the tool behind the script, in this process."""
    from utils.ckpt import merge as tool

    def run(*options: str, **environment: str) -> tuple[int, str, str]:
        with monkeypatch.context() as patch:
            for name in VARIABLES:
                patch.delenv(name, raising=False)
            for name, value in environment.items():
                patch.setenv(name, value)
            try:
                code = tool.main(list(options))
            except SystemExit as error:
                code = error.code
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def merge_script():
    """merge_script(*options, **environment) -> the finished merge_fsdp_ckpt_to_hf.sh."""

    def run(*options: str, **environment: str) -> subprocess.CompletedProcess:
        base = {key: value for key, value in os.environ.items() if key not in VARIABLES}
        return subprocess.run(
            ["bash", "utils/ckpt/merge_fsdp_ckpt_to_hf.sh", *options],
            env={**base, "PYTHON": sys.executable, **environment},
            cwd=REPO,
            capture_output=True,
            text=True,
            timeout=600,
        )

    return run
