"""Which processes of the run died: Ray's actor table, in words. Nodes are the business of :mod:`verl_hyocr.node_watch`."""

from __future__ import annotations

import time

PROMPT_S = 5.0
"""Ray's head learns of a death a little after those who were talking to the process."""


class WorkerLost(RuntimeError):
    """A process of the run died and the run cannot go on; the message names it."""


def lost_workers() -> list[str]:
    """A line for every actor of this job whose process died unexpectedly."""
    import ray
    from ray._private.state import state

    job = ray.JobID.from_hex(ray.get_runtime_context().get_job_id())
    rows = state.actor_table(None, job_id=job, actor_state_name="DEAD").values()
    return [line for row in rows if (line := describe_death(row))]


def describe_death(row: dict) -> str:
    """``row`` of Ray's actor table in words; empty for an actor that was meant to end, or that went with its node."""
    cause = row["DeathCause"]
    if cause.HasField("oom_context"):
        reason = "killed because the host ran out of memory"
    elif cause.HasField("actor_died_error_context"):
        context = cause.actor_died_error_context
        if context.Reason.Name(context.reason) != "WORKER_DIED" or "INTENDED" in context.error_message:
            return ""
        reason = "its process died"
    else:
        return ""
    return f"{row['ActorClassName']} (pid {row['Pid']} on {row['Address']['IPAddress']}): {reason}"


def raise_if_any(what_failed: str) -> None:
    """Raise if a worker is, or within ``PROMPT_S`` seconds becomes, known to have died.

    Raises:
        WorkerLost: naming the workers and ``what_failed`` because of them.
    """
    deadline = time.monotonic() + PROMPT_S
    while not (lost := lost_workers()):
        if time.monotonic() > deadline:
            return
        time.sleep(0.2)
    raise WorkerLost(f"{what_failed}: {'; '.join(lost)}")
