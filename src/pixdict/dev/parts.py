"""Parts of `pixdict dev` that can be taken away while it runs."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path
from typing import Any, Self

from pixdict.connect.database import Database, DatabaseTransaction, Rows
from pixdict.dev.wire import Wire
from pixdict.errors import DatabaseTimeout
from pixdict.private_files import make_private


class Stoppable:
    """A worker that can be stopped and begun again."""

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        self._make = make
        self._running: AbstractAsyncContextManager[Any] | None = None

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def begin(self) -> None:
        """Unless it runs."""
        if self._running is None:
            made = self._make()
            await made.__aenter__()
            self._running = made

    async def stop(self) -> None:
        """Unless it is stopped."""
        running, self._running = self._running, None
        if running is not None:
            await running.__aexit__(None, None, None)


class SwitchedDatabase:
    """The tables of core and connect, which can be switched off: SQLite has no connection that could be cut."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.partitions = database.partitions
        self.is_away = False

    def _check(self) -> None:
        if self.is_away:
            raise DatabaseTimeout("the primary database was switched off")

    async def run(self, statement: str, *values: Any) -> Rows:
        self._check()
        return await self._database.run(statement, *values)

    async def script(self, statements: Sequence[str]) -> None:
        self._check()
        await self._database.script(statements)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[DatabaseTransaction]:
        self._check()
        async with self._database.transaction() as transaction:
            yield transaction
            self._check()

    async def close(self) -> None:
        await self._database.close()


class Primary:
    """The primary database: a wire to PostgreSQL, or the switch in front of SQLite."""

    def __init__(self, wire: Wire | None, switch: SwitchedDatabase) -> None:
        self._wire, self._switch = wire, switch
        self.how = (
            "the tables are switched off by a failpoint: SQLite has no connection to cut"
            if wire is None
            else "the connections of all parts to PostgreSQL are cut"
        )

    async def go(self) -> None:
        """Away."""
        if self._wire is None:
            self._switch.is_away = True
        else:
            await self._wire.cut()

    async def come_back(self) -> None:
        self._switch.is_away = False
        if self._wire is not None:
            await self._wire.mend()


async def copy_file(source: Path, target: Path) -> None:
    """A replica of an SQLite file, as it is now."""

    def copy() -> None:
        make_private(target)
        with closing(sqlite3.connect(source, timeout=10)) as one, closing(sqlite3.connect(target, timeout=10)) as two:
            one.backup(two)

    await asyncio.to_thread(copy)
