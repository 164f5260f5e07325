"""Connections that are lent to activities: whatever their code does first, its transaction has begun before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from batuta.errors import TransactionEnded
from batuta.journal.records import Verdict
from batuta.journal.store import Transaction
from batuta.stores.postgres import PostgresStore
from batuta.testing.conformance.kit import Pen, live_worker, start_owned
from tests.stores.postgres.raw import connection, until_blocked

INSERT = "INSERT INTO orders VALUES ($1)"


@pytest.fixture
async def raw(store: PostgresStore, postgres_url: str) -> AsyncIterator[Any]:
    """A connection of the test's own."""
    async with connection(postgres_url) as made:
        await made.execute("CREATE TABLE orders (id INTEGER)")
        yield made


@asynccontextmanager
async def begun(store: PostgresStore, *, used: bool = True) -> AsyncIterator[tuple[Transaction, Any]]:
    """A transaction, and its connection; `used`: on which the same statement was executed before."""
    if used:
        before = store.transact(10.0)
        await before.begin()
        lent: Any = before.connection
        await lent.execute(INSERT, 0)
        await before.rollback()
    transaction = store.transact(10.0)
    await transaction.begin()
    yield transaction, transaction.connection
    await transaction.rollback()


async def _many(lent: Any) -> None:
    await lent.executemany(INSERT, [(1,)])


async def _prepared(lent: Any) -> None:
    statement = await lent.prepare(INSERT)
    await statement.fetch(1)


async def _copied(lent: Any) -> None:
    await lent.copy_records_to_table("orders", records=[(1,)])


async def _savepoint(lent: Any) -> None:
    async with lent.transaction():
        await lent.execute(INSERT, 1)


async def _cursor(lent: Any) -> None:
    async for _ in lent.cursor("INSERT INTO orders VALUES ($1) RETURNING id", 1):
        pass


WAYS: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "a statement": lambda lent: lent.execute(INSERT, 1),
    "a text": lambda lent: lent.execute("INSERT INTO orders VALUES (1)"),
    "texts": lambda lent: lent.execute("SELECT 1; INSERT INTO orders VALUES (1)"),
    "rows": lambda lent: lent.fetch("INSERT INTO orders VALUES ($1) RETURNING id", 1),
    "a row": lambda lent: lent.fetchrow("INSERT INTO orders VALUES ($1) RETURNING id", 1),
    "a value": lambda lent: lent.fetchval("INSERT INTO orders VALUES ($1) RETURNING id", 1),
    "many": _many,
    "prepared": _prepared,
    "copied": _copied,
    "a savepoint": _savepoint,
    "a cursor": _cursor,
}


@pytest.mark.parametrize("used", [False, True], ids=["new", "used"])
@pytest.mark.parametrize("way", WAYS)
async def test_the_first_statement_of_any_kind_is_in_the_transaction(
    store: PostgresStore, raw: Any, way: str, used: bool
) -> None:
    worker = await live_worker(store)
    pen = await start_owned(store, worker)
    async with begun(store, used=used) as (transaction, lent):
        assert lent.is_in_transaction()
        await WAYS[way](lent)
        assert lent.is_in_transaction()
        assert await raw.fetchval("SELECT count(*) FROM orders") == 0
        await transaction.rollback()
    assert await raw.fetchval("SELECT count(*) FROM orders") == 0
    async with begun(store) as (transaction, lent):
        await WAYS[way](lent)
        assert await transaction.commit(worker.worker_id, pen.change(), lambda _: None) == []
    assert await raw.fetch("SELECT id FROM orders") == [(1,)]
    assert (await store.get_run(pen.run_id)).head == 1


async def test_a_cursor_that_comes_first_gives_all_its_rows(store: PostgresStore, raw: Any) -> None:
    numbers = "SELECT number FROM generate_series(1, $1::integer) number"
    for _ in range(2):  # prepared the second time
        async with begun(store) as (_, lent):
            assert [row[0] async for row in lent.cursor(numbers, 100, prefetch=7)] == list(range(1, 101))


async def test_values_of_the_wrong_type_are_refused_and_the_code_may_go_on(store: PostgresStore, raw: Any) -> None:
    async with begun(store) as (_, lent):
        with pytest.raises(asyncpg.DataError):
            await lent.execute(INSERT, "one")
        await lent.execute(INSERT, 1)
        assert await raw.fetchval("SELECT count(*) FROM orders") == 0
        assert await lent.fetchval("SELECT count(*) FROM orders") == 1


async def test_a_first_statement_that_is_cancelled_was_in_the_transaction(
    store: PostgresStore, raw: Any, postgres_url: str
) -> None:
    await raw.execute("CREATE TABLE locked (id INTEGER)")
    for _ in range(2):  # prepared the second time
        async with connection(postgres_url) as other, other.transaction(), begun(store) as (_, lent):
            await other.execute("LOCK TABLE locked")
            waits = asyncio.ensure_future(lent.execute("INSERT INTO locked VALUES ($1)", 1))
            await until_blocked(raw)
            waits.cancel()
            await asyncio.wait([waits])
            with pytest.raises(asyncpg.InFailedSQLTransactionError):
                await lent.execute(INSERT, 1)
    assert await raw.fetchval("SELECT count(*) FROM orders") == 0


async def test_after_a_first_statement_that_fails_nothing_can_be_written(store: PostgresStore, raw: Any) -> None:
    await raw.execute("ALTER TABLE orders ADD CHECK (id < 10)")
    async with begun(store) as (_, lent):
        with pytest.raises(asyncpg.CheckViolationError):
            await lent.execute(INSERT, 10)
        with pytest.raises(asyncpg.InFailedSQLTransactionError):
            await lent.execute(INSERT, 1)
    assert await raw.fetchval("SELECT count(*) FROM orders") == 0


async def test_an_empty_transaction_commits_unless_its_worker_has_lost_the_run(store: PostgresStore, raw: Any) -> None:
    worker = await live_worker(store)
    pen = await start_owned(store, worker)
    async with begun(store, used=False) as (transaction, _):
        assert await transaction.commit(worker.worker_id, pen.change(), lambda _: None) == []
    stale = Pen(pen.run_id, 7, 1)
    for _ in range(2):
        async with begun(store) as (transaction, lent):
            await lent.execute(INSERT, 1)
            assert await transaction.commit(worker.worker_id, stale.change(), lambda _: None) is Verdict.REFUSED
    assert await raw.fetchval("SELECT count(*) FROM orders") == 0
    assert (await store.get_run(pen.run_id)).head == 1


@pytest.mark.parametrize("text", ["COMMIT", "COMMIT AND CHAIN", "ROLLBACK; BEGIN"])
async def test_code_that_has_ended_it_by_its_first_statement_is_told(store: PostgresStore, raw: Any, text: str) -> None:
    worker = await live_worker(store)
    pen = await start_owned(store, worker)
    async with begun(store) as (transaction, lent):
        await lent.execute(text)
        with pytest.raises(TransactionEnded):
            await transaction.commit(worker.worker_id, pen.change(), lambda _: None)
    assert (await store.get_run(pen.run_id)).head == 0


async def test_statements_at_the_same_time_do_not_slip_past_its_begin(store: PostgresStore, raw: Any) -> None:
    async with begun(store) as (_, lent):
        both = await asyncio.gather(lent.execute(INSERT, 1), lent.execute(INSERT, 2), return_exceptions=True)
        assert [isinstance(one, asyncpg.InterfaceError) for one in both] == [False, True]
    async with begun(store) as (_, lent):
        both = await asyncio.gather(lent.execute("SELECT 1"), lent.execute(INSERT, 2), return_exceptions=True)
        assert any(isinstance(one, asyncpg.InterfaceError) for one in both)
    assert await raw.fetchval("SELECT count(*) FROM orders") == 0


@pytest.mark.parametrize("committed", [False, True])
async def test_what_was_made_with_a_connection_is_of_no_use_in_the_next_transaction(
    store: PostgresStore, raw: Any, committed: bool
) -> None:
    worker = await live_worker(store)
    pen = await start_owned(store, worker)
    async with begun(store) as (transaction, lent):
        statement, savepoint = await lent.prepare(INSERT), lent.transaction()
        await statement.fetch(1)
        if committed:
            assert await transaction.commit(worker.worker_id, pen.change(), lambda _: None) == []
    written = await raw.fetchval("SELECT count(*) FROM orders")
    async with begun(store, used=False) as (transaction, lent):
        for use in (lambda: statement.fetch(2), savepoint.start):
            with pytest.raises(asyncpg.InterfaceError):
                await use()
        assert await lent.fetchval("SELECT count(*) FROM orders") == written
