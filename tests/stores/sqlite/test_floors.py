"""Claims where much is due that only workers with other code can take."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from batuta.journal.audit import Act, Verb
from batuta.journal.records import WorkerInfo
from batuta.stores.sqlite.fast.claim_cursor import MANY, MOST_SECONDS, ClaimCursors
from batuta.stores.sqlite.store import SqliteStore
from batuta.testing.conformance.kit import beat, claimed, live_worker, new_run

ALIENS = 10_000
PAUSE = Act(actor="ann", verb=Verb.PAUSE)


class Clock:
    """Stands still until it is moved."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class Steps:
    """What SQLite does, in steps of its machine: each row that is looked at takes some."""

    def __init__(self, store: SqliteStore) -> None:
        assert store._writer._connection is not None
        self._connections: list[sqlite3.Connection] = [store._writer._connection]
        store._readers.read(self._connections.append)
        self.taken = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        self.taken = 0
        for each in self._connections:
            each.set_progress_handler(self._count, 10)
        yield
        for each in self._connections:
            each.set_progress_handler(None, 0)

    def _count(self) -> int:
        self.taken += 10
        return 0


@pytest.fixture
def clock(store: SqliteStore) -> Clock:
    clock = Clock()
    store._claim_cursors = ClaimCursors(clock)
    return clock


async def aliens(store: SqliteStore, count: int) -> None:
    await store.start_many([new_run(name="alien", code="alien") for _ in range(count)])
    store.shift_clock(5)


async def steps_of_a_claim(store: SqliteStore, worker: WorkerInfo) -> int:
    """Of one that finds nothing, and one that finds one run."""
    steps = Steps(store)
    with steps.counted():
        assert await claimed(store, worker, 10) == []
    nothing = steps.taken
    await store.start(new_run())
    with steps.counted():
        assert len(await claimed(store, worker, 10)) == 1
    return nothing + steps.taken


async def test_what_a_worker_has_no_code_for_costs_it_nothing(store: SqliteStore, clock: Clock) -> None:
    worker = await live_worker(store)
    await claimed(store, worker, 10)
    before = await steps_of_a_claim(store, worker)
    await aliens(store, ALIENS)
    await store.register(worker)
    clock.now += MOST_SECONDS
    await claimed(store, worker, 10)  # looks from the very beginning, and sees that it is much
    assert await steps_of_a_claim(store, worker) < before + 500
    clock.now += MOST_SECONDS
    assert await steps_of_a_claim(store, worker) > ALIENS


async def test_a_few_are_passed_every_time(store: SqliteStore, clock: Clock) -> None:
    worker = await live_worker(store)
    await aliens(store, MANY - 1)
    await store.register(worker)
    await claimed(store, worker, 10)
    assert store._claim_cursors.known == {}


async def test_a_run_due_long_ago_is_found_by_the_next_whole_look(store: SqliteStore, clock: Clock) -> None:
    worker = await live_worker(store)
    [(late, _)] = [await store.start(new_run())]
    await store.pause_runs([late.run_id], PAUSE)
    await aliens(store, ALIENS)
    await store.register(worker)
    assert await claimed(store, worker, 10) == []
    await store.resume_runs([late.run_id], PAUSE)
    assert await claimed(store, worker, 10) == []
    assert (await beat(store, worker)).due_at == late.wake_at  # its worker is told all the same
    clock.now += MOST_SECONDS
    assert len(await claimed(store, worker, 10)) == 1


async def test_workers_with_other_code_and_other_priorities_are_not_concerned(store: SqliteStore, clock: Clock) -> None:
    worker = await live_worker(store)
    await aliens(store, ALIENS)
    await store.register(worker)
    assert await claimed(store, worker, 10) == []
    other = await live_worker(store, code={"alien": "v1"})
    assert len(await claimed(store, other, 10)) == 10
    assert await claimed(store, worker, 10) == []
    for priority in (-1, 0, 1):
        await store.start(new_run(priority=priority))
    assert [stored.run.priority for stored in await claimed(store, worker, 10)] == [1, 0, -1]


async def steps_among_priorities(store: SqliteStore, priorities: int) -> int:
    """Of a claim of ten among 2,000 runs."""
    worker = await live_worker(store)
    await store.start_many([new_run(priority=n % priorities) for n in range(2_000)])
    steps = Steps(store)
    with steps.counted():
        highest, *_ = await claimed(store, worker, 10)
    assert highest.run.priority == priorities - 1
    return steps.taken


async def test_a_claim_does_not_look_at_priorities_below_those_that_it_takes(store: SqliteStore, clock: Clock) -> None:
    few = await steps_among_priorities(store, 10)
    clock.now += MOST_SECONDS / 2
    many = await steps_among_priorities(store, 2_000)
    assert many < 10 * few
