"""Every adaptation step works, and its check fails when the step alone is switched off."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

HERE = Path(__file__).parent
WITHOUT_START_UP_LINE = {"A6", "D2.engine", "D2.sampler"}
"""They act inside vLLM, not through the registry that says at start-up what is disabled."""


def steps_with_checks() -> list[str]:
    sys.path.insert(0, str(HERE))
    try:
        from checks import CHECKS
    finally:
        sys.path.pop(0)
    return list(CHECKS)


def run_check(step: str, model: Path, disable: str = "") -> subprocess.CompletedProcess:
    env = {
        **os.environ,
        "VERL_PLATFORM": "cpu",
        "HYOCR_DISABLE": disable,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    return subprocess.run(
        [sys.executable, str(HERE / "checks.py"), step, str(model)],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def checks(request, tiny_model):
    """(step, disabled steps) -> future of the check; the selected ones run side by side, a core each."""
    selected = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    wanted = [
        (item.callspec.params["step"], item.callspec.params["step"] if "without" in item.originalname else "")
        for item in selected
    ]
    with ThreadPoolExecutor(min(os.cpu_count() or 1, 4)) as pool:
        yield {(step, disable): pool.submit(run_check, step, tiny_model, disable) for step, disable in wanted}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("step", steps_with_checks())
def test_step_works(step, checks):
    result = checks[step, ""].result()
    assert result.returncode == 0, result.stderr[-3000:]


@pytest.mark.parametrize("step", steps_with_checks())
def test_check_fails_without_the_step(step, checks):
    result = checks[step, step].result()
    assert result.returncode != 0, f"{step} can be removed and nothing notices"
    if step not in WITHOUT_START_UP_LINE:
        assert "HYOCR_DISABLE" in result.stderr + result.stdout, result.stderr[-2000:]


def test_every_step_has_a_check(tiny_model):
    code = "import verl; from verl_hyocr import registry; print(' '.join(s.id for s in registry.steps()))"
    env = {**os.environ, "VERL_PLATFORM": "cpu"}
    output = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    # D1 needs a queue and an engine: its checks are in test_dropped_samples.py, with the same two runs each.
    in_dropped_samples = {"D1", "D1.sequences"}
    assert set(output.split()) - set(steps_with_checks()) - in_dropped_samples == set()
