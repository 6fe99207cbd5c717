"""verl's trainer with an orderly end:  python -m verl_hyocr.main HYDRA…   (arguments of verl.trainer.main_ppo)

Adds to ``python -m verl.trainer.main_ppo``: SIGTERM saves and stops, a worker process that dies ends the run with its name,
and exit codes that a scheduler can act on:

    0    all steps are done
    1    the run failed; the last lines say why
    75   stopped by SIGTERM, the same command continues the run
    130, 143   ended by SIGINT, or by SIGTERM before the first step or by a second signal; nothing was saved
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from typing import Any

logger = logging.getLogger("verl_hyocr")

LOOK_S = 3.0
GRACE_S = 15.0
"""Time for the trainer to report its own error after a worker died."""


@dataclass
class _Signals:
    """What this process was told."""

    stopping: bool = False


_signals = _Signals()


def _on_signal(number: int, frame: Any) -> None:
    if _signals.stopping:
        os._exit(128 + number)
    _signals.stopping = True
    signal.signal(signal.SIGINT, _on_signal)
    os.write(2, b"verl-hyocr: SIGTERM: saving after the current step, then the run ends (again: end at once)\n")


def wait_for(reference: Any) -> None:
    """Return when the trainer has ended, well or not.

    Raises:
        WorkerLost: a worker died and the trainer is still running after the grace period.
        SystemExit: 143, on SIGTERM before training began.
    """
    import ray

    from verl_hyocr import stop
    from verl_hyocr.lost_workers import WorkerLost, lost_workers

    requested, last_look, lost_since = False, 0.0, None
    while not ray.wait([reference], timeout=1.0)[0]:
        now = time.monotonic()
        if _signals.stopping and not requested:
            if not stop.is_training():
                print("verl-hyocr: training had not begun: nothing to save", file=sys.stderr, flush=True)
                sys.exit(143)
            stop.request()
            requested = True
        if now - last_look > LOOK_S:
            last_look = now
            try:
                lost_since = lost_since or (now if lost_workers() else None)
            except Exception as error:
                # The head is away for a moment, or for good: the node watch decides which.
                logger.debug("no look at the actors: %r", error)
        if lost_since is not None and now - lost_since > GRACE_S:
            raise WorkerLost("the trainer is still waiting for a worker that is gone")


class _Run:
    """``runner.run``: ``remote`` starts the trainer and returns when it has ended."""

    def __init__(self, runner: Any):
        self._runner = runner

    def remote(self, config: Any) -> Any:
        # ray.init has just put its own handler there, which exits without saving.
        signal.signal(signal.SIGTERM, _on_signal)
        reference = self._runner.run.remote(config)
        wait_for(reference)
        return reference


class _Runner:
    def __init__(self, runner: Any):
        self.run = _Run(runner)


class SupervisedRunner:
    """Has the interface of the Ray actor class that ``run_ppo`` starts, and waits attentively."""

    def __init__(self, actor_class: Any):
        self._actor_class = actor_class

    def options(self, **options: Any) -> SupervisedRunner:
        return SupervisedRunner(self._actor_class.options(**options))

    def remote(self) -> _Runner:
        return _Runner(self._actor_class.remote())


def main() -> int:
    """Run the trainer; returns the exit code."""
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    # A shell script's background process ignores SIGINT until it says otherwise.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from verl.trainer import main_ppo

    from verl_hyocr import stop
    from verl_hyocr.drop_policy import TrainingStopped

    main_ppo.TaskRunnerV1 = SupervisedRunner(main_ppo.TaskRunnerV1)
    try:
        main_ppo.main()
    except stop.Stopped as error:
        print(f"verl-hyocr: {getattr(error, 'cause', error)}", file=sys.stderr, flush=True)
        return stop.EXIT_CODE
    except KeyboardInterrupt:
        print("verl-hyocr: interrupted; nothing was saved", file=sys.stderr, flush=True)
        return 130
    except Exception as error:
        traceback.print_exc()
        lines = _lost_lines()
        reason = getattr(error, "cause", error)
        if isinstance(error, TrainingStopped) or not lines:
            lines.append(f"{type(reason).__name__}: {reason}")
        else:
            lines.append("The run ends. The same command resumes from the newest complete checkpoint.")
        print("verl-hyocr: " + "\n  ".join(lines), file=sys.stderr, flush=True)
        return 1
    return 0


def _lost_lines() -> list[str]:
    import ray

    from verl_hyocr.lost_workers import lost_workers

    try:
        lost = lost_workers() if ray.is_initialized() else []
    except Exception as error:
        # The cluster itself may be what went away.
        return [f"the Ray cluster does not answer: {error}"]
    return ["a process of the run died:", *lost] if lost else []


if __name__ == "__main__":
    sys.exit(main())
