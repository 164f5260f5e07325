"""A connection of the store: how its statements are executed, and how long a reply is waited for."""

from __future__ import annotations

from typing import Any, cast

import asyncpg
import pytest

from batuta.errors import OutcomeUnknown
from batuta.stores.postgres.address import parse_address
from batuta.stores.postgres.session import Session, Shift, _execution


class Public:
    """A prepared statement of a driver whose insides are not as we know them."""

    async def fetch(self, *args: int) -> list[int]:
        return list(args)


def session_with(url: str, patience: float) -> Session:
    return Session(parse_address(url), Shift(), "SELECT $1", patience=patience)


async def test_a_driver_with_other_insides_is_used_as_it_offers_itself() -> None:
    execute: Any = _execution(cast(Any, object()), cast(Any, Public()))
    assert await execute((1, 2)) == [1, 2]


async def test_of_a_driver_that_is_newer_than_we_know_the_public_way_is_used(
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


async def test_what_was_answered_in_time_is_forgotten_by_who_watches(postgres_url: str) -> None:
    session = session_with(postgres_url, 2.0)
    assert await session.read("SELECT 1")
    connection = await session.connect()
    session._watch()  # as its timer does
    assert session._watching is None
    assert await session.connect() is connection
    await session.close()
