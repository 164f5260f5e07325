"""Random starts, claims, ends and deaths under random limits: no limit is exceeded, and everything has its turn."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from batuta.clock import SECOND
from batuta.journal.queues import QueueLimits, Rate
from batuta.journal.records import Move, StoredRun, WorkerInfo
from batuta.journal.states import RunState
from batuta.stores.memory import MemoryDatabase, MemoryStore
from batuta.testing.conformance.kit import Pen, let_go, live_worker, new_run
from tests.long import examples

DONE = Move(RunState.COMPLETED)
FOREVER = 10**9 * SECOND
PATIENCE = 2_000
"""Claims after which everything must have had its turn."""

rates = st.none() | st.builds(Rate, st.integers(1, 4), st.integers(10, 60))
limits = st.builds(
    QueueLimits,
    concurrency=st.none() | st.integers(1, 4),
    key_concurrency=st.none() | st.integers(1, 2),
    rate=rates,
    key_rate=rates,
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("start"), st.sampled_from(["", "a", "b", "c"]), st.integers(0, 1), st.integers(0, 30)),
        st.tuples(st.just("claim"), st.integers(0, 2), st.integers(1, 6)),
        st.tuples(st.just("claim"), st.integers(0, 2), st.integers(1, 6)),
        st.tuples(st.just("close"), st.integers(0, 50)),
        st.tuples(st.just("hand back"), st.integers(0, 50), st.integers(0, 60)),
        st.tuples(st.just("retire"), st.integers(0, 2)),
        st.tuples(st.just("pass"), st.integers(1, 70)),
    ),
    min_size=5,
    max_size=50,
)


class Standing:
    """A clock that moves only when the store's is shifted."""

    def now(self) -> int:
        return 1_700_000_000 * SECOND

    def monotonic(self) -> float:
        return 0.0


class World:
    """A store with three workers, and what an outsider has seen of it."""

    def __init__(self, limits: QueueLimits) -> None:
        self.store = MemoryStore(MemoryDatabase(Standing()))
        self.limits = limits
        self.workers: list[WorkerInfo] = []
        self.owned: list[tuple[WorkerInfo, StoredRun]] = []
        self.begun: list[tuple[int, str]] = []
        self.started = self.closed = 0
        self.deaths = 0

    async def open(self) -> None:
        await self.store.open()
        await self.store.limit_queue("default", self.limits)
        self.workers = [await live_worker(self.store, lease=FOREVER) for _ in range(3)]
        for key in ("", "a", "b"):
            await self.perform(("start", key, 0, 0))

    async def perform(self, step: Any) -> None:
        match step:
            case ("start", key, priority, delay):
                news = [new_run(flow_key=key, priority=priority, delay=delay * SECOND) for _ in range(3)]
                self.started += len(await self.store.start_many(news))
            case ("claim", worker, limit):
                await self.claim(self.workers[worker], limit)
            case ("close", place) if self.owned:
                await self.leave(place, DONE)
            case ("hand back", place, delay) if self.owned:
                wake_at = await self.store.now() + delay * SECOND
                await self.leave(place, Move(RunState.WAITING, wake_at=wake_at))
            case ("retire", worker):
                await self.lose(worker)
            case ("pass", seconds):
                self.store.shift_clock(seconds)

    async def claim(self, worker: WorkerInfo, limit: int) -> int:
        expected = await self.store.due_at(worker)
        claim = await self.store.claim(worker, limit)
        now = await self.store.now()
        self.begun += [(now, stored.run.flow_key) for stored in claim.stored_runs if stored.run.epoch == 1]
        self.owned += [(worker, stored) for stored in claim.stored_runs]
        self.check()
        if claim.stored_runs:
            assert expected is not None
            assert expected <= now
        assert claim.again_at is None or (claim.held and claim.again_at > now)
        return len(claim.stored_runs)

    async def leave(self, place: int, move: Move) -> None:
        worker, stored = self.owned.pop(place % len(self.owned))
        assert await Pen.of(stored).write(self.store, worker, move=move) is None
        self.closed += move is DONE

    async def lose(self, number: int) -> None:
        """A worker leaves, or dies: twice at most, so that nothing is poisoned."""
        lost, other = self.workers[number], self.workers[number - 1]
        if self.deaths < 2:
            await let_go(self.store, lost)
            async with self.store.heartbeat(other.worker_id) as heartbeat:
                await heartbeat.reap([lost.worker_id])
            self.deaths += 1
        else:
            await self.store.retire(lost.worker_id)
        self.owned = [(worker, stored) for worker, stored in self.owned if worker is not lost]
        self.workers[number] = await live_worker(self.store, lease=FOREVER)

    def check(self) -> None:
        keys = Counter(stored.run.flow_key for _, stored in self.owned if stored.run.flow_key)
        if self.limits.concurrency is not None:
            assert len(self.owned) <= self.limits.concurrency
        if self.limits.key_concurrency is not None:
            assert max(keys.values(), default=0) <= self.limits.key_concurrency
        if self.limits.rate is not None:
            assert is_kept(self.limits.rate, [at for at, _ in self.begun])
        if self.limits.key_rate is not None:
            for key in keys:
                assert is_kept(self.limits.key_rate, [at for at, each in self.begun if each == key])

    async def come_to_rest(self) -> None:
        """Go on until nothing is left, as workers do: claim, end it, and wait for what is due next."""
        for number in range(PATIENCE):
            while self.owned:
                await self.leave(0, DONE)
            if self.closed == self.started:
                return
            worker = self.workers[number % 3]
            if not await self.claim(worker, 3):
                due_at = await self.store.due_at(worker)
                assert due_at is not None, "something waits, and no time will let it begin"
                too_soon = number % 2 == 0
                wait = max(0, due_at - await self.store.now()) / SECOND
                self.store.shift_clock(wait * 0.95 if too_soon else wait)
        raise AssertionError(f"{self.started - self.closed} runs never had their turn")


def is_kept(rate: Rate, begun: list[int]) -> bool:
    """Whether more than `count` never began within a period, wherever that begins."""
    return all(later - first >= rate.period for first, later in zip(begun, begun[rate.count :], strict=False))


@settings(max_examples=examples(30), deadline=None)
@given(limits=limits, steps=steps)
def test_limits_are_kept_and_nothing_starves(limits: QueueLimits, steps: list[Any]) -> None:
    async def go() -> None:
        world = World(limits)
        await world.open()
        for step in steps:
            await world.perform(step)
        await world.come_to_rest()

    asyncio.run(go())
