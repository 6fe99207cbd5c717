"""Work in chunks over processes, results in order."""

from __future__ import annotations

import argparse
import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import TypeVar

from reward.cli.errors import UsageError

T = TypeVar("T")
R = TypeVar("R")


def positive(text: str) -> int:
    """An argparse type: an integer of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def chunked(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of ``size`` items; the last one may be shorter."""
    source = iter(items)
    while chunk := list(islice(source, size)):
        yield chunk


def map_in_order(function: Callable[[T], R], items: Iterable[T], workers: int) -> Iterator[R]:
    """``map`` over processes with a bounded look-ahead; in this process when there is one worker.

    Raises:
        UsageError: a worker process died.
    """
    if workers == 1:
        yield from map(function, items)
        return
    # Spawned, not forked: the parent may hold threads of a judge client or of a progress bar.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_leave_interrupts_to_the_parent) as pool:
        pending: deque[Future[R]] = deque()
        try:
            for item in items:
                pending.append(pool.submit(function, item))
                if len(pending) >= 2 * workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool as error:
            raise UsageError(
                "a worker process died (out of memory?); what was finished is kept, "
                "run the same command again with fewer --workers"
            ) from error
        finally:
            for future in pending:
                future.cancel()


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
