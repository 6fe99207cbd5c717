"""Megatron-Bridge's conversion of Hy3, where it is installed (requirements/hy3.txt): bit-equal weights, equal logits."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def has_megatron() -> bool:
    try:
        return all(importlib.util.find_spec(name) is not None for name in ("megatron.core", "megatron.bridge"))
    except ModuleNotFoundError:
        return False


@pytest.mark.skipif(
    not has_megatron(), reason="megatron-core and megatron-bridge are not installed (requirements/hy3.txt)"
)
def test_weights_come_back_bit_equal_and_logits_agree(tiny_hy3):
    result = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("bridge_check.py")), str(tiny_hy3)],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    line = next(line for line in result.stdout.splitlines() if line.startswith("BRIDGE "))
    found = json.loads(line.removeprefix("BRIDGE "))
    assert found["missing"] == [] and found["unknown"] == []
    assert found["bit_equal"] == found["tensors"] > 100
    assert found["bias_equal"] is True
    assert found["logits_max_abs_diff"] < 1e-4 < found["logits_max_abs"]
