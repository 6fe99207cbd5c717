"""A request to stop that reaches the trainer wherever it runs: a key in the Ray cluster's own store.

The driver writes it on SIGTERM (:mod:`verl_hyocr.main`), the trainer looks at safe points (:mod:`verl_hyocr.safe_trainer`)
and while it waits for answers (:mod:`verl_hyocr.sampler`).
"""

from __future__ import annotations

from verl_hyocr.drop_policy import TrainingStopped

EXIT_CODE = 75
"""Of a run that was asked to stop and can be continued by the same command (EX_TEMPFAIL of sysexits.h)."""


class StopRequested(Exception):
    """Leaves whatever the training loop waits for."""


class Stopped(TrainingStopped):
    """The run ended because it was asked to; the message says what was saved."""


def _key(name: str) -> bytes:
    import ray

    return f"hyocr/{ray.get_runtime_context().get_job_id()}/{name}".encode()


def _put(name: str) -> None:
    from ray.experimental.internal_kv import _internal_kv_put

    _internal_kv_put(_key(name), b"1", overwrite=True)


def _has(name: str) -> bool:
    import ray
    from ray.experimental.internal_kv import _internal_kv_get

    return ray.is_initialized() and _internal_kv_get(_key(name)) is not None


def request() -> None:
    """Ask this job's trainer to save and stop."""
    _put("stop")


def is_requested() -> bool:
    """Whether this job was asked to stop; never without Ray."""
    return _has("stop")


def check() -> None:
    """Raise :class:`StopRequested` if this job was asked to stop."""
    if is_requested():
        raise StopRequested


def announce_training() -> None:
    """Called by the trainer when it begins: from now on a request is honoured."""
    _put("training")


def is_training() -> bool:
    """Whether the trainer has begun; before that there is nothing to save."""
    return _has("training")
