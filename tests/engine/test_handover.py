"""Jobs of a queue with limits end, and the next ones have their places at once."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, ClassVar

import pytest

from batuta import Queue, Retry, job
from batuta.engine.worker import slot_handover
from batuta.errors import OutcomeUnknown, StoreUnavailable
from batuta.journal.queues import QueueLimits
from batuta.journal.records import Change, Claim, Refusal, Verdict, WorkerInfo
from batuta.stores.memory import MemoryDatabase, MemoryStore
from batuta.verify import verify
from tests.engine.arena import Arena

Answers = dict[int, Verdict | list[Refusal]]
JOBS = 40


class HandingStore(MemoryStore):
    """Hands over, as PostgreSQL does; what it was asked for is kept."""

    hands_over = True

    def __init__(self, database: MemoryDatabase) -> None:
        super().__init__(database)
        self.asked: list[tuple[int, int]] = []
        """How many ended, and how many were taken for them."""
        self.fails: list[Exception] = []
        """Before anything is written."""
        self.loses: list[Exception] = []
        """When all is written, and nothing was claimed."""
        self.gate = asyncio.Event()
        """Claims wait here."""
        self.gate.set()
        self.at_gate = 0
        self.lock = asyncio.Event()
        """Of the queue: hand-overs wait for it."""
        self.lock.set()
        self.at_lock = 0

    async def retire(self, worker_id: str) -> None:
        assert not self.at_lock
        await super().retire(worker_id)

    async def claim(self, worker: WorkerInfo, limit: int, room: Mapping[str, int] | None = None) -> Claim:
        self.at_gate += 1
        await self.gate.wait()
        self.at_gate -= 1
        return await super().claim(worker, limit, room)

    async def hand_over(self, worker: WorkerInfo, changes: Sequence[Change], limit: int) -> tuple[Answers, Claim]:
        self.at_lock += 1
        try:
            await self.lock.wait()
        except asyncio.CancelledError:
            for _ in range(20):  # as a driver waits until the database has cancelled its statement
                await asyncio.sleep(0)
            raise
        finally:
            self.at_lock -= 1
        if self.fails:
            raise self.fails.pop()
        if self.loses:
            await self.commit(worker.worker_id, changes)
            raise self.loses.pop()
        answers, claim = await super().hand_over(worker, changes, limit)
        self.asked.append((len(changes), len(claim.stored_runs)))
        return answers, claim


class Visitors:
    """A job of one worker, which says who is at work."""

    at_work: ClassVar[Counter[str]] = Counter()
    most: ClassVar[Counter[str]] = Counter()
    seen: ClassVar[Counter[int]] = Counter()

    def __init__(self) -> None:
        self.visits = 0

    @job(result=False)
    async def visit(self, number: int, key: str) -> None:
        self.visits += 1
        for name in ("all", key):
            self.at_work[name] += 1
            self.most[name] = max(self.most[name], self.at_work[name])
        await asyncio.sleep(0.001)
        for name in ("all", key):
            self.at_work[name] -= 1
        self.seen[number] += 1


@pytest.fixture(autouse=True)
def _nobody_was_there() -> None:
    for counts in (Visitors.at_work, Visitors.most, Visitors.seen):
        counts.clear()


@pytest.fixture
async def handing() -> AsyncIterator[tuple[Arena, list[HandingStore]]]:
    database, stores = MemoryDatabase(), list[HandingStore]()

    def make() -> HandingStore:
        stores.append(HandingStore(database))
        return stores[-1]

    arena = Arena(make)
    yield arena, stores
    await arena.close()


def calls(count: int = JOBS) -> list[Any]:
    return [Visitors.visit.call(n, f"k{n % 8}").with_options(key=f"k{n % 8}") for n in range(count)]


async def worker_of(arena: Arena, client: Any, *things: Any, **settings: Any) -> Any:
    """One that rebuilds no job from its journal: those that were do not hand their places over."""
    return await arena.worker(client, *things, always_replay=False, **settings)


async def work(arena: Arena, client: Any, *, limit: int = 4) -> Any:
    return await worker_of(arena, client, Visitors(), queues=[Queue("default", concurrency=limit, key_concurrency=1)])


async def all_done(arena: Arena, client: Any, batch: Any) -> None:
    await asyncio.gather(*(handle.result(30) for handle in batch))
    assert Visitors.seen == Counter(range(len(batch)))
    found = await verify(arena.store(client), patience=5)
    assert not found.violations, found.violations


async def test_places_pass_on_and_limits_hold(handing: tuple[Arena, list[HandingStore]]) -> None:
    arena, stores = handing
    client = await arena.client()
    batch = await client.enqueue_many(calls())
    await work(arena, client)
    await all_done(arena, client, batch)
    assert Visitors.most["all"] <= 4
    assert max(Visitors.most[f"k{n}"] for n in range(8)) == 1
    assert sum(taken for _, taken in stores[0].asked) > 0
    assert all(ended <= 4 for ended, _ in stores[0].asked)


@pytest.mark.parametrize("error", [StoreUnavailable("away"), RuntimeError("a bug")], ids=["away", "a bug"])
async def test_what_was_not_handed_over_is_written_as_any_other_change(
    handing: tuple[Arena, list[HandingStore]], error: Exception
) -> None:
    arena, stores = handing
    client = await arena.client()
    stores[0].fails = [error] * 3
    batch = await client.enqueue_many(calls())
    await work(arena, client)
    await all_done(arena, client, batch)
    assert stores[0].fails == []


async def test_ends_of_unknown_outcome_count_once(handing: tuple[Arena, list[HandingStore]]) -> None:
    arena, stores = handing
    client = await arena.client()
    stores[0].loses = [OutcomeUnknown("the line went dead")] * 3
    batch = await client.enqueue_many(calls())
    await work(arena, client)
    await all_done(arena, client, batch)
    assert stores[0].loses == []


async def test_a_worker_that_stops_hands_over_no_more(handing: tuple[Arena, list[HandingStore]]) -> None:
    arena, stores = handing
    first, second = await arena.client(), await arena.client()
    batch = await first.enqueue_many(calls())
    worker = await work(arena, first)
    async with asyncio.timeout(30):
        while not stores[0].asked:
            await asyncio.sleep(0.001)
    await worker.__aexit__(None, None, None)
    assert await first.count(kind="job", states=["running"]) == 0
    handed = len(stores[0].asked)
    await work(arena, second)
    await all_done(arena, second, batch)
    assert len(stores[0].asked) == handed


@pytest.mark.parametrize("in_time", [True, False])
async def test_a_stop_waits_for_a_hand_over_that_waits_for_its_queue_within_its_grace(
    handing: tuple[Arena, list[HandingStore]], in_time: bool
) -> None:
    arena, stores = handing
    first, second = await arena.client(), await arena.client()
    batch = await first.enqueue_many(calls())
    stores[0].lock.clear()
    worker = await work(arena, first)
    await so(lambda: stores[0].at_lock)
    stopping = asyncio.create_task(worker.stop(30 if in_time else 0.01))
    if in_time:
        await so(lambda: worker.session is None or worker.session.draining)
        stores[0].lock.set()
    async with asyncio.timeout(20):
        await stopping
    assert await first.count(kind="job", states=["running"]) == 0
    handed = len(stores[0].asked)
    assert handed == in_time
    await work(arena, second)
    await asyncio.gather(*(handle.result(30) for handle in batch))
    assert set(Visitors.seen) == set(range(len(batch)))
    again = sum(Visitors.seen.values()) - len(batch)
    assert again == 0 if in_time else again > 0  # what was not written is done again


async def test_others_have_their_turn(
    handing: tuple[Arena, list[HandingStore]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One place, that a worker would keep for itself for ever."""
    monkeypatch.setattr(slot_handover, "_TURN_SECONDS", 0.02)
    arena, _ = handing
    visitors = [Visitors(), Visitors()]
    for one in visitors:
        await worker_of(arena, await arena.client(), one, queues=[Queue("default", concurrency=1)])
    client = await arena.client()
    async with asyncio.timeout(60):
        while not all(one.visits for one in visitors):
            batch = await client.enqueue_many([Visitors.visit.call(n, "") for n in range(JOBS)])
            await asyncio.gather(*(handle.result(30) for handle in batch))
    assert Visitors.most["all"] == 1


async def test_no_more_are_written_at_once_than_a_batch_may_have(handing: tuple[Arena, list[HandingStore]]) -> None:
    arena, stores = handing
    client = await arena.client()
    batch = await client.enqueue_many(calls())
    queues = [Queue("default", concurrency=8)]
    await worker_of(arena, client, Visitors(), queues=queues, batch_rows=4)  # a job has two
    await all_done(arena, client, batch)
    assert sum(taken for _, taken in stores[0].asked) > 0
    assert max(ended for ended, _ in stores[0].asked) <= 2


async def so(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


async def test_a_worker_has_no_more_than_it_may_when_it_looks_and_hands_over_at_once(
    handing: tuple[Arena, list[HandingStore]],
) -> None:
    """What there is room for is another number when the first of them has taken some."""
    may_end = {number: asyncio.Event() for number in range(9)}
    at_work, most = set[int](), 0

    @job(retry=Retry(attempts=1), result=False)
    async def waits(number: int) -> None:
        nonlocal most
        at_work.add(number)
        most = max(most, len(at_work))
        await may_end[number].wait()
        at_work.discard(number)
        if number == 0:
            raise ValueError("whose place is not handed over")

    arena, stores = handing
    client = await arena.client()
    batch = await client.enqueue_many([waits.call(number) for number in may_end])
    worker = await worker_of(arena, client, waits, queues=[Queue("default", concurrency=2, per_worker=3)])
    await so(lambda: at_work == {0, 1})
    session = worker.session
    assert session is not None
    stores[0].gate.clear()
    may_end[0].set()
    await so(lambda: stores[0].at_gate and len(session.runs) == 1)
    await stores[0].limit_queue("default", QueueLimits(concurrency=9))
    may_end[1].set()
    await so(lambda: not at_work)
    for _ in range(20):  # the end is on its way
        await asyncio.sleep(0.001)
    stores[0].gate.set()
    await so(lambda: stores[0].asked and not session._poller.claiming)
    for event in may_end.values():
        event.set()
    await asyncio.gather(*(handle.result(30) for handle in batch[1:]))
    assert most <= 3


async def test_limits_hold_on_every_store_while_places_pass_on(arena: Arena) -> None:
    clients = [await arena.client() for _ in range(3)]
    batch = await clients[0].enqueue_many(calls(200))
    for client in clients:
        await work(arena, client)
    await all_done(arena, clients[0], batch)
    assert Visitors.most["all"] <= 4
    assert max(Visitors.most[f"k{n}"] for n in range(8)) == 1


async def test_a_worker_that_dies_leaves_its_places_to_others(arena: Arena) -> None:
    first, second = await arena.client(), await arena.client()
    batch = await first.enqueue_many(calls(120))
    worker = await work(arena, first)
    await work(arena, second)
    async with asyncio.timeout(30):
        while Visitors.seen.total() < 20:
            await asyncio.sleep(0.001)
    await arena.kill(first, worker)
    await asyncio.gather(*(handle.result(30) for handle in batch))
    assert set(Visitors.seen) == set(range(120))
    found = await verify(arena.store(second), patience=5)
    assert not found.violations, found.violations
