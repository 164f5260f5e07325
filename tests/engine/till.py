"""Transactional activities that do the same on both databases, and a table that they write to."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from typing import Any

import asyncpg

from batuta import Batuta, Retry, Signal, Workflow, activity, job, transaction, workflow
from batuta.clock import SystemClock
from batuta.connect import store_for
from batuta.engine.backend.native import NativeBackend
from batuta.journal.store import Store

PATIENCE = 30.0
QUICK = Retry(attempts=3, first=0.01, jitter=0)
go = Signal("go", int)


@job
async def mailed(what: str) -> str:
    return f"mailed {what}"


@workflow
async def waits() -> int:
    return await go.wait()


class Till:
    """A database with a table of orders."""

    def __init__(self, kind: str, url: str, client: Batuta, store: Store) -> None:
        self.kind, self.url, self.client, self.store = kind, url, client, store

    def activity(
        self,
        name: str,
        body: Callable[[int], Any],
        *,
        kind: Any = activity,
        waits_aside: bool = False,
        gives_it: bool = False,
        **options: Any,
    ) -> Any:
        """Writes the number it is given, does `body`, returns the next number (or what `body` gives)."""

        def plain(number: int) -> int:
            transaction().connection.execute("INSERT INTO orders VALUES (?)", (number,))
            found: int = body(number)
            return found if gives_it else number + 1

        async def awaited(number: int) -> int:
            await transaction().connection.execute("INSERT INTO orders VALUES ($1)", number)
            found: int = await asyncio.to_thread(body, number) if waits_aside else body(number)
            return found if gives_it else number + 1

        fn = plain if self.kind == "sqlite" else awaited
        return kind(name=name, transactional=True, retry=QUICK, **options)(fn)

    def statement(self, name: str, sql: str) -> Any:
        """Writes the number it is given, and executes a statement."""

        def plain(number: int) -> int:
            transaction().connection.execute("INSERT INTO orders VALUES (?)", (number,))
            transaction().connection.execute(sql).fetchall()
            return number

        async def awaited(number: int) -> int:
            await transaction().connection.execute("INSERT INTO orders VALUES ($1)", number)
            await transaction().connection.execute(sql)
            return number

        fn = plain if self.kind == "sqlite" else awaited
        made: Any = activity(name=name, transactional=True, retry=QUICK)(fn)
        return made

    def worker(self, *things: Any, jobs: Any = (), **settings: Any) -> Any:
        workflows = [thing for thing in things if isinstance(thing, Workflow)]
        activities = [thing for thing in things if not isinstance(thing, Workflow)]
        chosen = {"grace": 5.0} | settings
        return self.client.worker(workflows=workflows, activities=activities, jobs=jobs, **chosen)

    async def rows(self) -> list[int]:
        return [row[0] for row in await self._ask("SELECT id FROM orders ORDER BY id")]

    async def make(self) -> None:
        await self._ask("CREATE TABLE orders (id INTEGER)")

    async def _ask(self, query: str) -> list[Any]:
        if self.kind == "sqlite":
            with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=PATIENCE)) as file:
                return file.execute(query).fetchall()
        connection = await asyncpg.connect(self.url)
        rows: list[Any] = await connection.fetch(query)
        await connection.close()
        return rows


@asynccontextmanager
async def till_on(kind: str, url: str) -> AsyncIterator[Till]:
    store = store_for(url)
    await store.migrate()
    async with Batuta(NativeBackend(store, SystemClock()), store.open, store.close) as client:
        made = Till(kind, url, client, store)
        await made.make()
        yield made
