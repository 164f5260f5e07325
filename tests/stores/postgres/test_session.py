"""A connection of the store: how its statements are executed, and how long a reply is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

import asyncpg
import pytest

from batuta.errors import BadData, OutcomeUnknown, StoreUnavailable
from batuta.stores.postgres.database.address import parse_address
from batuta.stores.postgres.database.connection import Session, Shift, _execution


class Public:
    """A prepared statement of a driver whose insides are not as we know them."""

    async def fetch(self, *args: int) -> list[int]:
        return list(args)


def session_with(url: str, patience: float) -> Session:
    return Session(parse_address(url), Shift(), "SELECT $1", patience=patience)


async def test_a_driver_with_other_insides_is_used_as_it_offers_itself() -> None:
    execute: Any = _execution(cast(Any, object()), cast(Any, Public()))
    assert await execute((1, 2)) == [1, 2]


async def test_a_newer_driver_is_used_through_its_public_interface(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asyncpg, "__version__", "9.0.0")
    session = session_with(postgres_url, 30.0)
    statement = await (await session.connect()).prepare("SELECT $1::integer")
    execute: Any = _execution(await session.connect(), statement)
    assert [row[0] for row in await execute((7,))] == [7]
    assert statement.fetch.__name__ in execute.__code__.co_names
    await session.close()


async def test_rows_are_those_of_the_public_way(postgres_url: str) -> None:
    session = session_with(postgres_url, 30.0)
    query = "SELECT $1::integer AS number, $2::text AS word"
    rows = await session.read(query, 1, "a")
    raw = await session.connect()
    assert [dict(row) for row in rows] == [dict(row) for row in await raw.fetch(query, 1, "a")]
    assert await session.write("SELECT 1 WHERE false") == []
    await session.close()


async def test_a_reply_that_does_not_come_is_not_waited_for_for_ever(postgres_url: str) -> None:
    session = session_with(postgres_url, 2.0)
    assert await session.read("SELECT 1")
    with pytest.raises(OutcomeUnknown):
        await session.write("SELECT pg_sleep(60)")
    assert [row[0] for row in await session.write("SELECT 2")] == [2]
    await session.close()


async def test_the_watchdog_forgets_statements_answered_in_time(postgres_url: str) -> None:
    session = session_with(postgres_url, 2.0)
    assert await session.read("SELECT 1")
    connection = await session.connect()
    session._watch()  # as its timer does
    assert session._watching is None
    assert await session.connect() is connection
    await session.close()


# -- a transaction in parts

INSERT = "INSERT INTO parts VALUES ($1) RETURNING NULLIF(number, 0)"


@pytest.fixture
async def session(postgres_url: str) -> AsyncIterator[Session]:
    session = session_with(postgres_url, 30.0)
    await session.write("CREATE TABLE parts (number integer NOT NULL)")
    yield session
    await session.close()


async def written(session: Session) -> list[int]:
    return [row[0] for row in await session.read("SELECT number FROM parts ORDER BY number")]


async def test_the_next_part_is_made_while_the_one_before_is_under_way(session: Session, postgres_url: str) -> None:
    holder = await asyncpg.connect(postgres_url)
    await holder.execute("SELECT pg_advisory_lock(1)")
    unlocking: list[asyncio.Future[str]] = []

    def parts() -> Iterator[tuple[int]]:
        yield (1,)  # which waits for the lock
        unlocking.append(asyncio.ensure_future(holder.execute("SELECT pg_advisory_unlock(1)")))
        yield (2,)

    insert = "INSERT INTO parts SELECT $1 FROM pg_advisory_xact_lock(1) RETURNING number"
    assert await session.write_in_parts(insert, parts()) == [1, 2]
    await asyncio.gather(*unlocking)
    await holder.close()
    assert await written(session) == [1, 2]


@pytest.mark.parametrize("parts", [[(1,), (0,), (3,)], [(1,), None, (3,)], [None], [(1,), (2,), (0,)]])
async def test_a_part_that_is_none_or_has_no_value_undoes_all_of_them(
    session: Session, parts: list[tuple[int] | None]
) -> None:
    connection = await session.connect()
    assert None in await session.write_in_parts(INSERT, parts)
    assert await written(session) == []
    assert await session.connect() is connection


async def test_a_part_that_cannot_be_made_undoes_those_before(session: Session) -> None:
    def parts() -> Iterator[tuple[int]]:
        yield (1,)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await session.write_in_parts(INSERT, parts())
    assert await written(session) == []


async def test_a_part_that_the_database_refuses_undoes_those_before(session: Session) -> None:
    with pytest.raises(BadData):
        await session.write_in_parts(INSERT, [(1,), (None,)])
    assert await written(session) == []


async def test_when_the_connection_breaks_between_parts_nothing_is_written_and_that_is_certain(
    session: Session, postgres_url: str
) -> None:
    pid = (await session.connect()).get_server_pid()
    killer = await asyncpg.connect(postgres_url)

    def parts() -> Iterator[tuple[int]]:
        yield (1,)
        session.drop()
        yield (2,)

    with pytest.raises(StoreUnavailable):
        await session.write_in_parts(INSERT, parts())
    while await killer.fetchval("SELECT count(*) FROM pg_stat_activity WHERE pid = $1", pid):
        await asyncio.sleep(0.01)
    await killer.close()
    assert await written(session) == []


async def test_when_the_commit_has_no_reply_the_outcome_is_unknown(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = await session.connect()
    execute = type(connection).execute

    async def lost(self: Any, query: str, *args: Any, **options: Any) -> str:
        found = await execute(self, query, *args, **options)
        if query == "COMMIT":
            raise ConnectionResetError
        return found

    monkeypatch.setattr(type(connection), "execute", lost)
    with pytest.raises(OutcomeUnknown):
        await session.write_in_parts(INSERT, [(1,), (2,)])
    assert await written(session) == [1, 2]


async def test_a_cancelled_caller_leaves_no_half_statement(session: Session) -> None:
    def parts() -> Iterator[tuple[int]]:
        yield (1,)
        task.cancel()
        yield (2,)

    task = asyncio.ensure_future(session.write_in_parts(INSERT, parts()))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await written(session) == []
    assert await session.write_in_parts(INSERT, [(3,), (4,)]) == [3, 4]
