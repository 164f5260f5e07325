"""Somebody else holds a lock, or the server is slow: the store says so in time, and work goes on afterwards."""

from __future__ import annotations

import asyncio

import pytest

from batuta import activity, connect, workflow
from batuta.errors import OutcomeUnknown, StoreUnavailable
from batuta.journal.records import Message, MessageKind, Verdict
from batuta.stores.postgres import PostgresStore
from batuta.testing.conformance.kit import Pen, live_worker, new_run, start_owned
from tests.stores.postgres.raw import connection, until_blocked

PATIENCE = 30.0
HOLD = "SELECT FROM batuta.runs WHERE run_id = $1 FOR UPDATE"


async def opened(url: str, options: str) -> PostgresStore:
    store = PostgresStore(f"{url}?{options}")
    await store.open()
    return store


@pytest.mark.parametrize("options", ["lock_timeout=0.1", "lock_timeout=0.1&statement_cache_size=0", ""])
async def test_a_commit_does_not_wait_for_a_row_that_somebody_else_holds(postgres_url: str, options: str) -> None:
    store = await opened(postgres_url, options)
    worker = await live_worker(store)
    pen = await start_owned(store, worker)
    change = pen.change(1)
    async with connection(postgres_url) as raw:
        async with raw.transaction():
            await raw.execute(HOLD, pen.run_id)
            for _ in range(3):
                assert await store.commit(worker.worker_id, [change]) == {0: Verdict.BUSY}
        assert await store.commit(worker.worker_id, [change]) == {}
    assert (await store.get_run(pen.run_id)).head == 1
    await store.close()


async def test_a_statement_that_is_cut_may_have_been_written(postgres_url: str) -> None:
    store = await opened(postgres_url, "statement_timeout=0.1&lock_timeout=20")
    worker = await live_worker(store)
    pen = await start_owned(store, worker)
    change = pen.change(1)
    async with connection(postgres_url) as raw:
        async with raw.transaction():
            await raw.execute(HOLD, pen.run_id)
            with pytest.raises(OutcomeUnknown, match="the statement was cancelled"):
                await store.commit(worker.worker_id, [change])
        assert await store.commit(worker.worker_id, [change]) == {}
    await store.close()


@pytest.mark.parametrize("options", ["lock_timeout=0.1", "lock_timeout=0.1&statement_cache_size=0"])
async def test_a_verb_of_a_client_is_refused_when_a_row_stays_locked(postgres_url: str, options: str) -> None:
    store = await opened(postgres_url, options)
    run, _ = await store.start(new_run("held"))
    async with connection(postgres_url) as raw, raw.transaction():
        await raw.execute(HOLD, run.run_id)
        with pytest.raises(StoreUnavailable, match="something holds a transaction open"):
            await store.send(run.run_id, Message(message_id="m", kind=MessageKind.SIGNAL))
    assert await store.send(run.run_id, Message(message_id="m", kind=MessageKind.SIGNAL))
    await store.close()


async def test_each_connection_has_the_timeouts_of_the_url(postgres_url: str) -> None:
    store = await opened(postgres_url, "statement_timeout=7&lock_timeout=0.15")
    session = await store._commit_session.connect()
    assert await session.fetchval("SHOW statement_timeout") == "7s"
    assert await session.fetchval("SHOW lock_timeout") == "150ms"
    await store.close()


async def test_one_run_that_is_locked_does_not_lose_the_others(postgres_url: str) -> None:
    store = await opened(postgres_url, "lock_timeout=0.1")
    worker = await live_worker(store)
    held, free = await start_owned(store, worker), await start_owned(store, worker)
    async with connection(postgres_url) as raw, raw.transaction():
        await raw.execute(HOLD, held.run_id)
        answers = await store.commit(worker.worker_id, [held.change(1), free.change(1)])
        assert answers == {0: Verdict.BUSY}
        start = new_run()
        assert await store.commit(worker.worker_id, [Pen(start.run_id, 1).change(1, start=start)]) == {}
    assert (await store.get_run(free.run_id)).head == 1
    await store.close()


begun, gate = asyncio.Event(), asyncio.Event()


@activity
async def greet(name: str) -> str:
    begun.set()
    await gate.wait()
    return f"Hello, {name}"


@workflow
async def greeting(name: str) -> str:
    return await greet(name)


async def test_a_run_goes_on_when_a_table_is_free_again(postgres_url: str) -> None:
    """As after a careless ALTER TABLE or a forgotten psql: commits fail for a while and are tried again."""
    url = f"{postgres_url}?lock_timeout=0.1"
    async with connect(url) as client, client.worker(workflows=[greeting], activities=[greet], grace=1.0):
        handle = await client.start(greeting, "Ada")
        await begun.wait()
        async with connection(postgres_url) as raw, connection(postgres_url) as watcher:
            async with raw.transaction():
                await raw.execute("LOCK TABLE batuta.journal IN ACCESS EXCLUSIVE MODE")
                with pytest.raises(StoreUnavailable, match="holds a transaction open"):
                    await client.start(greeting, "Bob")
                gate.set()
                await until_blocked(watcher)
                await watcher.execute("SELECT pg_sleep(0.3)")  # several times the timeout
        assert await handle.result(PATIENCE) == "Hello, Ada"
