"""A run that is set up right, as files and environment variables, and the preflight called in this process."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from utils.preflight.__main__ import main

GIB = 2**30
# Settings of the calling shell that would change what is checked.
FOREIGN = ("HYOCR_", "JUDGE_", "NCCL_", "GLOO_", "UCX_", "RAY_", "VLLM_", "VERL_", "TRAIN_", "ROLLOUT_", "MAX_")


@dataclass
class Report:
    """What one call said."""

    code: int
    results: list[dict[str, str]]
    not_checked: dict[str, str]

    def bad(self) -> dict[str, str]:
        """Check -> status of what is not PASS; the most serious of a check."""
        found: dict[str, str] = {}
        for row in self.results:
            if row["status"] != "PASS" and found.get(row["check"]) != "FAIL":
                found[row["check"]] = row["status"]
        return found

    def row(self, check: str) -> dict[str, str]:
        """The row of a check that has one row, or its first that is not PASS."""
        rows = [row for row in self.results if row["check"] == check]
        assert rows, f"{check} said nothing: {self.not_checked.get(check)}"
        return next((row for row in rows if row["status"] != "PASS"), rows[0])


@pytest.fixture(scope="session")
def pages(tmp_path_factory, kit_root) -> Path:
    """train.parquet and val.parquet as data/prepare_data.py writes them, 20 and 4 rows of three tasks."""
    folder = tmp_path_factory.mktemp("pages")
    for command in (
        ["-m", "utils.demo.make_data", str(folder), "--count", "24"],
        [
            "data/prepare_data.py", "--inputs", str(folder / "raw.jsonl"), "--output_train", str(folder / "train.parquet"),
            "--output_val", str(folder / "val.parquet"), "--val_ratio", "0.17",
        ],
    ):  # fmt: skip
        done = subprocess.run([sys.executable, *command], cwd=kit_root, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def good_machine(monkeypatch):
    """Facts of the machine that tests cannot set: enough memory, a large /dev/shm, many open files."""
    monkeypatch.setattr("utils.preflight.node_probe._memory", lambda: [32 * GIB, 24 * GIB])
    monkeypatch.setattr("utils.preflight.node_probe._disk", lambda path: [16 * GIB, 12 * GIB])
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = before[1] if before[1] != resource.RLIM_INFINITY else 65536
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture
def healthy(monkeypatch, tmp_path, tiny_model, pages, good_machine) -> dict[str, str]:
    """The environment of a run on the CPU platform with nothing wrong; it is set, change it with monkeypatch.setenv."""
    for name in list(os.environ):
        if name.startswith(FOREIGN):
            monkeypatch.delenv(name)
    settings = {
        "VERL_PLATFORM": "cpu",
        "MODEL_PATH": str(tiny_model),
        "TRAIN_FILES": str(pages / "train.parquet"),
        "VAL_FILES": str(pages / "val.parquet"),
        "OUTPUT_DIR": str(tmp_path / "out"),
        "HF_HOME": str(tmp_path / "hf"),
        "NNODES": "1",
        "NGPUS_PER_NODE": "1",
        "TRAIN_BATCH_SIZE": "4",
        "PPO_MINI_BATCH_SIZE": "4",
        "ROLLOUT_N": "4",
        "MAX_PROMPT_LENGTH": "128",
        "MAX_RESPONSE_LENGTH": "32",
        "MAX_MODEL_LEN": "256",
        "MAX_TOKENS_PER_GPU": "2048",
        "LOGPROB_MAX_TOKENS_PER_GPU": "2048",
        "MAX_NUM_SEQS": "16",
        "WEIGHT_BUCKET_MB": "128",
        "TOTAL_STEPS": "4",
        "SAVE_FREQ": "2",
        "VLLM_CPU_KVCACHE_SPACE": "1",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    return settings


@pytest.fixture
def preflight(healthy, capsys) -> Callable[..., Report]:
    """``preflight("--only", "data")``: main() with --json; by default everything that needs neither Ray nor seconds."""

    def call(*arguments: str, stage: str = "local", without: str = "versions.plugin") -> Report:
        capsys.readouterr()
        code = main(["--json", "--stage", stage, "--except", without, *arguments])
        report = json.loads(capsys.readouterr().out)
        return Report(code, report["results"], report["not_checked"])

    return call


@pytest.fixture
def copied_model(tiny_model, tmp_path, monkeypatch, healthy) -> Path:
    """The checkpoint as a copy of its own, which MODEL_PATH names."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    monkeypatch.setenv("MODEL_PATH", str(folder))
    return folder


@pytest.fixture
def edit_json(copied_model) -> Callable[..., None]:
    """``edit_json("config.json", key=value)``; None removes the key."""

    def edit(name: str, **changes: Any) -> None:
        path = copied_model / name
        read = {**json.loads(path.read_text()), **changes}
        path.write_text(json.dumps({key: value for key, value in read.items() if value is not None}))

    return edit


@pytest.fixture
def edit_rows(pages, tmp_path, monkeypatch, healthy) -> Callable[..., Path]:
    """``edit_rows(change)``: the training rows, each through ``change``, as the new TRAIN_FILES."""

    def edit(change: Callable[[dict[str, Any]], Any]) -> Path:
        table = pq.read_table(pages / "train.parquet")
        rows = table.to_pylist()
        for row in rows:
            change(row)
        path = tmp_path / "changed.parquet"
        same_columns = rows[0].keys() == set(table.schema.names)
        pq.write_table(pa.Table.from_pylist(rows, table.schema if same_columns else None), path)
        monkeypatch.setenv("TRAIN_FILES", str(path))
        return path

    return edit


@pytest.fixture
def reward_file(tmp_path, monkeypatch, healthy) -> Callable[[str], Path]:
    """``reward_file(source)``: a reward function of the user's, which REWARD_FN_PATH names."""

    def write(source: str) -> Path:
        path = tmp_path / "my_reward.py"
        path.write_text(source)
        monkeypatch.setenv("REWARD_FN_PATH", str(path))
        monkeypatch.setenv("REWARD_FN_NAME", "compute_score")
        return path

    return write


@pytest.fixture
def gpu_host(tmp_path, monkeypatch, healthy) -> Callable[..., None]:
    """``gpu_host(count, …)``: the GPU platform with an nvidia-smi that reports made-up GPUs."""

    def make(
        count: int = 1,
        name: str = "NVIDIA H100",
        total: int = 81559,
        used: int = 0,
        driver: str = "580.95",
        cuda: str = "13.0",
    ) -> None:
        folder = tmp_path / "bin"
        folder.mkdir()
        rows = "\n".join(f"{index}, {name}, {driver}, {total}, {used}" for index in range(count))
        script = folder / "nvidia-smi"
        script.write_text(
            f"#!/bin/sh\ncase \"$1\" in --query-gpu=*) cat <<'X'\n{rows}\nX\n;;\n"
            f"*) echo 'Driver Version: {driver}  CUDA Version: {cuda}' ;; esac\n"
        )
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        monkeypatch.delenv("VERL_PLATFORM")

    return make
