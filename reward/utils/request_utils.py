"""Ask the judge: :func:`judge_async` from any event loop, :func:`judge` from any thread.

Both hand the judgement to one event loop that runs in a thread of its own, one per process. So the process has one pool
of connections, one view of every server's health and one cache, whoever asks, from however many loops and threads; and
nothing that blocks the caller's loop holds up a judgement. The thread starts with the first judgement. A forked child
forgets its parent's and starts its own.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import logging
import os
import threading
from typing import TYPE_CHECKING

from reward.utils.judge_config import JudgeConfig, JudgeConfigError
from reward.utils.judge_types import UNAVAILABLE, JudgeOutcome, JudgeRequest, JudgeTrace

if TYPE_CHECKING:
    from reward.utils.judge_client import JudgeClient

__all__ = ["JudgeOutcome", "JudgeRequest", "close_judge", "judge", "judge_async"]

logger = logging.getLogger(__name__)


async def judge_async(request: JudgeRequest) -> JudgeOutcome:
    """Judge one answer without blocking the event loop. Cancelling the caller cancels the judgement.

    Whatever servers or settings do wrong ends in an outcome with ``decision`` "judge_unavailable" or "judge_unparsed".

    Raises:
        KeyError: the request's task has no prompt or no reply parser.
    """
    return await asyncio.wrap_future(_submit(request))


def judge(request: JudgeRequest) -> JudgeOutcome:
    """As :func:`judge_async`, blocking. Safe in threads, also beside a running event loop."""
    return _submit(request).result()


def close_judge() -> None:
    """Close the connections and end the thread; the next judgement reads the settings afresh."""
    global _runtime
    with _lock:
        runtime, _runtime = _runtime, None
    if runtime is not None:
        runtime.close()


class _Runtime:
    """The event loop thread of this process and the client that lives on it."""

    def __init__(self, config: JudgeConfig):
        self._config = config
        self._client: JudgeClient | None = None
        self._complaints: set[str] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="judge-client", daemon=True)
        self._thread.start()

    def submit(self, request: JudgeRequest) -> concurrent.futures.Future[JudgeOutcome]:
        if threading.current_thread() is self._thread:
            raise RuntimeError("a judgement cannot wait for another one on the judge's own thread")
        return asyncio.run_coroutine_threadsafe(self._judge(request), self._loop)

    def close(self) -> None:
        if not self._thread.is_alive():
            return
        asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _judge(self, request: JudgeRequest) -> JudgeOutcome:
        if self._client is None:
            # Imported here, on the judge's thread: openai takes a second, and rule-only runs never need it.
            from reward.utils.judge_client import JudgeClient

            try:
                self._client = JudgeClient(self._config)
            except JudgeConfigError as error:
                return _not_configured(error, self._complaints)
        return await self._client.judge(request)

    async def _shut_down(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        if self._client is not None:
            await self._client.aclose()


_runtime: _Runtime | None = None
_lock = threading.Lock()
_complaints: set[str] = set()
_inherited: list[_Runtime] = []


def _submit(request: JudgeRequest) -> concurrent.futures.Future[JudgeOutcome]:
    global _runtime
    with _lock:
        if _runtime is None:
            try:
                _runtime = _Runtime(JudgeConfig.from_env())
            except JudgeConfigError as error:
                done: concurrent.futures.Future[JudgeOutcome] = concurrent.futures.Future()
                done.set_result(_not_configured(error, _complaints))
                return done
        return _runtime.submit(request)


def _not_configured(error: JudgeConfigError, complaints: set[str]) -> JudgeOutcome:
    if str(error) not in complaints:
        complaints.add(str(error))
        logger.error("no judgement is possible: %s", error)
    trace = JudgeTrace(error=str(error))
    trace.failures["config"] += 1
    return trace.outcome(UNAVAILABLE, latency_s=0.0)


def _forget_after_fork() -> None:
    global _runtime, _lock
    # The parent's thread does not exist in the child. Its loop and connections are kept, not closed: their selector is
    # shared with the parent, and unregistering a socket here would unregister it there.
    if _runtime is not None:
        _inherited.append(_runtime)
    _runtime = None
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_after_fork)
atexit.register(close_judge)
