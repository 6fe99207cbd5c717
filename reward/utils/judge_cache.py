"""Ask once: a bounded cache of results, and one flight for identical questions asked at the same time."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Value = TypeVar("Value")

MADE, SHARED, CACHED = "made", "shared", "cached"


@dataclass
class _Flight(Generic[Value]):
    task: asyncio.Task[Value]
    waiting: int = 0


class AskOnceCache(Generic[Value]):
    """Least-recently-used results of an asynchronous function. Belongs to one event loop.

    Args:
        size: results kept; 0 switches both the cache and the sharing of flights off.
        keep: whether a result may be handed out again later.
    """

    def __init__(self, size: int, keep: Callable[[Value], bool]):
        self._size = size
        self._keep = keep
        self._values: OrderedDict[Hashable, Value] = OrderedDict()
        self._flights: dict[Hashable, _Flight[Value]] = {}

    def __len__(self) -> int:
        return len(self._values)

    @property
    def in_flight(self) -> int:
        return len(self._flights)

    async def get(self, key: Hashable, make: Callable[[], Awaitable[Value]]) -> tuple[Value, str]:
        """The result for ``key`` and where it is from: "made" by this call, "shared" with one under way, "cached".

        A flight goes on as long as anyone waits for it: cancelling one caller does not take the result from the others.
        """
        if not self._size:
            return await make(), MADE
        if key in self._values:
            self._values.move_to_end(key)
            return self._values[key], CACHED
        source = SHARED
        flight = self._flights.get(key)
        if flight is None:
            source = MADE
            flight = self._flights[key] = _Flight(asyncio.ensure_future(self._fly(key, make)))
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.task), source
        finally:
            flight.waiting -= 1
            if not flight.waiting and not flight.task.done():
                # A later caller must not join a flight that is being called off.
                self._forget(key, flight)
                flight.task.cancel()

    async def _fly(self, key: Hashable, make: Callable[[], Awaitable[Value]]) -> Value:
        flight = self._flights[key]
        try:
            value = await make()
        finally:
            self._forget(key, flight)
        if self._keep(value):
            self._values[key] = value
            if len(self._values) > self._size:
                self._values.popitem(last=False)
        return value

    def _forget(self, key: Hashable, flight: _Flight[Value]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
