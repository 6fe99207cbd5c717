"""Map batches over worker processes, in order, with a bounded number under way."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from functools import cache
from multiprocessing.connection import wait
from typing import Any, TypeVar

Batch = TypeVar("Batch")
Result = TypeVar("Result")

_make: Callable[[], Callable[[Any], Any]] | None = None


def map_ordered(
    make: Callable[[Any], Callable[[Batch], Result]],
    options: Any,
    batches: Iterable[Batch],
    workers: int,
    preload: list[str],
) -> Iterator[tuple[Batch, Result]]:
    """Yield every batch with `make(options)(batch)`, in order.

    One worker runs in this process. Workers start from a server that has imported `preload`, so they share its memory;
    they end with this process, however it ends.

    Raises:
        concurrent.futures.process.BrokenProcessPool: a worker died.
    """
    if workers <= 1:
        function = make(options)
        for batch in batches:
            yield batch, function(batch)
        return
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(preload)
    with ProcessPoolExecutor(workers, context, _start, (make, options)) as pool:
        waiting: deque[tuple[Batch, Future[Result]]] = deque()
        for batch in batches:
            waiting.append((batch, pool.submit(_run, batch)))
            if len(waiting) >= 2 * workers + 2:
                done, future = waiting.popleft()
                yield done, future.result()
        for done, future in waiting:
            yield done, future.result()


def _start(make: Callable[[Any], Callable[[Any], Any]], options: Any) -> None:
    global _make
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the parent's to handle
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Made with the first batch: a fault then reaches the caller as it is, here it would only break the pool.
    _make = cache(lambda: make(options))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _run(batch: Any) -> Any:
    assert _make is not None
    return _make()(batch)
