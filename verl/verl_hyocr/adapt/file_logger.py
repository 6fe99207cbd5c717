"""E1: a resumed run appends to ``metrics.jsonl`` instead of truncating it.

Symptom without it: after a resume the metrics of all earlier steps are gone.
Upstream: ``verl.utils.tracking.FileLogger`` opens its file for writing. Steps that the resumed run repeats (those after the
last checkpoint) are dropped from the file first, so that each step is there once.
Process: the trainer. Goes when upstream appends.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import ModuleType

from verl_hyocr.registry import Step, mark

MODULE = "verl.utils.tracking"


TRAINING_KEY = "training/global_step"
"""Present in the metrics of a training step, absent from those of a validation before training."""


def drop_superseded(path: Path, first_step: int, first_is_training: bool) -> None:
    """Remove from a metrics file what the resumed run is going to write again, and a torn last line; atomically.

    Args:
        path: file with one ``{"step": int, "data": {…}}`` per line.
        first_step: step of the first record of the resumed run.
        first_is_training: False when that record is the validation before training, which belongs to the last completed
            step: that step's training record stays.
    """
    kept = []
    for line in path.read_bytes().splitlines(keepends=True):
        try:
            record = json.loads(line)
            step, data = record["step"], record["data"]
        except (ValueError, KeyError, TypeError):
            continue
        completed = step == first_step and not first_is_training and TRAINING_KEY in data
        if line.endswith(b"\n") and (step < first_step or completed):
            kept.append(line)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(b"".join(kept))
    os.replace(temporary, path)


def _apply(module: ModuleType) -> None:
    upstream = module.FileLogger

    class FileLogger(upstream):
        """Appends; the first logged record decides which older lines are superseded."""

        def __init__(self, project_name: str, experiment_name: str):
            path = os.environ.get("VERL_FILE_LOGGER_PATH")
            self._unsettled = bool(path and os.path.exists(path))
            if not self._unsettled:
                super().__init__(project_name, experiment_name)
                return
            self.project_name, self.experiment_name, self.filepath = project_name, experiment_name, path
            self.fp = open(path, "ab", buffering=0)  # noqa: SIM115 - lives as long as the logger

        def log(self, data, step):
            if self._unsettled:
                self._unsettled = False
                self.fp.close()
                drop_superseded(Path(self.filepath), step, TRAINING_KEY in data)
                self.fp = open(self.filepath, "ab", buffering=0)  # noqa: SIM115
            super().log(data, step)

    module.FileLogger = mark(FileLogger, "E1")


STEPS = [Step("E1", MODULE, _apply, ((MODULE, "FileLogger"),), "metrics.jsonl survives a resume")]
