"""A run that is set up right raises no alarm, and the settings are those of the launcher."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import fields

import pytest

from utils.preflight import registry
from utils.preflight.__main__ import main
from utils.preflight.settings import REPO, Settings, SettingsError, read_settings


def test_no_alarm_without_cause(preflight):
    report = preflight(without="ray")
    assert report.bad() == {} and report.code == 0
    said = {row["check"] for row in report.results}
    assert {"versions.plugin", "model.vision_tokens", "data.references", "reward.calls", "disk.checkpoints"} <= said
    assert "A1 A2" in report.row("versions.plugin")["found"]


def test_no_alarm_on_a_gpu_host(preflight, gpu_host):
    gpu_host()
    report = preflight()
    assert report.bad() == {}
    assert {"host.gpus", "host.driver", "memory.training", "memory.kv_cache"} <= {
        row["check"] for row in report.results
    }


def test_defaults_are_the_launchers():
    """Of every variable that a field reads. The documented defaults are those of a GPU host."""
    shown = subprocess.run(
        ["bash", str(REPO / "train_grpo.sh"), "--help"],
        env={"PATH": os.environ["PATH"], "VERL_PLATFORM": "cuda"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    launcher = dict(re.findall(r"^  ([A-Z][A-Z0-9_]+) +(\S+)", shown, re.M))
    environment = {name: "" if value == "(none)" else value for name, value in launcher.items()}
    assert read_settings(environment) == Settings()
    names = {item.metadata["variable"] for item in fields(Settings)} - {""}
    assert names <= set(launcher), "every variable is one of the launcher's"


def test_overrides_win_over_the_environment():
    overrides = ["data.train_batch_size=8", "+data.train_batch_size=16", 'data.train_files=["/a.parquet","/b.parquet"]']
    overrides += ["trainer.total_training_steps=null", "trainer.device=cpu", "some.other.key=1"]
    found = read_settings({"TRAIN_BATCH_SIZE": "4", "TRAIN_FILES": "/c.parquet"}, overrides)
    assert (found.train_batch_size, found.train_files) == (16, ("/a.parquet", "/b.parquet"))
    assert found.on_cpu and found.total_steps == 0


def test_resume_path_is_a_resume_mode():
    overrides = ["trainer.resume_mode=resume_path", "trainer.resume_from_path=/x/global_step_5"]
    assert read_settings({}, overrides).resume_mode == "/x/global_step_5"


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"ROLLOUT_N": "four"}, "ROLLOUT_N must be a whole number, got 'four'"),
        ({"TEMPERATURE": "hot"}, "TEMPERATURE must be a number"),
        ({"USE_DYNAMIC_BSZ": "maybe"}, "USE_DYNAMIC_BSZ must be True or False"),
    ],
)
def test_a_setting_that_cannot_be_read_is_named(environ, message, monkeypatch, capsys):
    with pytest.raises(SettingsError, match=re.escape(message)):
        read_settings(environ)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert main(["--only", "numbers"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--only", "no_such"], ["--", "data.train_batch_size"], ["--path", "other"]])
def test_bad_usage_ends_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2


def test_table_has_remedies_and_counts(preflight, monkeypatch, capsys):
    monkeypatch.setenv("MAX_MODEL_LEN", "100")
    assert main(["--only", "numbers"]) == 1
    shown = capsys.readouterr().out
    assert re.search(r"^FAIL  numbers\.model_length +MAX_MODEL_LEN=100 is below", shown, re.M)
    assert re.search(r"^ +-> set MAX_MODEL_LEN=160$", shown, re.M)
    assert re.search(r"^preflight: \d+ PASS, 0 WARN, 1 FAIL.* s: do not start$", shown, re.M)


def test_strict_makes_a_warning_an_error(preflight, monkeypatch):
    monkeypatch.setenv("HYOCR_DISABLE", "C1")
    assert preflight("--only", "versions").code == 0
    assert preflight("--only", "versions", "--strict").code == 1


def test_one_broken_check_hides_no_other(preflight, monkeypatch):
    def broken(context):
        raise RuntimeError("a fault")

    checks = tuple(
        registry.Check(c.name, broken if c.name == "numbers.batch" else c.run, c.stage, c.paths)
        for c in registry.CHECKS
    )
    monkeypatch.setattr(registry, "CHECKS", checks)
    report = preflight("--only", "numbers")
    assert report.bad() == {"numbers.batch": "FAIL"} and "RuntimeError: a fault" in report.row("numbers.batch")["found"]
    assert report.row("numbers.model_length")["status"] == "PASS"


def test_as_a_command(healthy, kit_root):
    done = subprocess.run(
        [sys.executable, "-m", "utils.preflight", "--only", "numbers,loggers", "--json"],
        cwd=kit_root, env=os.environ, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["summary"]["FAIL"] == 0


def test_nothing_heavy_is_imported(healthy, kit_root):
    """Seconds, not minutes: torch, transformers and vLLM stay out of this process."""
    code = (
        "import sys; from utils.preflight.__main__ import main\n"
        "main(['--stage', 'local', '--except', 'versions.plugin'])\n"
        "print(sorted({'torch', 'transformers', 'vllm', 'verl', 'ray'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=kit_root, env=os.environ, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "[]", done.stdout[-2000:] + done.stderr[-2000:]
