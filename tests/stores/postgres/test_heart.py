"""The heartbeat's session: its lock, its end, and what it may conclude from others'."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from batuta.clock import SECOND
from batuta.errors import StoreError
from batuta.journal.process_identity import this_process
from batuta.journal.records import Pulse, WorkerInfo
from batuta.stores.postgres import PostgresStore
from batuta.testing.conformance import MakeStore
from batuta.testing.conformance.commits.hints import Ear
from batuta.testing.conformance.kit import (
    LEASE_SECONDS,
    beat,
    ended_process,
    live_worker,
    new_run,
    outlive_lease,
    start_owned,
)
from batuta.testing.servers import PostgresServer
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
    async with other.heartbeat(watched.worker_id), connection(postgres_url) as raw:
        await raw.execute(KILL)
        async with asyncio.timeout(DEADLINE_SECONDS):
            while watched.worker_id in (await beat(store, me)).peers:
                await asyncio.sleep(0.01)
        locks = await raw.fetchval(OUR_LOCKS)
        assert locks == 1


async def test_workers_whose_names_read_alike_in_two_namespaces_have_locks_of_their_own(
    store: PostgresStore, postgres_url: str
) -> None:
    pairs = [("acme/eu", "x"), ("acme", "eu/x"), ("", "acme/eu/x"), ("acme/eu/x", ""), ("eu/x", "acme")]
    async with connection(postgres_url) as raw:
        locks = {await raw.fetchval("SELECT batuta.worker_lock($1, $2)", *pair) for pair in pairs}
    assert len(locks) == len(pairs)


async def test_beats_go_on_after_the_session_was_lost(store: PostgresStore, postgres_url: str) -> None:
    worker = await live_worker(store)
    async with store.heartbeat(worker.worker_id) as heartbeat, connection(postgres_url) as raw:
        before = await heartbeat.beat(worker, reap=False)
        await raw.execute(KILL)
        after = None
        async with asyncio.timeout(DEADLINE_SECONDS):
            while after is None:
                try:
                    after = await heartbeat.beat(worker, reap=False)
                except StoreError:
                    await asyncio.sleep(0.01)
    assert after.alive
    assert after.timeline == before.timeline


async def test_a_server_that_just_started_is_no_proof_that_workers_died(store: PostgresStore) -> None:
    gone = await live_worker(store, lease=10_000_000 * SECOND)
    me = await live_worker(store)
    assert gone.worker_id not in (await beat(store, me)).peers


async def test_a_process_that_has_ended_is_dead_also_when_the_server_came_up_a_moment_ago(store: PostgresStore) -> None:
    gone = await live_worker(store, lease=10_000_000 * SECOND, process=ended_process())
    me = await live_worker(store)
    assert (await beat(store, me)).peers == [gone.worker_id]


async def test_a_process_that_lives_is_not_dead_without_its_lock_however_silent(store: PostgresStore) -> None:
    lives = await live_worker(store, process=this_process())
    me = await live_worker(store)
    assert (await beat(store, me)).peers == []
    store.shift_clock(LEASE_SECONDS * 0.9)
    assert lives.worker_id not in (await beat(store, me)).peers


@pytest.mark.parametrize("process", ["", f"elsewhere {this_process()}"], ids=["unknown", "elsewhere"])
async def test_a_worker_of_another_machine_is_dead_when_it_is_silent_for_two_thirds_of_its_lease(
    store: PostgresStore, process: str
) -> None:
    away = await live_worker(store, process=process)
    me = await live_worker(store)
    assert (await beat(store, me)).peers == []
    store.shift_clock(LEASE_SECONDS * 0.5)
    assert (await beat(store, me)).peers == []
    store.shift_clock(LEASE_SECONDS * 0.3)
    assert (await beat(store, me)).peers == [away.worker_id]
    async with store.heartbeat(away.worker_id) as heartbeat:
        await heartbeat.beat(away, reap=False)
    assert (await beat(store, me)).peers == []


async def test_a_role_that_may_not_see_the_servers_processes_does_not_take_a_crash_for_deaths() -> None:
    """All sessions, and their locks, end when one of them crashes; the server itself does not restart."""
    with PostgresServer(settings={"synchronous_commit": "on"}) as server:
        url = server.create_database()
        store = PostgresStore(url)
        await store.migrate()
        async with connection(url) as raw:
            await raw.execute("CREATE ROLE plain LOGIN PASSWORD 'plain'; GRANT USAGE ON SCHEMA batuta TO plain")
            began = await raw.fetchval("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
            os.kill(await raw.fetchval("SELECT pg_backend_pid()"), signal.SIGKILL)
        parts = urlsplit(url)
        plain = urlunsplit(parts._replace(netloc=f"plain:plain@{parts.netloc.rpartition('@')[2]}"))
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                try:
                    async with connection(plain) as raw:
                        assert await raw.fetchval("SELECT batuta.up_since()") > began
                        break
                except (asyncpg.PostgresError, OSError):
                    await asyncio.sleep(0.01)


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
    async with store.heartbeat(worker.worker_id) as heartbeat:
        before = (await heartbeat.beat(worker, reap=False)).now
        store.shift_clock(5)
        assert (await heartbeat.beat(worker, reap=False)).now >= before + 5 * SECOND


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
    assert (await store.claim(idle, 10)).stored_runs == []
