"""Ends a run when a node that it uses dies, and names the node.

Without it the end depends on where the run happens to be: a collective or an answer that is waited for can last for ever.
The watch is a thread of the driver: it lives where the run's exit code is made, and it works whatever the trainer is waiting
for, also when the trainer itself was on the lost node.

Ray's head decides when a node is dead; ``utils/ray/start_ray.sh`` sets how long that takes.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

logger = logging.getLogger("verl_hyocr")

PERIOD_S = 2.0
GRACE_S = 8.0
"""Time for upstream to report its own error and end, from the moment the node is known to be lost."""
HEAD_SILENCE_S = 30.0
"""The head is lost when it answers nothing for that long and its port takes no connection."""


@dataclass(frozen=True)
class Node:
    """A row of Ray's node table. ``cause`` is Ray's reason when the node is dead, else empty."""

    id: str
    name: str
    address: str
    alive: bool
    cause: str = ""


@dataclass(frozen=True)
class Loss:
    """A dead node and what of the run was on it: actor class -> how many."""

    node: Node
    actors: dict[str, int]


class UsedNodes:
    """Knows from earlier looks which nodes the run uses, and tells which of them died."""

    def __init__(self) -> None:
        self._actors: dict[str, Counter[str]] = {}

    def update(self, nodes: Iterable[Node], actors: Iterable[tuple[str, str]]) -> list[Loss]:
        """Take in a look at the cluster.

        Args:
            nodes: the node table.
            actors: (node id, class name) of every live actor of the run.

        Returns:
            the dead nodes that had live actors of the run in the last look before they died
        """
        nodes = list(nodes)
        now: dict[str, Counter[str]] = {}
        for node_id, name in actors:
            now.setdefault(node_id, Counter())[name] += 1
        for node in nodes:
            if node.alive:
                self._actors[node.id] = now.get(node.id, Counter())
        return [
            Loss(node, dict(self._actors[node.id])) for node in nodes if not node.alive and self._actors.get(node.id)
        ]


def describe(losses: Iterable[Loss]) -> str:
    """What happened and what to do, for the end of a run's log."""
    lines = []
    for loss in losses:
        parts = ", ".join(f"{count} {name}" for name, count in sorted(loss.actors.items()))
        cause = f" Ray: {loss.node.cause.strip().splitlines()[0].rstrip('.')}." if loss.node.cause.strip() else ""
        lines.append(f"node {loss.node.name} ({loss.node.address}) is dead; of this run it had: {parts}.{cause}")
    lines.append(
        "The run ends. Look at that host, then start its node again (utils/ray/stop_ray.sh and start_ray.sh there) and run "
        "the same command: it resumes from the newest complete checkpoint."
    )
    return "verl-hyocr: " + " ".join(lines)


def look() -> tuple[list[Node], list[tuple[str, str]]]:
    """The node table, and node id and class of every live actor of this job. Blocks while the head does not answer."""
    import ray
    from ray._private.state import state

    job = ray.JobID.from_hex(ray.get_runtime_context().get_job_id())
    found = state.actor_table(None, job_id=job, actor_state_name="ALIVE")
    actors = [(row["Address"]["NodeID"], row["ActorClassName"]) for row in found.values()]
    nodes = [
        Node(
            id=row["NodeID"],
            name=row.get("NodeName") or row["NodeManagerHostname"],
            address=row["NodeManagerAddress"],
            alive=row["Alive"],
            cause=row.get("DeathReasonMessage") or "",
        )
        for row in ray.nodes()
    ]
    return nodes, actors


def _refuses(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5.0).close()
    except OSError:
        return True
    return False


class NodeWatch:
    """Polls the cluster in a daemon thread and ends the process when a used node, or the head, is lost.

    Args:
        look: the cluster as :func:`look` gives it.
        end: called with the exit code when upstream did not end by itself.
        at_exit: registers a function that is called when it did.
    """

    def __init__(
        self, look: Callable = look, end: Callable[[int], None] = os._exit, at_exit: Callable = atexit.register
    ) -> None:
        self.message = ""
        self._look, self._end, self._at_exit = look, end, at_exit
        self._used = UsedNodes()
        self._answered = time.monotonic()

    def start(self) -> None:
        """Start the threads; returns at once."""
        threading.Thread(target=self._poll, name="hyocr-node-poll", daemon=True).start()
        threading.Thread(target=self._guard, name="hyocr-node-watch", daemon=True).start()
        # The last line of the log should be the reason, not the stack trace that it caused.
        self._at_exit(self._repeat)

    def _repeat(self) -> None:
        import ray

        # Upstream's own error may have come first. A head that did not answer lately would block this look.
        if not self.message and ray.is_initialized() and time.monotonic() - self._answered < 2 * PERIOD_S:
            self._take_a_look()
        if self.message:
            self._say()

    def _say(self) -> None:
        print(self.message, file=sys.stderr, flush=True)

    def _poll(self) -> None:
        import ray

        while not self.message:
            if ray.is_initialized():
                self._take_a_look()
            else:
                self._answered = time.monotonic()
            time.sleep(PERIOD_S)

    def _take_a_look(self) -> None:
        try:
            losses = self._used.update(*self._look())
        except Exception as error:
            # The head is away or Ray is shutting down: the guard decides which by the time that passes.
            logger.debug("node watch: %r", error)
            return
        self._answered = time.monotonic()
        if losses:
            self.message = describe(losses)

    def _guard(self) -> None:
        import ray

        while not self.message:
            time.sleep(1.0)
            if time.monotonic() - self._answered > HEAD_SILENCE_S and ray.is_initialized():
                address = ray.get_runtime_context().gcs_address
                if _refuses(address):
                    self.message = self.message or (
                        f"verl-hyocr: the head of the Ray cluster ({address}) is lost: no answer for {HEAD_SILENCE_S:.0f} s "
                        "and no connection. The run ends. Start the cluster again and run the same command: it resumes from "
                        "the newest complete checkpoint."
                    )
        self._say()
        time.sleep(GRACE_S)
        self._say()
        sys.stdout.flush()
        self._end(1)


_watch: NodeWatch | None = None


def start() -> None:
    """Start the watch of this process, once; it begins to look when Ray is initialised."""
    global _watch
    if _watch is None:
        _watch = NodeWatch()
        _watch.start()
