"""Rule scorers in threads, so that they do not block an event loop, under a watchdog.

A rule scorer is bounded by its construction; the watchdog is there because one stuck sample must not stop a training
step. A scorer that runs longer than ``HYOCR_SCORER_TIMEOUT_S`` seconds (default 60, counted from its start and not from
its arrival in the queue) is given up. Its thread lives on until the scorer returns: a thread cannot be stopped.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def _limit_from_environment() -> float:
    value = os.environ.get("HYOCR_SCORER_TIMEOUT_S", "60")
    try:
        limit = float(value)
    except ValueError:
        limit = 0.0
    if not limit > 0:
        raise ValueError(f"HYOCR_SCORER_TIMEOUT_S must be a positive number of seconds, got {value!r}")
    return limit


TIMEOUT_S = _limit_from_environment()


class _ThreadPool:
    """Threads for rule scorers, one a core; replaced as a whole when a scorer in it is given up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def current(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_cores(), thread_name_prefix="hyocr-score")
            return self._pool

    def abandon(self, pool: ThreadPoolExecutor) -> None:
        with self._lock:
            if self._pool is pool:
                self._pool = None
        # What waits behind the stuck scorer is cancelled here and submitted again by those who wait for it.
        pool.shutdown(wait=False, cancel_futures=True)

    def forget(self) -> None:
        """A forked child has the pool's object but none of its threads."""
        self._lock = threading.Lock()
        self._pool = None


_threads = _ThreadPool()
os.register_at_fork(after_in_child=_threads.forget)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


async def run_in_thread(function: Callable[[], T]) -> T:
    """The function's result, computed in the pool.

    Raises:
        TimeoutError: the function has run for longer than ``TIMEOUT_S`` seconds.
    """
    while True:
        started: list[float] = []

        def timed(started: list[float] = started) -> T:
            started.append(time.monotonic())
            return function()

        pool = _threads.current()
        try:
            future = pool.submit(timed)
        except RuntimeError:
            if _threads.current() is pool:
                raise
            continue  # another sample abandoned this pool in between
        waiting = asyncio.wrap_future(future)
        while not waiting.done():
            left = started[0] + TIMEOUT_S - time.monotonic() if started else TIMEOUT_S
            if left <= 0:
                _threads.abandon(pool)
                raise TimeoutError(f"the scorer ran for more than {TIMEOUT_S:g} s (HYOCR_SCORER_TIMEOUT_S)")
            await asyncio.wait({waiting}, timeout=left)
        if not future.cancelled():
            return waiting.result()
