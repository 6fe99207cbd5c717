"""A copy of the parts of the repository that the installers read, with lock files of our own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
CLEARED = ("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "PYTHON", "HYOCR_INSTALLER", "INSTALL_SYSTEM_PACKAGES")


class Checkout:
    """Scripts, lock files and a stand-in for verl/ in a folder of their own; commands come from ``bin`` first."""

    def __init__(self, root: Path) -> None:
        self.root = root / "kit"
        self.bin = root / "bin"
        self.bin.mkdir()
        (self.root / "requirements").mkdir(parents=True)
        (self.root / "utils").mkdir()
        for name in ("install_cpu.sh", "install_cu13.sh"):
            shutil.copy(REPO / name, self.root)
        shutil.copytree(REPO / "utils/install", self.root / "utils/install")
        shutil.copy(REPO / "requirements/host.txt", self.root / "requirements")
        for name in ("cpu", "gpu", "dev"):
            (self.root / f"requirements/{name}.txt").write_text("")
        fork = self.root / "verl"
        (fork / "verl_hyocr").mkdir(parents=True)
        (fork / "verl_hyocr/__init__.py").write_text("")
        (fork / "pyproject.toml").write_text(
            '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
            '[project]\nname = "verl-hyocr"\nversion = "0.0.1"\n[tool.setuptools.packages.find]\ninclude = ["verl_hyocr*"]\n'
        )

    def tool(self, name: str, script: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)

    def run(self, script: str, *args: str, path: str | None = None, **environment: str) -> subprocess.CompletedProcess:
        base = {key: value for key, value in os.environ.items() if key not in CLEARED}
        search = path if path is not None else f"{self.bin}:{base['PATH']}"
        return subprocess.run(
            ["bash", str(self.root / script), *args],
            env={**base, "PATH": search, **environment},
            capture_output=True,
            text=True,
            timeout=600,
        )


@pytest.fixture
def checkout(tmp_path) -> Checkout:
    return Checkout(tmp_path)


@pytest.fixture
def base_python() -> str:
    """The interpreter behind this environment: not itself inside one."""
    return str(Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}")
