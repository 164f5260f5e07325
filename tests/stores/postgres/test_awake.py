"""A worker stays awake for the reply to a lone commit, and for nothing else."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from batuta.stores.postgres import PostgresStore, awake
from batuta.stores.postgres.awake import MOST_SKIPPED, Awake
from batuta.testing.conformance.kit import live_worker, start_owned

ROUNDS = 5


class Clock:
    """Stands still until it is moved."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class Noted(Awake):
    """Writes down when it is asked to stay awake."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self.asked: list[str] = []

    def stay(self) -> None:
        self.asked.append("stay")

    def rest(self) -> None:
        self.asked.append("rest")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(awake, "processors", lambda: 2)
    return Clock()


async def is_awake(one: Awake) -> bool:
    """Some rounds of the event loop later."""
    for _ in range(ROUNDS):
        await asyncio.sleep(0)
    return one.is_awake


async def reply(one: Awake, clock: Clock, *, quick: bool) -> bool:
    """Whether one stayed awake for it."""
    one.stay()
    stayed = one.is_awake
    if not quick:
        clock.now += 1.0
        assert not await is_awake(one)
    one.rest()
    assert not await is_awake(one)
    return stayed


async def test_the_event_loop_is_awake_until_the_reply_is_here(clock: Clock) -> None:
    one = Awake(0.5, clock)
    one.stay()
    assert await is_awake(one)
    one.rest()
    assert not await is_awake(one)


async def test_a_reply_that_takes_longer_is_waited_for_asleep(clock: Clock) -> None:
    one = Awake(0.5, clock)
    one.stay()
    clock.now += 0.4
    assert await is_awake(one)
    clock.now += 0.1
    assert not await is_awake(one)


async def test_where_replies_are_slow_it_is_tried_ever_more_rarely(clock: Clock) -> None:
    one = Awake(0.5, clock)
    stayed = [await reply(one, clock, quick=False) for _ in range(200)]
    tries = [number for number, yes in enumerate(stayed) if yes]
    skipped = [later - earlier - 1 for earlier, later in pairwise(tries)]
    assert skipped == [1, 2, 4, 8, 16, 32, MOST_SKIPPED, MOST_SKIPPED]


async def test_one_quick_reply_makes_up_for_all_slow_ones(clock: Clock) -> None:
    one = Awake(0.5, clock)
    for _ in range(20):
        await reply(one, clock, quick=False)
    while not await reply(one, clock, quick=True):
        pass
    assert await reply(one, clock, quick=False)
    assert [await reply(one, clock, quick=True) for _ in range(3)] == [False, True, True]


@pytest.mark.parametrize(("seconds", "processors"), [(0.0, 8), (0.5, 1)])
async def test_switched_off_or_with_one_processor_nobody_stays_awake(
    seconds: float, processors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(awake, "processors", lambda: processors)
    one = Awake(seconds, Clock())
    one.stay()
    assert not one.is_awake


async def test_a_store_stays_awake_for_a_lone_change_and_not_for_several(store: PostgresStore) -> None:
    worker = await live_worker(store)
    first, second = await start_owned(store, worker), await start_owned(store, worker)
    noted = store._awake = Noted()
    assert await first.write(store, worker) is None
    assert noted.asked == ["stay", "rest"]
    assert await store.commit(worker.worker_id, [first.change(), second.change()]) == {}
    assert noted.asked == ["stay", "rest"]
