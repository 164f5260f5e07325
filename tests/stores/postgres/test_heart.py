"""The heartbeat's session: its lock, its end, and what it may conclude from others'."""

from __future__ import annotations

import asyncio
import threading

from batuta.clock import SECOND
from batuta.errors import StoreError
from batuta.journal.records import Pulse, WorkerInfo
from batuta.stores.postgres import PostgresStore
from batuta.testing.conformance import MakeStore
from batuta.testing.conformance.hints import Ear
from batuta.testing.conformance.kit import beat, live_worker, new_run, outlive_lease, start_owned
from tests.stores.postgres.raw import DEADLINE_SECONDS, connection
from tests.stores.postgres.test_faults import KILL

OUR_LOCKS = """
    SELECT count(*) FROM pg_locks
    WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""  # other tests have databases of their own on the same server


async def test_a_heart_that_lost_its_session_takes_its_lock_again_by_itself(
    store: PostgresStore, make_store: MakeStore, postgres_url: str
) -> None:
    other = await make_store()
    me, watched = await live_worker(store), await live_worker(other)
    async with other.heart(watched.worker_id), connection(postgres_url) as raw:
        await raw.execute(KILL)
        async with asyncio.timeout(DEADLINE_SECONDS):
            while watched.worker_id in (await beat(store, me)).peers:
                await asyncio.sleep(0.01)
        locks = await raw.fetchval(OUR_LOCKS)
        assert locks == 1


async def test_beats_go_on_after_the_session_was_lost(store: PostgresStore, postgres_url: str) -> None:
    worker = await live_worker(store)
    async with store.heart(worker.worker_id) as heart, connection(postgres_url) as raw:
        before = await heart.beat(worker, reap=False)
        await raw.execute(KILL)
        after = None
        async with asyncio.timeout(DEADLINE_SECONDS):
            while after is None:
                try:
                    after = await heart.beat(worker, reap=False)
                except StoreError:
                    await asyncio.sleep(0.01)
    assert after.alive
    assert after.timeline == before.timeline


async def test_a_server_that_came_up_a_moment_ago_proves_nobody_dead(store: PostgresStore) -> None:
    gone = await live_worker(store, lease=10_000_000 * SECOND)
    me = await live_worker(store)
    assert gone.worker_id not in (await beat(store, me)).peers


async def test_a_heart_beats_in_another_thread_and_its_hints_come_home(store: PostgresStore) -> None:
    dead = await live_worker(store)
    await start_owned(store, dead)
    await outlive_lease(store)
    worker = await live_worker(store)
    ear = Ear(store)
    pulses: list[Pulse] = []

    def run() -> None:
        pulses.append(asyncio.run(beat(store, worker, reap=True)))

    thread = threading.Thread(target=run)
    thread.start()
    await ear.hears(lambda hint: hint.due and hint.closed == [])
    await asyncio.to_thread(thread.join)
    assert pulses[0].reaped == 1


async def test_hearts_opened_before_a_shift_follow_it(store: PostgresStore) -> None:
    worker = await live_worker(store)
    async with store.heart(worker.worker_id) as heart:
        before = (await heart.beat(worker, reap=False)).now
        store.shift_clock(5)
        assert (await heart.beat(worker, reap=False)).now >= before + 5 * SECOND


async def test_many_overdue_runs_are_all_closed_in_a_few_beats(store: PostgresStore) -> None:
    worker = await live_worker(store)
    for index in range(30):
        await store.start(new_run(f"late-{index}", timeout=SECOND))
    store.shift_clock(2)
    await beat(store, worker)
    states = {(await store.get(f"late-{index}")).state.value for index in range(30)}
    assert states == {"timed_out"}


async def test_a_worker_without_queues_or_code_can_beat(store: PostgresStore) -> None:
    idle = WorkerInfo(worker_id="idle", queues=[], code={})
    await store.register(idle)
    pulse = await beat(store, idle)
    assert (pulse.alive, pulse.due_at, pulse.owned) == (True, None, {})
    assert (await store.claim(idle, 10)).tapes == []
