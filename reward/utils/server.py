"""Judge servers as the client sees them: who is healthy, who has room, whose turn it is. No HTTP in here.

A server is left alone while its circuit breaker is open, while it asked for a pause (``Retry-After``), while it has as
many calls in flight as allowed, and once the routes file no longer lists it (calls in flight then finish). Turns go
round in shuffled order, so that many reward workers do not march in step; a server that lags behind the others with its
calls gets fewer.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from reward.utils.judge_config import JudgeConfig
from reward.utils.routes import CHECK_INTERVAL_S, ServerSpec

logger = logging.getLogger(__name__)

CLOSED, OPEN, HALF_OPEN = "closed", "open", "half-open"


class CircuitBreaker:
    """Takes a failing server out and lets one call at a time find out whether it is back.

    closed --(``failures`` in a row)--> open --(cool-down over, one probe)--> half-open --success--> closed, or
    --failure--> open with the cool-down doubled up to its maximum. Calls that started before the breaker opened no
    longer count.
    """

    def __init__(
        self,
        failures: int,
        cooldown_s: float,
        max_cooldown_s: float,
        clock: Callable[[], float],
        rng: random.Random,
    ):
        self._threshold = failures
        self._first_cooldown_s = cooldown_s
        self._max_cooldown_s = max_cooldown_s
        self._clock = clock
        self._rng = rng
        self._cooldown_s = cooldown_s
        self._in_a_row = 0
        self.state = CLOSED
        self.opens_at = 0.0

    def admits(self, now: float) -> bool:
        """Whether a call may start now; when the breaker is not closed that call is the probe."""
        return self.state == CLOSED or (self.state == OPEN and now >= self.opens_at)

    def start(self) -> bool:
        """Start a call that was admitted; True when it is the probe."""
        if self.state == CLOSED:
            return False
        self.state = HALF_OPEN
        return True

    def succeeded(self, probe: bool) -> bool:
        """Record an answer; True when it closes the breaker."""
        if probe:
            self.state = CLOSED
            self._cooldown_s = self._first_cooldown_s
        if self.state == CLOSED:
            self._in_a_row = 0
        return probe

    def failed(self, probe: bool, *, at_once: bool = False) -> bool:
        """Record a failure; True when it opens the breaker. ``at_once``: one is enough (a wrong key, a wrong model)."""
        if probe:
            self._cooldown_s = min(self._max_cooldown_s, 2 * self._cooldown_s)
        elif self.state == CLOSED:
            self._in_a_row += 1
        if probe or (self.state == CLOSED and (at_once or self._in_a_row >= self._threshold)):
            self.state = OPEN
            self._in_a_row = 0
            self.opens_at = self._clock() + self._cooldown_s * self._rng.uniform(1.0, 1.25)
            return True
        return False

    def abandoned(self, probe: bool) -> None:
        """A call ended without news of the server; the next one may probe at once."""
        if probe:
            self.state = OPEN
            self.opens_at = self._clock()


@dataclass
class Server:
    """One server. ``model`` is the served model name, "" until asked for; ``api`` is what the caller talks through."""

    spec: ServerSpec
    breaker: CircuitBreaker
    limit: int
    api: Any = None
    model: str = ""
    discovery: asyncio.Task[str] | None = None
    in_flight: int = 0
    paused_until: float = 0.0
    draining: bool = False

    @property
    def name(self) -> str:
        return self.spec.name

    def usable(self, now: float) -> bool:
        return not self.draining and now >= self.paused_until and self.breaker.admits(now)

    def has_room(self, now: float) -> bool:
        return self.in_flight < self.limit and self.usable(now)

    def next_change(self, now: float) -> float | None:
        """When the server becomes usable by the passing of time alone, if it is not now."""
        times = [self.paused_until]
        if self.breaker.state == OPEN:
            times.append(self.breaker.opens_at)
        return max(times) if max(times) > now else None


class Lease:
    """The right to send one call to ``server``. Say how the call went, once, before giving it back."""

    def __init__(self, server: Server, probe: bool, clock: Callable[[], float]):
        self.server = server
        self.probe = probe
        self._clock = clock
        self._told = False

    def succeeded(self) -> None:
        """The server answered."""
        self._told = True
        if self.server.breaker.succeeded(self.probe):
            logger.warning("judge server %s is back", self.server.name)

    def failed(self, reason: str, *, at_once: bool = False) -> None:
        """The server failed, by its own fault."""
        self._told = True
        breaker = self.server.breaker
        if breaker.failed(self.probe, at_once=at_once):
            # It may come back with another model: the probe asks first, which is also the cheapest probe.
            self.server.model = self.server.spec.model
            wait = max(0.0, breaker.opens_at - self._clock())
            logger.warning("judge server %s is taken out for %.1f s: %s", self.server.name, wait, reason)

    def pause(self, seconds: float) -> None:
        """The server asked to be left alone for a while."""
        self.server.paused_until = max(self.server.paused_until, self._clock() + seconds)

    def finish(self) -> None:
        if not self._told:
            self.server.breaker.abandoned(self.probe)
        self.server.in_flight -= 1


@dataclass
class _Waiter:
    future: asyncio.Future[Lease]
    tries: Mapping[str, int]
    avoid: str
    avoid_until: float = field(default=0.0)


class ServerPool:
    """Hands out servers. Belongs to one event loop.

    Args:
        config: limits and breaker settings.
        servers: gives the current servers, in routes order; asked at every turn, so it should be cheap.
        api_factory: makes ``Server.api`` from a spec.
        clock: monotonic seconds.
        rng: shuffles turns and spreads cool-downs.
    """

    def __init__(
        self,
        config: JudgeConfig,
        servers: Callable[[], Iterable[ServerSpec]],
        *,
        api_factory: Callable[[ServerSpec], Any],
        clock: Callable[[], float],
        rng: random.Random,
    ):
        self._config = config
        self._list_servers = servers
        self._api_factory = api_factory
        self._clock = clock
        self._rng = rng
        self._servers: dict[str, Server] = {}
        self._listed: Iterable[ServerSpec] = ()
        self._turns: list[str] = []
        self._waiters: deque[_Waiter] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._refresh()

    @property
    def servers(self) -> list[Server]:
        """The servers that are listed now."""
        return [server for server in self._servers.values() if not server.draining]

    @property
    def waiting(self) -> int:
        """Callers that wait for a server."""
        return sum(not waiter.future.done() for waiter in self._waiters)

    @asynccontextmanager
    async def lease(self, tries: Counter[str] | None = None, avoid: str = "") -> AsyncIterator[Lease]:
        """Wait for a server and hold one of its slots. Waits for ever: put a deadline around it.

        Args:
            tries: calls that this judgement already sent, by server name: less-tried servers go first.
            avoid: the server of the last call: another one is waited for, ``next_server_wait_s`` at most, if there is
                one in good health.
        """
        lease = await self._acquire(tries or Counter(), avoid)
        try:
            yield lease
        finally:
            lease.finish()
            self.wake()

    async def _acquire(self, tries: Mapping[str, int], avoid: str) -> Lease:
        future: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        patience = self._clock() + self._config.next_server_wait_s
        self._waiters.append(_Waiter(future, tries, avoid, patience if avoid else 0.0))
        self.wake()
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                future.result().finish()
                self.wake()
            raise

    def wake(self) -> None:
        """Serve whoever waits, in order of arrival, as far as there is room now."""
        self._refresh()
        now = self._clock()
        passed_over: list[_Waiter] = []
        while self._waiters and any(server.has_room(now) for server in self._servers.values()):
            waiter = self._waiters.popleft()
            if waiter.future.done():
                continue
            server = self._choose(waiter, now)
            if server is None:
                passed_over.append(waiter)
                continue
            server.in_flight += 1
            waiter.future.set_result(Lease(server, server.breaker.start(), self._clock))
        self._waiters.extendleft(reversed(passed_over))
        self._set_timer(now, passed_over)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _choose(self, waiter: _Waiter, now: float) -> Server | None:
        with_room = [server for server in self._servers.values() if server.has_room(now)]
        candidates = [server for server in with_room if server.name != waiter.avoid]
        if not candidates:
            others = any(s.usable(now) for s in self._servers.values() if s.name != waiter.avoid)
            if others and now < waiter.avoid_until:
                return None
            candidates = with_room
        if not candidates:
            return None
        fewest = min(waiter.tries.get(server.name, 0) for server in candidates)
        candidates = [server for server in candidates if waiter.tries.get(server.name, 0) == fewest]
        least_busy = min(server.in_flight for server in candidates)
        keeping_up = {server.name for server in candidates if server.in_flight <= 2 * least_busy + 4}
        return self._servers[self._next_turn(keeping_up)]

    def _next_turn(self, names: set[str]) -> str:
        for _ in range(2):
            for index, name in enumerate(self._turns):
                if name in names:
                    return self._turns.pop(index)
            self._turns = list(self._servers)
            self._rng.shuffle(self._turns)
        raise AssertionError("every candidate has a turn in a fresh round")

    def _set_timer(self, now: float, passed_over: list[_Waiter]) -> None:
        self.close()
        if not self._waiters:
            return
        times = [now + CHECK_INTERVAL_S]
        times += [time for server in self._servers.values() if (time := server.next_change(now)) is not None]
        times += [waiter.avoid_until for waiter in passed_over if waiter.avoid_until > now]
        self._timer = asyncio.get_running_loop().call_later(max(0.001, min(times) - now), self.wake)

    def _refresh(self) -> None:
        for name in [n for n, server in self._servers.items() if server.draining and not server.in_flight]:
            del self._servers[name]
        listed = self._list_servers()
        if listed is self._listed:
            return
        self._listed = listed
        specs = {spec.name: spec for spec in listed}
        for name, server in self._servers.items():
            server.draining = name not in specs
        for name, spec in specs.items():
            if name not in self._servers or self._servers[name].spec != spec:
                self._servers[name] = self._make(spec)
        self._turns = [name for name in self._turns if name in self._servers]

    def _make(self, spec: ServerSpec) -> Server:
        config = self._config
        breaker = CircuitBreaker(
            config.breaker_failures, config.breaker_cooldown_s, config.breaker_max_cooldown_s, self._clock, self._rng
        )
        limit = spec.concurrency or config.server_concurrency
        return Server(spec, breaker, limit, api=self._api_factory(spec), model=spec.model)
