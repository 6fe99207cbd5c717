"""Turns, limits, breakers and draining, on a clock that the test holds."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
import pytest_asyncio

from reward.utils.judge_config import JudgeConfig
from reward.utils.routes import parse_server
from reward.utils.server import CLOSED, HALF_OPEN, OPEN, CircuitBreaker, ServerPool


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def breaker(clock):
    return CircuitBreaker(3, 1.0, 4.0, clock, random.Random(1))


def fail(breaker, times=1):
    return [breaker.failed(breaker.start()) for _ in range(times)]


def test_breaker_opens_after_failures_in_a_row(breaker, clock):
    assert fail(breaker, 2) == [False, False]
    breaker.succeeded(breaker.start())
    assert fail(breaker, 3) == [False, False, True]
    assert breaker.state == OPEN and not breaker.admits(clock.now)


def test_breaker_lets_one_probe_through(breaker, clock):
    fail(breaker, 3)
    clock.now += 1.25
    assert breaker.admits(clock.now) and breaker.start()
    assert breaker.state == HALF_OPEN and not breaker.admits(clock.now)
    breaker.succeeded(True)
    assert breaker.state == CLOSED and breaker.admits(clock.now)


def test_cooldown_doubles_to_its_maximum_and_resets(breaker, clock):
    fail(breaker, 3)
    waits = []
    for _ in range(4):
        waits.append(breaker.opens_at - clock.now)
        clock.now = breaker.opens_at
        assert fail(breaker) == [True]
    assert [1.0 <= wait / nominal <= 1.25 for wait, nominal in zip(waits, (1, 2, 4, 4))] == [True] * 4
    clock.now = breaker.opens_at
    breaker.succeeded(breaker.start())
    fail(breaker, 3)
    assert breaker.opens_at - clock.now <= 1.25


def test_late_results_do_not_move_an_open_breaker(breaker, clock):
    late = [breaker.start() for _ in range(10)]
    for probe in late[:3]:
        breaker.failed(probe)
    opens_at = breaker.opens_at
    for probe in late[3:]:
        breaker.failed(probe)
    breaker.succeeded(False)
    assert (breaker.state, breaker.opens_at) == (OPEN, opens_at)


def test_abandoned_probe_frees_the_way_for_the_next(breaker, clock):
    fail(breaker, 3)
    clock.now += 2
    breaker.abandoned(breaker.start())
    assert breaker.admits(clock.now)


def test_one_failure_is_enough_for_a_lasting_fault(breaker):
    assert breaker.failed(breaker.start(), at_once=True) and breaker.state == OPEN


@pytest_asyncio.fixture
async def make_pool(clock):
    pools = []

    def make(*entries, **settings) -> ServerPool:
        listed = [[parse_server(entry, "test") for entry in entries]]
        config = JudgeConfig(**{"breaker_failures": 2, "breaker_cooldown_s": 1.0, **settings})
        pool = ServerPool(config, lambda: listed[0], api_factory=lambda s: s, clock=clock, rng=random.Random(3))
        pool.listed = listed
        pools.append(pool)
        return pool

    yield make
    for pool in pools:
        pool.close()


class Holder:
    """A lease that a test holds until it lets go."""

    def __init__(self, pool, **kwargs):
        self.lease = None
        self._let_go = asyncio.Event()
        self.task = asyncio.ensure_future(self._hold(pool, kwargs))

    async def _hold(self, pool, kwargs):
        async with pool.lease(**kwargs) as lease:
            self.lease = lease
            await self._let_go.wait()
            lease.succeeded()

    async def let_go(self):
        self._let_go.set()
        await self.task


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


async def hold(pool, count=1, **kwargs):
    holders = [Holder(pool, **kwargs) for _ in range(count)]
    await settle()
    return holders


def leased(holders):
    return [holder.lease.server.name if holder.lease else None for holder in holders]


async def let_all_go(holders):
    for holder in holders:
        await holder.let_go()


async def test_turns_are_even_and_shuffled(make_pool):
    pool = make_pool("a:1", "b:1", "c:1", "d:1")
    rounds = []
    for _ in range(30):
        holders = await hold(pool, 4)
        rounds.append(tuple(leased(holders)))
        await let_all_go(holders)
    assert all(len(set(order)) == 4 for order in rounds) and len(set(rounds)) > 5


async def test_limit_and_order_of_arrival(make_pool):
    pool = make_pool({"url": "a:1", "concurrency": 2})
    holders = await hold(pool, 5)
    assert leased(holders) == ["a:1", "a:1", None, None, None] and pool.waiting == 3
    await holders[1].let_go()
    await settle()
    assert [bool(name) for name in leased(holders)] == [True, True, True, False, False]
    await let_all_go(holders)


async def test_failing_server_is_taken_out_and_probed_once(make_pool, clock):
    pool = make_pool("a:1", "b:1")
    by_name = {server.name: server for server in pool.servers}
    by_name["a:1"].breaker.failed(False, at_once=True)
    holders = await hold(pool, 3)
    assert leased(holders) == ["b:1"] * 3
    await let_all_go(holders)
    clock.now += 2
    holders = await hold(pool, 4)
    assert Counter(leased(holders))["a:1"] == 1
    await let_all_go(holders)
    assert by_name["a:1"].breaker.state == CLOSED


async def test_repeat_goes_to_another_server(make_pool, clock):
    pool = make_pool("a:1", {"url": "b:1", "concurrency": 1}, next_server_wait_s=2.0)
    (blocker,) = await hold(pool, avoid="a:1")
    assert leased([blocker]) == ["b:1"]
    (waiter,) = await hold(pool, avoid="a:1")
    assert leased([waiter]) == [None]
    clock.now += 2.0
    pool.wake()
    await settle()
    assert leased([waiter]) == ["a:1"]
    await let_all_go([blocker, waiter])


async def test_repeat_that_waits_does_not_hold_up_the_others(make_pool):
    pool = make_pool({"url": "a:1", "concurrency": 1}, {"url": "b:1", "concurrency": 1})
    both = await hold(pool, 2)
    by_name = {holder.lease.server.name: holder for holder in both}
    first, second = await hold(pool, avoid="a:1") + await hold(pool)
    await by_name["a:1"].let_go()
    await settle()
    assert leased([first, second]) == [None, "a:1"]
    await by_name["b:1"].let_go()
    await settle()
    assert leased([first]) == ["b:1"]
    await let_all_go([first, second])


async def test_repeat_does_not_wait_for_a_server_that_is_out(make_pool):
    pool = make_pool("a:1", "b:1")
    next(s for s in pool.servers if s.name == "b:1").breaker.failed(False, at_once=True)
    (holder,) = await hold(pool, avoid="a:1")
    assert leased([holder]) == ["a:1"]
    await holder.let_go()


async def test_less_tried_servers_go_first(make_pool):
    pool = make_pool("a:1", "b:1", "c:1")
    for _ in range(10):
        (holder,) = await hold(pool, tries=Counter({"a:1": 1, "b:1": 1}), avoid="b:1")
        assert leased([holder]) == ["c:1"]
        await holder.let_go()


async def test_server_that_lags_behind_gets_fewer(make_pool):
    pool = make_pool("a:1", "b:1")
    stuck = []
    for _ in range(60):
        (holder,) = await hold(pool)
        if holder.lease.server.name == "a:1":
            stuck.append(holder)
        else:
            await holder.let_go()
    assert len(stuck) <= 6
    await let_all_go(stuck)


async def test_pause_is_kept_and_ends(make_pool, clock):
    pool = make_pool("a:1")
    (holder,) = await hold(pool)
    holder.lease.pause(5.0)
    await holder.let_go()
    (waiter,) = await hold(pool)
    assert leased([waiter]) == [None]
    clock.now += 5.0
    pool.wake()
    await settle()
    assert leased([waiter]) == ["a:1"]
    await waiter.let_go()


async def test_drained_server_finishes_and_gets_no_more(make_pool):
    pool = make_pool("a:1")
    (old,) = await hold(pool)
    pool.listed[0] = [parse_server("b:1", "test")]
    holders = await hold(pool, 3)
    assert leased(holders) == ["b:1"] * 3 and [s.name for s in pool.servers] == ["b:1"]
    assert old.lease.server.in_flight == 1
    await let_all_go([old, *holders])
    assert old.lease.server.in_flight == 0


async def test_server_that_is_listed_again_keeps_its_state(make_pool):
    pool = make_pool("a:1")
    (holder,) = await hold(pool)
    server = holder.lease.server
    listed = pool.listed[0]
    pool.listed[0] = [parse_server("b:1", "test")]
    pool.wake()
    pool.listed[0] = list(listed)
    pool.wake()
    assert pool.servers == [server] and server.in_flight == 1
    await holder.let_go()


async def test_new_options_of_a_server_take_effect(make_pool):
    pool = make_pool({"url": "a:1", "concurrency": 1})
    holders = await hold(pool, 2)
    assert leased(holders) == ["a:1", None]
    pool.listed[0] = [parse_server({"url": "a:1", "concurrency": 4}, "test")]
    pool.wake()
    await settle()
    assert leased(holders) == ["a:1", "a:1"]
    await let_all_go(holders)


async def test_cancelled_waiter_leaves_nothing_behind(make_pool):
    pool = make_pool({"url": "a:1", "concurrency": 1})
    first, second, third = await hold(pool, 3)
    second.task.cancel()
    await asyncio.gather(second.task, return_exceptions=True)
    await first.let_go()
    await settle()
    assert leased([third]) == ["a:1"]
    await third.let_go()
    assert pool.waiting == 0 and pool.servers[0].in_flight == 0


async def test_cancelled_between_turn_and_wake_up_returns_the_slot(make_pool):
    pool = make_pool({"url": "a:1", "concurrency": 1})
    holder = Holder(pool)
    await asyncio.sleep(0)
    holder.task.cancel()
    await asyncio.gather(holder.task, return_exceptions=True)
    assert pool.servers[0].in_flight == 0
