"""How end-to-end tests start the launcher, and what they read from a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def run_launcher(root: Path, work: Path, *hydra: str, **settings: str) -> subprocess.CompletedProcess:
    """``bash train_grpo.sh -- HYDRA…`` with the demo's folders under ``work``.

    Output goes to ``work/launcher.log`` (a file, so that no daemon can keep a pipe open) and into ``stdout`` of the result.
    """
    keep = {name: os.environ[name] for name in ("PATH", "HOME", "VIRTUAL_ENV", "TMPDIR") if name in os.environ}
    env = {
        **keep,
        "PYTHON": sys.executable,
        "VERL_PLATFORM": "cpu",
        "HF_HUB_OFFLINE": "1",
        "RAY_RUN_DIR": f"/tmp/hyocr-e2e-{os.getpid()}",
        "DEMO_DIR": str(work / "demo"),
        **settings,
    }
    log = work / "launcher.log"
    with open(log, "ab") as output:
        result = subprocess.run(
            ["bash", str(root / "train_grpo.sh"), *(["--", *hydra] if hydra else [])],
            env=env,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            timeout=1800,
        )
    result.stdout = log.read_text(errors="replace")
    return result


def training_steps(run: Path) -> dict[int, dict]:
    """Step number -> metrics of the training steps in ``metrics.jsonl``."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {record["step"]: record["data"] for record in records if "training/global_step" in record["data"]}


@pytest.fixture(scope="session")
def launch(kit_root):
    return lambda work, *hydra, **settings: run_launcher(kit_root, work, *hydra, **settings)


@pytest.fixture(scope="session")
def steps_of():
    return training_steps
