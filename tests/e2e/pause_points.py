"""Points where a fault test holds a run: loaded into its workers as ``model.external_lib``, and its reward function.

HYOCR_TEST_PAUSE names the moment (rollout, update, save), HYOCR_TEST_SKIP how often a process passes it before (0),
HYOCR_TEST_FOLDER where ``reached`` is written when a process is there; it waits until ``go`` exists. A held save has
written half of the optimizer's file.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import verl_hyocr.activate  # noqa: F401 - what external_lib is for otherwise

passed = 0


def hold(moment: str) -> None:
    global passed
    folder = os.environ.get("HYOCR_TEST_FOLDER")
    if os.environ.get("HYOCR_TEST_PAUSE") != moment or (Path(folder) / "reached").exists():
        return
    passed += 1
    if passed <= int(os.environ.get("HYOCR_TEST_SKIP", "0")):
        return
    (Path(folder) / "reached").write_text(str(os.getpid()))
    while not (Path(folder) / "go").exists():
        time.sleep(0.1)


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    """A score that depends on the answer and varies."""
    hold("rollout")
    return {"score": sum(map(ord, solution_str)) % 17 / 17, "valid": 1.0, "task": "Parsing", "decision": "scored"}


def install() -> None:
    """Wrap the optimizer step and ``torch.save`` of this process."""
    import torch
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

    step, save = FSDPEngine.optimizer_step, torch.save

    def optimizer_step(self):
        hold("update")
        return step(self)

    def held_save(value, path, *args, **kwargs):
        save(value, path, *args, **kwargs)
        if "/optim_" in str(path) and os.environ.get("HYOCR_TEST_PAUSE") == "save":
            size = os.path.getsize(path)
            os.truncate(path, size // 2)
            hold("save")
            # Whoever goes on here writes the other half.
            save(value, path, *args, **kwargs)

    FSDPEngine.optimizer_step = optimizer_step
    torch.save = held_save


if os.environ.get("HYOCR_TEST_PAUSE") in ("update", "save"):
    install()
