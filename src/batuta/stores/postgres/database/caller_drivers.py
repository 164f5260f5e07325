"""Connections of callers, of any driver. Nothing is imported: a caller with a connection has imported its driver."""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import asyncpg
from msgspec import Struct

from batuta.errors import WrongTransaction

_SUPPORTED = (
    "an asyncpg connection, a psycopg (3) connection, or a SQLAlchemy Session, AsyncSession, Connection or "
    "AsyncConnection, each on the client's own database"
)
_ALCHEMY, _ALCHEMY_ASYNC = "sqlalchemy.orm", "sqlalchemy.ext.asyncio"
_PARAMETER = re.compile(r"\$(\d+)")


class Link(Struct, frozen=True):
    """A caller's connection."""

    blocking: bool
    ask: Callable[[str, Sequence[str | None]], Awaitable[str | None]]
    """The one value of a query whose parameters $1, $2, ... are texts. Never suspends when it is blocking.

    Raises WrongTransaction, and the driver's errors.
    """


def link_to(transaction: Any) -> Link:
    """The caller's connection, as one of ours. Raises WrongTransaction when it is of no kind that is known here."""
    if isinstance(transaction, asyncpg.Connection | asyncpg.pool.PoolConnectionProxy):
        return Link(blocking=False, ask=partial(_ask_asyncpg, transaction))
    if _is(transaction, "psycopg", "AsyncConnection"):
        return Link(blocking=False, ask=partial(_ask_psycopg, transaction))
    if _is(transaction, "psycopg", "Connection"):
        return Link(blocking=True, ask=partial(_ask_blocking_psycopg, transaction))
    if _is(transaction, _ALCHEMY_ASYNC, "AsyncSession", "AsyncConnection", "async_scoped_session"):
        return Link(blocking=False, ask=partial(_ask_async_sqlalchemy, transaction))
    if _is(transaction, _ALCHEMY, "Session", "scoped_session") or _is(transaction, "sqlalchemy.engine", "Connection"):
        return Link(blocking=True, ask=partial(_ask_sqlalchemy, transaction))
    kind = type(transaction)
    raise WrongTransaction(f"transaction= cannot be a {kind.__module__}.{kind.__qualname__}: give {_SUPPORTED}")


def _is(thing: object, module: str, *names: str) -> bool:
    """Whether it is an instance of a class of a module. A module that is not imported has no instances."""
    loaded = sys.modules.get(module)
    kinds = tuple(kind for name in names if isinstance(kind := getattr(loaded, name, None), type))
    return isinstance(thing, kinds)


def _not_begun(how: str) -> WrongTransaction:
    return WrongTransaction(
        f"no transaction is open on this connection: begin one ({how}), or leave out `transaction=`"
    )


async def _ask_asyncpg(connection: Any, query: str, texts: Sequence[str | None]) -> str | None:
    if not connection.is_in_transaction():
        raise _not_begun("async with connection.transaction()")
    answer: str | None = await connection.fetchval(query, *texts)
    return answer


async def _ask_psycopg(connection: Any, query: str, texts: Sequence[str | None]) -> str | None:
    _check_psycopg(connection)
    async with connection.cursor(row_factory=_tuple_row()) as cursor:
        await cursor.execute(_PARAMETER.sub("%s", query), list(texts))
        return _first(await cursor.fetchone())


async def _ask_blocking_psycopg(connection: Any, query: str, texts: Sequence[str | None]) -> str | None:
    _check_psycopg(connection)
    with connection.cursor(row_factory=_tuple_row()) as cursor:
        cursor.execute(_PARAMETER.sub("%s", query), list(texts))
        return _first(cursor.fetchone())


def _tuple_row() -> Any:
    return sys.modules["psycopg.rows"].tuple_row


def _check_psycopg(connection: Any) -> None:
    """A connection without autocommit begins a transaction with its first statement."""
    idle = sys.modules["psycopg"].pq.TransactionStatus.IDLE
    if connection.autocommit and connection.info.transaction_status == idle:
        raise _not_begun("with connection.transaction()")


def _first(row: tuple[str | None, ...] | None) -> str | None:
    return None if row is None else row[0]


async def _ask_sqlalchemy(given: Any, query: str, texts: Sequence[str | None]) -> str | None:
    is_connection = _is(given, "sqlalchemy.engine", "Connection")
    connection = given if is_connection else given.connection()  # of a scoped session: that of this thread
    _check_sqlalchemy(connection, connection.connection.dbapi_connection)
    answer: str | None = connection.execute(*_sqlalchemy_query(query, texts)).scalar_one()
    return answer


async def _ask_async_sqlalchemy(given: Any, query: str, texts: Sequence[str | None]) -> str | None:
    is_connection = _is(given, _ALCHEMY_ASYNC, "AsyncConnection")
    connection = given if is_connection else await given.connection()
    raw = await connection.get_raw_connection()
    _check_sqlalchemy(connection, raw.dbapi_connection)
    answer: str | None = (await connection.execute(*_sqlalchemy_query(query, texts))).scalar_one()
    return answer


def _check_sqlalchemy(connection: Any, driver: Any) -> None:
    if connection.dialect.name != "postgresql":
        raise WrongTransaction(f"the session uses {connection.dialect.name}: give {_SUPPORTED}")
    if getattr(driver, "autocommit", False) is True:
        raise _not_begun("on a connection without isolation_level='AUTOCOMMIT'")


def _sqlalchemy_query(query: str, texts: Sequence[str | None]) -> tuple[Any, dict[str, str | None]]:
    clause = sys.modules["sqlalchemy"].text(_PARAMETER.sub(r":p\1", query))
    return clause, {f"p{number}": text for number, text in enumerate(texts, start=1)}
