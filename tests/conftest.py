"""Fixtures shared by all suites: the tiny checkpoint, and a hard stop for tests that leave Ray running."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The suite asserts no timings, so hypothesis has no deadline; fixed examples keep CI repeatable. To search for new ones:
# HYPOTHESIS_PROFILE=explore bash tests/run.sh tests/reward
settings.register_profile("ci", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def kit_root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    """A tiny random-weight checkpoint in the released layout (fp32). HYOCR_TEST_MODEL names one to reuse."""
    from utils.demo.build_model import build

    reuse = os.environ.get("HYOCR_TEST_MODEL")
    return build(reuse or tmp_path_factory.mktemp("tiny") / "model")
