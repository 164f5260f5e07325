"""The tables of the application: the same statements on PostgreSQL and SQLite.

Statements have `?` for values. SQLite has a file of its own, beside the one of Batuta: one writer does not wait for the
other.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

import asyncpg

from pixdict.errors import ConstraintViolation, DatabaseTimeout, InvalidArgument

_TIMEOUT = 10.0
"""Seconds for a statement, and for a connection."""
_MARK = re.compile(r"\?")

Rows = list[dict[str, Any]]


class Database(Protocol):
    """Where the tables are. Methods raise DatabaseTimeout, ConstraintViolation, InvalidArgument."""

    partitions: bool
    """Whether tables have partitions by time."""

    async def run(self, statement: str, *values: Any) -> Rows:
        """Execute one statement, durably, and give its rows."""
        ...

    async def script(self, statements: Sequence[str]) -> None:
        """Execute them in one transaction, which others that do the same wait for."""
        ...

    async def close(self) -> None: ...


async def open_database(url: str) -> Database:
    """`sqlite:///path.db`, or `postgresql://...`. Raises InvalidArgument, DatabaseTimeout."""
    if url.startswith("sqlite:///"):
        return SqliteDatabase(Path(url.removeprefix("sqlite:///")))
    if url.startswith(("postgresql://", "postgres://")):
        return await PostgresDatabase.connect(url)
    raise InvalidArgument(f"database {url.partition(':')[0]!r}: give sqlite:///PATH or postgresql://...")


class SqliteDatabase:
    """One connection in one thread."""

    partitions = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pixdict-sqlite")

    async def run(self, statement: str, *values: Any) -> Rows:
        found: Rows = await self._in_thread(partial(self._run, statement, [_as_text(value) for value in values]))
        return found

    async def script(self, statements: Sequence[str]) -> None:
        await self._in_thread(partial(self._script, statements))

    async def close(self) -> None:
        if self._connection is not None:
            await self._in_thread(self._connection.close)
        self._thread.shutdown()

    async def _in_thread(self, act: Any) -> Any:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, act)
        except sqlite3.IntegrityError as error:
            raise ConstraintViolation(str(error)) from error
        except (sqlite3.InterfaceError, sqlite3.ProgrammingError, OverflowError) as error:
            raise InvalidArgument(f"SQLite: {error}") from error
        except sqlite3.Error as error:
            raise DatabaseTimeout(f"SQLite {self._path}: {error}") from error

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            found = sqlite3.connect(self._path, timeout=_TIMEOUT, isolation_level=None)
            found.row_factory = sqlite3.Row
            found.execute("PRAGMA journal_mode = WAL")
            found.execute("PRAGMA synchronous = NORMAL")
            self._connection = found
        return self._connection

    def _run(self, statement: str, values: list[Any]) -> Rows:
        return [dict(row) for row in self._connected().execute(statement, values)]

    def _script(self, statements: Sequence[str]) -> None:
        connection = self._connected()
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in statements:
                connection.execute(statement)
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")


class PostgresDatabase:
    """A pool of connections."""

    partitions = True

    def __init__(self, pool: asyncpg.Pool[Any]) -> None:
        self._pool = pool

    @classmethod
    async def connect(cls, url: str) -> Self:
        """Raises DatabaseTimeout."""
        try:
            pool = await asyncpg.create_pool(url, min_size=0, max_size=4, timeout=_TIMEOUT, command_timeout=_TIMEOUT)
        except (OSError, TimeoutError, asyncpg.PostgresError) as error:
            raise DatabaseTimeout(f"PostgreSQL: {error}") from error
        return cls(pool)

    async def run(self, statement: str, *values: Any) -> Rows:
        numbers = iter(range(1, len(values) + 1))
        numbered = _MARK.sub(lambda _: f"${next(numbers)}", statement)
        return [dict(row) for row in await self._guarded(self._pool.fetch(numbered, *values))]

    async def script(self, statements: Sequence[str]) -> None:
        async def work() -> None:
            async with self._pool.acquire() as connection, connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock(hashtext('pixdict'))")
                for statement in statements:
                    await connection.execute(statement)

        await self._guarded(work())

    async def close(self) -> None:
        await self._pool.close()

    @staticmethod
    async def _guarded(work: Any) -> Any:
        try:
            return await work
        except asyncpg.IntegrityConstraintViolationError as error:
            raise ConstraintViolation(str(error)) from error
        except asyncpg.DataError as error:
            raise InvalidArgument(f"PostgreSQL: {error}") from error
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise DatabaseTimeout(f"PostgreSQL: {str(error) or type(error).__name__}") from error


def _as_text(value: Any) -> Any:
    """Times are texts of one length in SQLite, so that they sort."""
    return value.isoformat(timespec="microseconds") if isinstance(value, datetime) else value
