"""A server that may have lost what it acknowledged: what workers notice, and what is said at open."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest

from batuta.clock import SECOND
from batuta.engine.worker.lease import went_back
from batuta.errors import StoreError
from batuta.journal.records import Verdict
from batuta.journal.store import Heartbeat
from batuta.stores.postgres import PostgresStore
from batuta.testing.conformance.kit import Pen, claim_one, live_worker, new_run
from batuta.testing.servers import PostgresServer
from tests.stores.postgres.raw import DEADLINE_SECONDS, connection

T = TypeVar("T")
LONGER_THAN_RESTARTS = 3600 * SECOND
POOLED = "statement_cache_size=0"
"""Behind a pooler a connection says nothing about the server: here there is none, and the store does not know."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer(settings={"synchronous_commit": "on"}) as started:
        yield started


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url)
    await store.migrate()
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def commits_are(kind: str, url: str) -> None:
    """For the sessions to come on this database."""
    async with connection(url) as raw:
        name = await raw.fetchval("SELECT current_database()")
        await raw.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = {kind}')


async def crash(url: str) -> None:
    """A session dies by a signal: the server ends all others and recovers from its log, which has all until now."""
    async with connection(url) as raw:
        await raw.execute("CHECKPOINT")
        os.kill(await raw.fetchval("SELECT pg_backend_pid()"), signal.SIGKILL)
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not raw.is_closed():
                await asyncio.sleep(0.01)


async def in_the_end(call: Callable[[], Awaitable[T]]) -> T:
    """Call until the store is back."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            try:
                return await call()
            except StoreError:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(("kind", "noticed"), [("off", True), ("on", False)])
async def test_a_crash_is_noticed_where_it_may_have_lost_commits(
    server: PostgresServer, kind: str, noticed: bool
) -> None:
    url = server.create_database()
    await commits_are(kind, url)
    async with opened(url) as store:
        worker = await live_worker(store)
        async with store.heartbeat(worker.worker_id) as heartbeat:
            before = await heartbeat.beat(worker, reap=False)
            await crash(url)
            after = await in_the_end(lambda: heartbeat.beat(worker, reap=False))
            assert (after.timeline != before.timeline) is noticed
            assert (await heartbeat.beat(worker, reap=False)).timeline == after.timeline


async def test_a_plain_restart_loses_nothing_and_is_no_other_history(server: PostgresServer) -> None:
    url = server.create_database()
    await commits_are("off", url)
    async with opened(url) as store:
        worker = await live_worker(store)
        async with store.heartbeat(worker.worker_id) as heartbeat:
            before = await heartbeat.beat(worker, reap=False)
            await asyncio.to_thread(server.restart)
            after = await in_the_end(lambda: heartbeat.beat(worker, reap=False))
            assert not went_back(before, after)


async def test_a_restored_snapshot_is_noticed_and_its_lost_claim_writes_nothing() -> None:
    """The files of a moment ago, without a word to the server: the timeline is the same."""
    with PostgresServer(fsync=True) as restored:
        async with opened(restored.create_database()) as store:
            worker, other = [await live_worker(store, lease=LONGER_THAN_RESTARTS) for _ in range(2)]
            await store.start(new_run("one"))
            await asyncio.to_thread(copy_files, restored, "data", "snapshot")
            await in_the_end(store.now)
            async with store.heartbeat(worker.worker_id) as heartbeat:
                lost = Pen.of(await claim_one(store, worker))
                assert await lost.write(store, worker, 3) is None
                before = await in_the_end(lambda: heartbeat.beat(worker, reap=False))
                await asyncio.to_thread(copy_files, restored, "snapshot", "data")
                after = await in_the_end(lambda: heartbeat.beat(worker, reap=False))
            assert after.alive
            assert after.timeline == before.timeline
            assert went_back(before, after)
            known = Pen.of(await claim_one(store, other))
            assert known.epoch == lost.epoch
            assert await known.write(store, other, 3, text="other") is None
            assert await lost.write(store, worker) is Verdict.REFUSED
            assert await known.write(store, other) is None


def copy_files(server: PostgresServer, source: str, target: str) -> None:
    """As a restored volume: the server is stopped for it."""
    server.stop("fast" if source == "data" else "kill")
    subprocess.run(["rm", "-rf", server.directory / target], check=True)
    subprocess.run(["cp", "-a", server.directory / source, server.directory / target], check=True)
    server.start()


@pytest.mark.parametrize("options", ["", POOLED], ids=["direct", "pooled"])
async def test_another_history_is_noticed_though_the_connection_did_not_break(
    server: PostgresServer, options: str
) -> None:
    url = server.create_database()
    await commits_are("off", url)
    async with opened(f"{url}?{options}") as store:
        worker = await live_worker(store)
        async with store.heartbeat(worker.worker_id) as heartbeat, connection(url) as raw:
            before, session = await heartbeat.beat(worker, reap=False), _connection(heartbeat)
            await raw.execute("SELECT pg_stat_reset_shared('bgwriter')")  # as a recovery from a crash does
            after = await heartbeat.beat(worker, reap=False)
            assert _connection(heartbeat) is session
            assert went_back(before, after)


def _connection(heartbeat: Heartbeat) -> object:
    return heartbeat._session._connection  # type: ignore[attr-defined]


async def test_a_beat_that_the_database_has_forgotten_is_noticed(store: PostgresStore, postgres_url: str) -> None:
    worker = await live_worker(store)
    async with store.heartbeat(worker.worker_id) as heartbeat, connection(postgres_url) as raw:
        pulses = [await heartbeat.beat(worker, reap=False) for _ in range(3)]
        assert not went_back(pulses[0], pulses[1])
        assert not went_back(pulses[1], pulses[2])
        assert pulses[0].position < pulses[2].position
        await raw.execute("UPDATE batuta.workers SET beat_at = $1", pulses[0].now)
        assert went_back(pulses[2], await heartbeat.beat(worker, reap=False))


@pytest.mark.parametrize(("kind", "said"), [("off", "fsync = off, synchronous_commit = off"), ("on", "fsync = off")])
async def test_settings_that_break_the_promise_are_named_once_at_open(
    server: PostgresServer, caplog: pytest.LogCaptureFixture, kind: str, said: str
) -> None:
    url = server.create_database()
    await commits_are(kind, url)
    for _ in range(2):
        async with opened(url):
            pass
    records = [record for record in caplog.records if record.name == "batuta.postgres"]
    assert [record.levelno for record in records] == [logging.WARNING]
    message = records[0].getMessage()
    assert message.startswith("unsafe durability: ")
    assert said in message


async def test_nothing_is_said_of_a_durable_server(caplog: pytest.LogCaptureFixture) -> None:
    with PostgresServer(fsync=True) as durable:
        async with opened(durable.create_database()):
            pass
    assert [record for record in caplog.records if record.name == "batuta.postgres"] == []
