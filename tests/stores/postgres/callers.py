"""Connections of callers, of every driver that may start runs in a transaction of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import psycopg
import sqlalchemy
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker


class Caller:
    """What a caller does with its connection; `given` is what it passes on as `transaction=`."""

    def __init__(
        self,
        given: Any,
        execute: Callable[[str], Awaitable[object]],
        begin: Callable[[], Awaitable[object]],
        commit: Callable[[], Awaitable[object]],
        rollback: Callable[[], Awaitable[object]],
    ) -> None:
        self.given = given
        self.execute, self.begin, self.commit, self.rollback = execute, begin, commit, rollback


Calling = Callable[[str], AbstractAsyncContextManager[Caller]]


async def _nothing() -> None:
    """The driver begins a transaction with its first statement."""


def _later(call: Callable[..., object]) -> Callable[..., Awaitable[object]]:
    """A blocking call, for the tests that await it."""

    async def done(*args: object) -> object:
        return call(*args)

    return done


@asynccontextmanager
async def with_asyncpg(url: str) -> AsyncIterator[Caller]:
    connection = await asyncpg.connect(url)
    try:
        yield _asyncpg(connection, connection)
    finally:
        await connection.close()


@asynccontextmanager
async def with_asyncpg_pool(url: str) -> AsyncIterator[Caller]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        yield _asyncpg(connection, connection)


def _asyncpg(given: Any, connection: Any) -> Caller:
    say = [lambda word=word: connection.execute(word) for word in ("BEGIN", "COMMIT", "ROLLBACK")]
    return Caller(given, connection.execute, *say)


@asynccontextmanager
async def with_psycopg(url: str) -> AsyncIterator[Caller]:
    async with await psycopg.AsyncConnection.connect(url, row_factory=psycopg.rows.dict_row) as connection:
        yield Caller(connection, connection.execute, _nothing, connection.commit, connection.rollback)


@asynccontextmanager
async def with_blocking_psycopg(url: str) -> AsyncIterator[Caller]:
    with psycopg.connect(url) as connection:
        verbs = map(_later, (connection.commit, connection.rollback))
        yield Caller(connection, _later(connection.execute), _nothing, *verbs)


@asynccontextmanager
async def with_session(url: str) -> AsyncIterator[Caller]:
    engine = sqlalchemy.create_engine(dialect(url, "psycopg"))
    with Session(engine) as session:
        yield _sqlalchemy(session, session)
    engine.dispose()


@asynccontextmanager
async def with_scoped_session(url: str) -> AsyncIterator[Caller]:
    engine = sqlalchemy.create_engine(dialect(url, "psycopg"))
    sessions = scoped_session(sessionmaker(engine))
    yield _sqlalchemy(sessions, sessions)
    sessions.remove()
    engine.dispose()


@asynccontextmanager
async def with_connection(url: str) -> AsyncIterator[Caller]:
    engine = sqlalchemy.create_engine(dialect(url, "psycopg"))
    with engine.connect() as connection:
        yield _sqlalchemy(connection, connection)
    engine.dispose()


def _sqlalchemy(given: Any, session: Any) -> Caller:
    execute = _later(lambda query: session.execute(sqlalchemy.text(query)))
    return Caller(given, execute, _nothing, _later(session.commit), _later(session.rollback))


def _async_sqlalchemy(session: Any) -> Caller:
    return Caller(
        session,
        lambda query: session.execute(sqlalchemy.text(query)),
        _nothing,
        session.commit,
        session.rollback,
    )


def with_async_session(driver: str) -> Calling:
    @asynccontextmanager
    async def calling(url: str) -> AsyncIterator[Caller]:
        engine = create_async_engine(dialect(url, driver))
        async with AsyncSession(engine) as session:
            yield _async_sqlalchemy(session)
        await engine.dispose()

    return calling


@asynccontextmanager
async def with_async_connection(url: str) -> AsyncIterator[Caller]:
    engine = create_async_engine(dialect(url, "asyncpg"))
    connection: AsyncConnection
    async with engine.connect() as connection:
        yield _async_sqlalchemy(connection)
    await engine.dispose()


@asynccontextmanager
async def with_async_scoped_session(url: str) -> AsyncIterator[Caller]:
    engine = create_async_engine(dialect(url, "asyncpg"))
    sessions = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
    yield _async_sqlalchemy(sessions)
    await sessions.remove()
    await engine.dispose()


def dialect(url: str, driver: str) -> str:
    """The URL as SQLAlchemy has it."""
    return urlunsplit(urlsplit(url)._replace(scheme=f"postgresql+{driver}"))


ASYNC: dict[str, Calling] = {
    "asyncpg": with_asyncpg,
    "asyncpg pool": with_asyncpg_pool,
    "psycopg": with_psycopg,
    "AsyncSession on asyncpg": with_async_session("asyncpg"),
    "AsyncSession on psycopg": with_async_session("psycopg"),
    "async_scoped_session": with_async_scoped_session,
    "AsyncConnection": with_async_connection,
}
BLOCKING: dict[str, Calling] = {
    "blocking psycopg": with_blocking_psycopg,
    "Session": with_session,
    "scoped_session": with_scoped_session,
    "Connection": with_connection,
}
EVERY = ASYNC | BLOCKING
