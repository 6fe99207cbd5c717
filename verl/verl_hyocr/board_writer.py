"""B2, the disk: steps are written by a thread of their own, so that a slow or full disk never holds up or ends a run."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path

logger = logging.getLogger("verl.hyocr")


class StepWriter:
    """Writes files of steps in the background, each to a temporary name that is then renamed.

    Attributes:
        lost: number of steps that were not written.

    Args:
        folder: created when the first step is written.
        depth: steps that may wait; one that finds no room is left out.
    """

    def __init__(self, folder: Path, depth: int = 2):
        self.folder = folder
        self.lost = 0
        self._said: set[str] = set()
        self._lock = threading.Lock()
        self._jobs: queue.Queue[tuple[int, str, Callable[[], bytes]] | None] = queue.Queue(depth)
        self._thread: threading.Thread | None = None

    def submit(self, step: int, name: str, content: Callable[[], bytes]) -> None:
        """Have ``content()`` written to the file ``name``, or say that there is no room. Never blocks, never raises."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rl_logging_board", daemon=True)
            self._thread.start()
        try:
            self._jobs.put_nowait((step, name, content))
        except queue.Full:
            self.failed(
                step, "the steps before it are still being written; RLB_EVERY or RLB_MAX_SAMPLES lower the load"
            )

    def failed(self, step: int, problem: BaseException | str) -> None:
        """Count a lost step, and say why the first time that this happens."""
        kind = problem if isinstance(problem, str) else f"{type(problem).__name__}: {problem}"
        with self._lock:
            self.lost += 1
            # Paths of temporary files and numbers of steps differ from time to time.
            name = problem if isinstance(problem, str) else (type(problem).__name__, getattr(problem, "errno", None))
            is_new = str(name) not in self._said
            self._said.add(str(name))
        if is_new:
            logger.error(
                "RLLoggingBoard: step %d is not written to %s: %s. Training goes on. Further steps lost for this reason are "
                "counted, not reported.",
                step,
                self.folder,
                kind,
                exc_info=problem if isinstance(problem, BaseException) else None,
            )

    def close(self, timeout: float = 120.0) -> None:
        """Write what waits, for at most ``timeout`` seconds, and say how many steps were lost."""
        if self._thread is not None:
            with contextlib.suppress(queue.Full):
                self._jobs.put(None, timeout=timeout)
                self._thread.join(timeout)
            if self._thread.is_alive():
                logger.error(
                    "RLLoggingBoard: %s did not answer for %g s at the end of the run; the last steps are missing",
                    self.folder,
                    timeout,
                )
            self._thread = None
        if self.lost:
            logger.error("RLLoggingBoard: %d step(s) of this run are not in %s", self.lost, self.folder)

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            for left_by_a_killed_run in self.folder.glob(".step_*.tmp"):
                left_by_a_killed_run.unlink()
        while (job := self._jobs.get()) is not None:
            step, name, content = job
            try:
                self._write(name, content())
            except Exception as error:
                self.failed(step, error)

    def _write(self, name: str, content: bytes) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        # The UI reads whatever ends in .jsonl.
        temporary = self.folder / f".{name}.{os.getpid()}.tmp"
        try:
            temporary.write_bytes(content)
            os.replace(temporary, self.folder / name)
        finally:
            temporary.unlink(missing_ok=True)
