"""Exactly-once activities: what they write, their result and what they send out commit together, or not at all."""

# covers B-12
from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from typing import Any

import asyncpg
import pytest

from batuta import (
    ActivityError,
    ActivityFailed,
    Batuta,
    InvalidInput,
    Retry,
    RunFailed,
    Signal,
    UnknownRun,
    activity,
    connect,
    job,
    transaction,
    workflow,
)

PATIENCE = 30.0
QUICK = Retry(attempts=3, first=0.01, jitter=0)
pytestmark = pytest.mark.usefixtures("real_time")
go = Signal("go", int)
failures: list[int] = []


@job
async def mailed(what: str) -> str:
    return f"mailed {what}"


@workflow
async def waits() -> int:
    return await go.get()


class Shop:
    """The same activities for both databases."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind, self.url = kind, url
        self.client: Batuta

        def insert(number: int) -> Any:
            if kind == "sqlite":
                transaction().connection.execute("INSERT INTO orders VALUES (?)", (number,))
                return None
            return transaction().connection.execute("INSERT INTO orders VALUES ($1)", number)

        def both(body: Callable[[int], None], name: str, **options: Any) -> Any:
            """A plain function on SQLite, an async one on PostgreSQL."""

            def plain(number: int) -> int:
                insert(number)
                body(number)
                return number + 1

            async def awaited(number: int) -> int:
                await insert(number)
                body(number)
                return number + 1

            fn = plain if kind == "sqlite" else awaited
            return activity(name=name, transactional=True, retry=QUICK, **options)(fn)

        self.book = both(lambda number: None, "book")
        self.fails_first = both(_fails_first, "fails_first")
        self.fails = both(_fails, "fails")
        self.sends = both(_sends, "sends")
        self.sends_to_nobody = both(_sends_to_nobody, "sends_to_nobody")
        self.waits_for_ever = both(lambda number: None, "x")

    def activities(self) -> list[Any]:
        return [self.book, self.fails_first, self.fails, self.sends, self.sends_to_nobody]

    async def rows(self) -> list[int]:
        if self.kind == "sqlite":
            with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"))) as connection:
                return [row[0] for row in connection.execute("SELECT id FROM orders ORDER BY id")]
        connection = await asyncpg.connect(self.url)
        rows = await connection.fetch("SELECT id FROM orders ORDER BY id")
        await connection.close()
        return [row["id"] for row in rows]

    async def make(self) -> None:
        if self.kind == "sqlite":
            with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"))) as connection:
                connection.execute("CREATE TABLE orders (id INTEGER)")
        else:
            connection = await asyncpg.connect(self.url)
            await connection.execute("CREATE TABLE orders (id INTEGER)")
            await connection.close()


def _fails_first(number: int) -> None:
    failures.append(number)
    if len(failures) < 3:
        raise LookupError("not yet")


def _fails(number: int) -> None:
    raise LookupError("never")


def _sends(number: int) -> None:
    transaction().enqueue(mailed, f"{number}", id=f"mail-{number}")
    transaction().start(waits, id=f"waits-{number}", signal=(go, number))
    transaction().signal("listener", go, number)


def _sends_to_nobody(number: int) -> None:
    transaction().enqueue(mailed, "x", id="never")
    transaction().signal("nobody", go, 1)


@pytest.fixture(params=["sqlite", "postgres"])
async def shop(request: pytest.FixtureRequest) -> AsyncIterator[Shop]:
    failures.clear()
    made = Shop(request.param, request.getfixturevalue(f"{request.param}_url"))
    async with connect(made.url) as client:
        await made.make()
        made.client = client
        yield made


@workflow
async def in_turn(names: list[str]) -> list[int]:
    from batuta import call

    return [await call(name, number, result=int) for number, name in enumerate(names)]


@workflow
async def together(count: int) -> list[int]:
    from batuta import call

    return list(await asyncio.gather(*(call("book", number, result=int) for number in range(count))))


@workflow
async def tries(name: str) -> str:
    from batuta import call

    try:
        await call(name, 1, result=int)
    except (ActivityError, LookupError, UnknownRun) as error:
        return type(error).__name__
    return "done"


def worker(shop: Shop) -> Any:
    return shop.client.worker(
        workflows=[in_turn, together, tries, waits], activities=shop.activities(), jobs=[mailed], grace=1.0
    )


async def test_what_it_writes_is_there_with_its_result(shop: Shop) -> None:
    async with worker(shop):
        handle = await shop.client.start(in_turn, ["book", "book", "book"])
        assert await handle.result(PATIENCE) == [1, 2, 3]
        assert await shop.rows() == [0, 1, 2]


async def test_many_at_once_in_one_run(shop: Shop) -> None:
    async with worker(shop):
        handle = await shop.client.start(together, 20)
        assert await handle.result(PATIENCE) == list(range(1, 21))
        assert await shop.rows() == list(range(20))


async def test_what_a_failed_attempt_has_written_is_gone(shop: Shop) -> None:
    async with worker(shop):
        assert await (await shop.client.start(tries, "fails_first")).result(PATIENCE) == "done"
        assert len(failures) == 3
        assert await shop.rows() == [1]
        assert await (await shop.client.start(tries, "fails")).result(PATIENCE) == "LookupError"
        assert await shop.rows() == [1]


async def test_jobs_starts_and_signals_leave_with_it(shop: Shop) -> None:
    async with worker(shop):
        listener = await shop.client.start(waits, id="listener")
        handle = await shop.client.start(in_turn, ["sends"])
        assert await handle.result(PATIENCE) == [1]
        assert await (await shop.client.get("mail-0", mailed)).result(PATIENCE) == "mailed 0"
        assert await (await shop.client.get("waits-0", waits)).result(PATIENCE) == 0
        assert await listener.result(PATIENCE) == 0


async def test_nothing_leaves_and_nothing_is_written_when_one_cannot(shop: Shop) -> None:
    async with worker(shop):
        assert await (await shop.client.start(tries, "sends_to_nobody")).result(PATIENCE) == "UnknownRun"
        assert await shop.rows() == []
        with pytest.raises(UnknownRun):
            await shop.client.get("never")
