"""How the driver ends: signals, dead processes, exit codes. A real Ray, a stand-in for verl's trainer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("driver_end.py")


class Driver:
    """The script, started and read until its trainer waits."""

    def __init__(self, mode: str):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), mode],
            env={**environment, "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.text = ""
        self.pids = json.loads(self.read_until("PIDS ").partition("PIDS ")[2])

    def read_until(self, mark: str) -> str:
        for line in self.process.stdout:
            self.text += line
            if mark in line:
                return line
        raise AssertionError(f"no {mark!r} in:\n{self.text[-3000:]}")

    def end(self) -> int:
        output, _ = self.process.communicate(timeout=240)
        self.text += output
        return self.process.returncode


@pytest.fixture()
def start():
    started = []

    def begin(mode: str) -> Driver:
        started.append(Driver(mode))
        return started[-1]

    yield begin
    for driver in started:
        if driver.process.poll() is None:
            driver.process.kill()


def test_sigterm_reaches_the_trainer_and_gives_75(start):
    driver = start("patient")
    driver.process.send_signal(signal.SIGTERM)
    assert driver.end() == 75, driver.text
    assert "saving after the current step" in driver.text
    assert driver.text.rstrip().splitlines()[-1] == "verl-hyocr: stopped on request; step 2 is saved"


def test_sigterm_before_training_ends_with_143(start):
    driver = start("starting")
    driver.process.send_signal(signal.SIGTERM)
    assert driver.end() == 143, driver.text
    assert "training had not begun: nothing to save" in driver.text


def test_second_sigterm_does_not_wait_for_the_trainer(start):
    driver = start("deaf")
    driver.process.send_signal(signal.SIGTERM)
    driver.read_until("saving after the current step")
    driver.process.send_signal(signal.SIGTERM)
    assert driver.end() == 143, driver.text


def test_ctrl_c_ends_with_130(start):
    driver = start("patient")
    driver.process.send_signal(signal.SIGINT)
    assert driver.end() == 130, driver.text


def test_dead_worker_that_nobody_waits_for_ends_the_run_with_its_name(start):
    driver = start("deaf")
    os.kill(driver.pids["worker"], signal.SIGKILL)
    assert driver.end() == 1, driver.text
    assert f"RewardLoopWorker (pid {driver.pids['worker']} on" in driver.text.rpartition("verl-hyocr:")[2]


def test_dead_trainer_ends_the_run_with_its_name(start):
    driver = start("deaf")
    os.kill(driver.pids["trainer"], signal.SIGKILL)
    assert driver.end() == 1, driver.text
    assert f"TaskRunnerV1 (pid {driver.pids['trainer']} on" in driver.text.rpartition("verl-hyocr:")[2]
