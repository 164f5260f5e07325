"""Signals in the caller's own transaction: on PostgreSQL and SQLite, awaited and blocking."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from batuta import (
    Handle,
    InvalidInput,
    Middleware,
    RunClosed,
    RunState,
    Signal,
    TransactionFailed,
    UnknownRun,
    WrongTransaction,
    connect,
    continue_as_new,
    sync,
    workflow,
)
from batuta.codecs import Encryption, Keys
from tests.engine.arena import until_state
from tests.stores.postgres.callers import ASYNC, BLOCKING

PATIENCE = 30.0
pytestmark = pytest.mark.usefixtures("real_time")
paid = Signal("paid", int)
stop = Signal("stop")


@workflow
async def ledger() -> list[int]:
    amounts: list[int] = []
    paid.handle(amounts.append)
    await stop.wait()
    return amounts


@workflow
async def relay(rounds: int) -> int:
    amount = await paid.wait()
    if rounds:
        continue_as_new(rounds - 1)
    return amount


def worker(client: Any) -> Any:
    return client.worker(workflows=[ledger, relay], grace=1.0)


@pytest.mark.parametrize("driver", ASYNC)
async def test_a_signal_is_delivered_if_and_only_if_the_transaction_commits(postgres_url: str, driver: str) -> None:
    async with connect(postgres_url) as client, worker(client), ASYNC[driver](postgres_url) as caller:
        handle = await client.start(ledger)
        await caller.begin()
        await handle.signal(paid, 1, transaction=caller.given)
        await caller.rollback()
        await caller.begin()
        await handle.signal(paid, 2, message_id="two", transaction=caller.given)
        await handle.signal(paid, 3, message_id="two", transaction=caller.given)
        await caller.commit()
        await handle.signal(stop)
        assert await handle.result(PATIENCE) == [2]
        await caller.begin()
        with pytest.raises(RunClosed, match="completed"):
            await handle.signal(paid, 4, transaction=caller.given)
        await caller.rollback()


@pytest.mark.parametrize("driver", BLOCKING)
def test_so_is_one_of_blocking_code(postgres_url: str, driver: str) -> None:
    def step(coroutine: Any) -> Any:
        try:
            coroutine.send(None)
        except StopIteration as end:
            return end.value
        raise AssertionError("it waits")

    with sync.connect(postgres_url) as client, worker(client):
        context = BLOCKING[driver](postgres_url)
        caller = step(context.__aenter__())
        handle = client.start(ledger)
        handle.signal(paid, 1, transaction=caller.given)
        step(caller.rollback())
        handle.signal(paid, 2, transaction=caller.given)
        handle.signal(stop, transaction=caller.given)
        step(caller.commit())
        assert handle.result(PATIENCE) == [2]
        step(context.__aexit__(None, None, None))


async def test_a_run_that_is_out_of_memory_wakes_up(postgres_url: str) -> None:
    async with connect(postgres_url) as client, ASYNC["asyncpg"](postgres_url) as caller:
        async with client.worker(workflows=[relay], keep_in_memory=0.01, grace=1.0):
            handle = await client.start(relay, 1)
            for amount in (1, 2):
                await until_state(await client.get(handle.id), RunState.WAITING)
                async with caller.given.transaction():
                    await handle.signal(paid, amount, transaction=caller.given)
            assert await handle.result(PATIENCE) == 2


async def test_a_start_with_a_signal(postgres_url: str) -> None:
    async with connect(postgres_url) as client, ASYNC["psycopg"](postgres_url) as caller:
        first = await client.start(ledger, id="l", signal=(paid, 1), transaction=caller.given)
        again = await client.start(ledger, id="l", signal=(paid, 2, "two"), transaction=caller.given)
        await client.start(ledger, id="l", signal=(paid, 2, "two"), if_exists="same", transaction=caller.given)
        assert (first.is_new, again.is_new) == (True, False)
        await caller.commit()
        async with worker(client):
            await first.signal(stop)
            assert await first.result(PATIENCE) == [1, 2]
        with pytest.raises(RunClosed):
            await client.start(ledger, id="l", signal=(paid, 3), transaction=caller.given)


async def test_invalid_signals_are_refused_as_starts_are(postgres_url: str, sqlite_url: str, tmp_path: Path) -> None:
    async with connect(postgres_url) as client, ASYNC["asyncpg"](postgres_url) as caller:
        handle = await client.start(ledger)
        with pytest.raises(WrongTransaction, match="no transaction is open"):
            await handle.signal(paid, 1, transaction=caller.given)
        with pytest.raises(WrongTransaction, match="cannot be a"):
            await handle.signal(paid, 1, transaction=object())
        with pytest.raises(InvalidInput, match="paid"):
            await handle.signal(paid, "much", transaction=caller.given)  # type: ignore[misc]  # the point
        await caller.begin()
        await handle.terminate()
        await handle.delete()
        with pytest.raises(UnknownRun, match=handle.id):
            await handle.signal(paid, 1, transaction=caller.given)
        with pytest.raises(Exception, match="division"):
            await caller.execute("SELECT 1 / 0")
        with pytest.raises(TransactionFailed, match="nothing was started or sent"):
            await handle.signal(paid, 1, transaction=caller.given)
        await caller.rollback()
    async with connect(sqlite_url) as client, connect("memory://") as other:
        with closing(sqlite3.connect(tmp_path / "another.db")) as connection:
            with pytest.raises(WrongTransaction, match=r"another\.db"):
                await (await client.start(ledger)).signal(paid, 1, transaction=connection)
            with pytest.raises(WrongTransaction):
                await (await other.start(ledger)).signal(paid, 1, transaction=connection)


async def test_middleware_is_around_it(postgres_url: str) -> None:
    class Names(Middleware):
        async def send(self, message: Any, proceed: Any) -> None:
            message.headers["sent-by"] = "me"
            await proceed()

    async with connect(postgres_url, middleware=[Names()]) as client, ASYNC["asyncpg"](postgres_url) as caller:
        async with worker(client):
            handle: Handle[Any] = await client.start(ledger)
            async with caller.given.transaction():
                await handle.signal(paid, 5, transaction=caller.given)
            await handle.signal(stop)
            assert await handle.result(PATIENCE) == [5]
            headers = [line.body.headers for line in await handle.journal() if line.body.name == "paid"]
            assert b"sent-by" in bytes(headers[0])  # type: ignore[arg-type]  # it was given some


@pytest.mark.parametrize("codec", [None, Encryption(Keys.new("k1"))])
async def test_on_sqlite_too(sqlite_url: str, tmp_path: Path, codec: Any) -> None:
    async with connect(sqlite_url, codec=codec) as client, worker(client):
        with closing(sqlite3.connect(tmp_path / "batuta.db")) as connection:
            handle = await client.start(ledger)
            try:
                async with client.transaction(connection):
                    await handle.signal(paid, 1, transaction=connection)
                    raise LookupError
            except LookupError:
                pass
            async with client.transaction(connection):
                connection.execute("CREATE TABLE payments (amount INTEGER)")
                await handle.signal(paid, 2, transaction=connection)
                started = await client.start(ledger, id="l", signal=(paid, 7), transaction=connection)
            await asyncio.gather(handle.signal(stop), started.signal(stop))
            assert await handle.result(PATIENCE) == [2]
            assert await started.result(PATIENCE) == [7]
            async with client.transaction(connection):
                with pytest.raises(RunClosed):
                    await handle.signal(paid, 3, transaction=connection)


def test_on_sqlite_for_blocking_code(sqlite_url: str, tmp_path: Path) -> None:
    with sync.connect(sqlite_url) as client, worker(client):
        with closing(sqlite3.connect(tmp_path / "batuta.db")) as connection:
            handle = client.start(ledger)
            with client.transaction(connection):
                handle.signal(paid, 2, transaction=connection)
                handle.signal(stop, transaction=connection)
            assert handle.result(PATIENCE) == [2]
