"""Claims while somebody holds an old snapshot, so that PostgreSQL can clean nothing up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from batuta.journal.records import Hint, WorkerInfo
from batuta.stores.postgres import PostgresStore
from batuta.stores.postgres.fast.claim_cursor import MOST_SECONDS, ClaimCursors
from batuta.testing.conformance.kit import claimed, live_worker
from batuta.testing.conformance.limits.queues import start_some
from tests.stores.postgres.raw import connection, flush_statistics

pytestmark = pytest.mark.usefixtures("new_postgres_url")

MANY = 1_500
PASSED = "SELECT pg_stat_get_tuples_returned('batuta.runs_due'::regclass)"


class Clock:
    """Stands still until it is moved."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(store: PostgresStore) -> Clock:
    clock = Clock()
    store._claim_cursors = ClaimCursors(clock)
    return clock


@pytest.fixture
async def worker(store: PostgresStore, postgres_url: str, clock: Clock) -> AsyncIterator[WorkerInfo]:
    """One that has claimed very many, none of which can be cleaned up, and one more: it knows where to begin."""
    async with connection(postgres_url) as holder, holder.transaction(isolation="repeatable_read"):
        await holder.fetch("SELECT count(*) FROM batuta.runs")
        worker = await live_worker(store)
        await start_some(store, MANY)
        assert len(await claimed(store, worker, MANY)) == MANY
        store.shift_clock(5)
        await start_some(store, 1)
        assert len(await claimed(store, worker, 10)) == 1
        yield worker


async def passed_by_a_claim(store: PostgresStore, worker: WorkerInfo, postgres_url: str) -> int:
    before = await _passed(store, postgres_url)
    assert len(await claimed(store, worker, 10)) == 1
    return await _passed(store, postgres_url) - before


async def _passed(store: PostgresStore, postgres_url: str) -> int:
    await flush_statistics(store)
    async with connection(postgres_url) as raw:
        passed: int = await raw.fetchval(PASSED)
        return passed


async def set_due_long_ago(store: PostgresStore, postgres_url: str) -> None:
    [late] = await start_some(store, 1)
    async with connection(postgres_url) as raw:
        await raw.execute("UPDATE batuta.runs SET wake_at = 1 WHERE run_id = $1", late.run_id)


async def test_what_was_claimed_before_is_not_passed_again(
    store: PostgresStore, worker: WorkerInfo, postgres_url: str
) -> None:
    await start_some(store, 1)
    assert await passed_by_a_claim(store, worker, postgres_url) < 100


async def test_a_run_due_long_ago_is_found_by_the_next_whole_look(
    store: PostgresStore, worker: WorkerInfo, clock: Clock, postgres_url: str
) -> None:
    await set_due_long_ago(store, postgres_url)
    assert await claimed(store, worker, 10) == []
    clock.now += MOST_SECONDS
    assert len(await claimed(store, worker, 10)) == 1


async def test_a_listener_that_may_have_missed_hints_is_told_to_look_again(
    store: PostgresStore, worker: WorkerInfo, clock: Clock, postgres_url: str
) -> None:
    hints: asyncio.Queue[Hint] = asyncio.Queue()
    stop = store.listen(hints.put_nowait)
    await set_due_long_ago(store, postgres_url)
    clock.now += MOST_SECONDS - 0.01
    while not hints.empty():
        hints.get_nowait()
    assert await claimed(store, worker, 10) == []
    clock.now += 0.01
    async with asyncio.timeout(30):
        while not (await hints.get()).due:
            pass
    assert len(await claimed(store, worker, 10)) == 1
    stop()


async def test_another_priority_is_found_at_once(store: PostgresStore, worker: WorkerInfo) -> None:
    await start_some(store, 1)
    [low] = await start_some(store, 1, priority=-1)
    [high] = await start_some(store, 1, priority=1)
    stored_runs = await claimed(store, worker, 10)
    assert [stored.run.priority for stored in stored_runs] == [1, 0, -1]
    assert (stored_runs[0].run.run_id, stored_runs[2].run.run_id) == (high.run_id, low.run_id)


async def test_flow_keys_are_found_at_once(store: PostgresStore, worker: WorkerInfo) -> None:
    await start_some(store, 5, "a", "b")
    assert len(await claimed(store, worker, 20)) == 10


async def test_what_a_worker_has_no_code_for_is_not_passed_again(
    store: PostgresStore, clock: Clock, postgres_url: str
) -> None:
    worker = await live_worker(store)
    await start_some(store, MANY, name="alien", code="alien")
    store.shift_clock(5)
    await store.register(worker)
    assert await claimed(store, worker, 10) == []
    await start_some(store, 1)
    assert await passed_by_a_claim(store, worker, postgres_url) < 100


async def test_with_other_code_a_worker_looks_from_the_beginning(
    store: PostgresStore, worker: WorkerInfo, postgres_url: str
) -> None:
    await set_due_long_ago(store, postgres_url)
    assert await claimed(store, worker, 10) == []
    assert len(await claimed(store, await live_worker(store, code={"flow": "v2"}), 10)) == 1
