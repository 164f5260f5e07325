"""The tables of the application: the same statements on PostgreSQL and SQLite.

Statements have `?` for values. With `client`, the tables lie in the database of that client's store, and a transaction
may hold messages of the bus, too. Without it SQLite has a file of its own: one writer does not wait for the other.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import asyncpg

from batuta import Batuta
from batuta.errors import StoreUnavailable
from pixdict.errors import ConstraintViolation, DatabaseTimeout, InvalidArgument
from pixdict.private_files import make_private

_TIMEOUT = 10.0
"""Seconds for a statement, and for a connection."""
_MARK = re.compile(r"\?")

Rows = list[dict[str, Any]]


class DatabaseTransaction:
    """A transaction that is open. `connection`: for `transaction=` of Batuta's client; None: another database."""

    def __init__(self, run: Callable[..., Awaitable[Rows]], connection: Any = None) -> None:
        self.run, self.connection = run, connection


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

    def transaction(self) -> AbstractAsyncContextManager[DatabaseTransaction]:
        """Statements that are durable together, at the end of the block; none of them if it raises."""
        ...

    async def close(self) -> None: ...


class SmallTables:
    """Tables that are made before the first statement on them."""

    schema: ClassVar[Sequence[str]]
    """Statements that make them. `{time}` stands for the type of a time."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._is_ready = False

    async def prepare(self) -> None:
        """Create what is missing."""
        if not self._is_ready:
            time = "TIMESTAMPTZ" if self._database.partitions else "TEXT"
            await self._database.script([one.format(time=time) for one in self.schema])
            self._is_ready = True

    async def _run(self, statement: str, *values: Any) -> Rows:
        await self.prepare()
        return await self._database.run(statement, *values)


async def open_database(url: str, client: Batuta | None = None) -> Database:
    """`sqlite:///path.db`, or `postgresql://...`. `client`: the database is that of its store, and the client is open.
    Raises InvalidArgument, DatabaseTimeout."""
    if url.startswith("sqlite:///"):
        path = Path(url.removeprefix("sqlite:///"))
        return SqliteDatabase(path) if client is None else SharedSqliteDatabase(path, client)
    if url.startswith(("postgresql://", "postgres://")):
        return await PostgresDatabase.connect(url, shared=client is not None)
    raise InvalidArgument(f"database {url.partition(':')[0]!r}: give sqlite:///PATH or postgresql://...")


class SqliteDatabase:
    """One connection in one thread."""

    partitions = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._turn = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pixdict-sqlite")

    async def run(self, statement: str, *values: Any) -> Rows:
        async with self._turn:
            return await self.execute(statement, *values)

    async def execute(self, statement: str, *values: Any) -> Rows:
        """One statement, in the transaction that is open."""
        found: Rows = await self._in_thread(partial(self._run, statement, [_as_text(value) for value in values]))
        return found

    async def script(self, statements: Sequence[str]) -> None:
        await self._in_thread(partial(self._script, statements))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[DatabaseTransaction]:
        async with self._turn:
            await self.execute("BEGIN IMMEDIATE")
            try:
                yield DatabaseTransaction(self.execute)
            except BaseException:
                await self.execute("ROLLBACK")
                raise
            await self.execute("COMMIT")

    async def close(self) -> None:
        if self._connection is not None:
            await self._in_thread(self._connection.close)
        self._thread.shutdown()

    async def _in_thread(self, act: Any) -> Any:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, act)
        except (sqlite3.Error, OverflowError) as error:
            raise _of_sqlite(error, self._path) from error

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            make_private(self._path)
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


class SharedSqliteDatabase:
    """The file of a client's store. Its own writers and ours take turns under one lock, see `Batuta.transaction`."""

    partitions = False

    def __init__(self, path: Path, client: Batuta) -> None:
        self._path, self._client = path, client
        self._connection = sqlite3.connect(path, timeout=_TIMEOUT, isolation_level=None)
        self._connection.row_factory = sqlite3.Row
        self._turn = asyncio.Lock()

    async def run(self, statement: str, *values: Any) -> Rows:
        if statement.startswith("SELECT"):
            return await self._run(statement, *values)
        async with self.transaction() as transaction:
            return await transaction.run(statement, *values)

    async def script(self, statements: Sequence[str]) -> None:
        async with self.transaction() as transaction:
            for statement in statements:
                await transaction.run(statement)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[DatabaseTransaction]:
        async with self._turn:
            try:
                async with self._client.transaction(self._connection):
                    yield DatabaseTransaction(self._run, self._connection)
            except StoreUnavailable as error:
                raise DatabaseTimeout(f"SQLite {self._path}: {error}") from error
            except sqlite3.Error as error:
                raise _of_sqlite(error, self._path) from error

    async def close(self) -> None:
        self._connection.close()

    async def _run(self, statement: str, *values: Any) -> Rows:
        try:
            return [dict(row) for row in self._connection.execute(statement, [_as_text(value) for value in values])]
        except (sqlite3.Error, OverflowError) as error:
            raise _of_sqlite(error, self._path) from error


def _of_sqlite(error: Exception, path: Path) -> Exception:
    if isinstance(error, sqlite3.IntegrityError):
        return ConstraintViolation(str(error))
    if isinstance(error, sqlite3.InterfaceError | sqlite3.ProgrammingError | OverflowError):
        return InvalidArgument(f"SQLite: {error}")
    return DatabaseTimeout(f"SQLite {path}: {error}")


class PostgresDatabase:
    """A pool of connections."""

    partitions = True

    def __init__(self, pool: asyncpg.Pool[Any], *, shared: bool = False) -> None:
        self._pool, self._shared = pool, shared

    @classmethod
    async def connect(cls, url: str, *, shared: bool = False) -> Self:
        """Raises DatabaseTimeout."""
        try:
            pool = await asyncpg.create_pool(
                url, min_size=0, max_size=8 if shared else 4, timeout=_TIMEOUT, command_timeout=_TIMEOUT
            )
        except (OSError, TimeoutError, asyncpg.PostgresError) as error:
            raise DatabaseTimeout(f"PostgreSQL: {error}") from error
        return cls(pool, shared=shared)

    async def run(self, statement: str, *values: Any) -> Rows:
        found: Rows = await self._guarded(_fetch(self._pool, statement, *values))
        return found

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[DatabaseTransaction]:
        try:
            async with self._pool.acquire() as connection, connection.transaction():
                yield DatabaseTransaction(partial(_fetch, connection), connection if self._shared else None)
        except asyncpg.DataError as error:
            raise InvalidArgument(f"PostgreSQL: {error}") from error
        except asyncpg.IntegrityConstraintViolationError as error:
            raise ConstraintViolation(str(error)) from error
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise DatabaseTimeout(f"PostgreSQL: {str(error) or type(error).__name__}") from error

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


async def _fetch(executor: Any, statement: str, *values: Any) -> Rows:
    return [dict(row) for row in await executor.fetch(_numbered(statement), *values)]


@cache
def _numbered(statement: str) -> str:
    """PostgreSQL numbers its values."""
    numbers = count(1)
    return _MARK.sub(lambda _: f"${next(numbers)}", statement)


def _as_text(value: Any) -> Any:
    """Times are texts of one length in SQLite, so that they sort."""
    return value.isoformat(timespec="microseconds") if isinstance(value, datetime) else value
