"""A message leaves if, and only if, the transaction that publishes it commits."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from typing import Any

import asyncpg
import psycopg
import pytest

from batuta import ActivityFailed, Retry, activity, connect, sync, transaction, workflow
from batuta.bus import publish
from batuta.client import Batuta
from batuta.errors import RunFailed


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture
async def client(url: str) -> AsyncIterator[Batuta]:
    async with connect(url) as client:
        yield client


async def ids(client: Batuta, topic: str = "orders") -> list[str]:
    return [one.id for one in (await client.bus.messages(topic)).messages]


def act(fail: bool) -> None:
    transaction().publish("orders", {"n": 1}, id="one", key="k")
    transaction().publish("orders", {"n": 2})
    if fail:
        raise LookupError("out of stock")


def activities(url: str) -> tuple[Any, Any]:
    """Plain on SQLite, async on PostgreSQL."""
    options: dict[str, Any] = {"name": "sell", "transactional": True, "retry": Retry(attempts=1)}
    if url.startswith("sqlite"):

        @activity(**options)
        def sell(fail: bool) -> None:
            act(fail)
            publish.sync("orders", {"n": 3}, id="three")

    else:

        @activity(**options)
        async def sell(fail: bool) -> None:
            act(fail)
            await publish("orders", {"n": 3}, id="three")

    @workflow
    async def sells(fail: bool) -> None:
        await sell(fail)

    return sells, sell


async def test_messages_of_a_transactional_activity_leave_with_its_result(client: Batuta, url: str) -> None:
    sells, sell = activities(url)
    async with client.worker(workflows=[sells], activities=[sell]):
        failed = await client.start(sells, True)
        with pytest.raises(RunFailed) as caught:
            await failed.result()
        assert isinstance(caught.value.__cause__, ActivityFailed | LookupError)
        assert await ids(client) == []
        await (await client.start(sells, False)).result()
    three, second, one = (await client.bus.messages("orders")).messages
    assert (three.id, one.id, one.key, one.source) == ("three", "one", "k", "/batuta/default/sell")
    assert second.id.endswith(":1")


@asynccontextmanager
async def own_transaction(client: Batuta, url: str) -> AsyncIterator[Any]:
    """A connection of the caller's own, in a transaction."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
            async with client.transaction(file):
                yield file
        return
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()


async def test_messages_leave_with_the_callers_own_transaction(client: Batuta, url: str) -> None:
    async with own_transaction(client, url) as connection:
        assert await client.publish("orders", 1, id="kept", transaction=connection) == "kept"

    async def fails() -> None:
        async with own_transaction(client, url) as connection:
            await client.publish_many("orders", [2, 3], transaction=connection)
            raise LookupError

    with pytest.raises(LookupError):
        await fails()
    assert await ids(client) == ["kept"]


def test_a_blocking_client_publishes_and_looks(url: str) -> None:
    with sync.connect(url) as client:
        assert client.publish("orders", {"n": 1}, id="17") == "17"
        [message] = client.bus.messages("orders").messages
        assert (message.id, message.type, client.bus.status().topics[0].messages) == ("17", "orders", 1)
        made = client.publish_many("orders", [{"n": 2}, {"n": 3}], key="k")
        assert [one.id for one in client.bus.messages("orders", limit=2).messages] == [*reversed(made)]
        assert client.bus.prune(60) == 0
        assert client.bus.prune(0) == 3
        assert client.bus.delete("nobody") is False


@contextmanager
def blocking_transaction(client: sync.Client, url: str) -> Iterator[Any]:
    """A connection of the caller's own that blocks, in a transaction."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file, client.transaction(file):
            yield file
    else:
        with psycopg.connect(url) as connection:
            yield connection


def test_a_blocking_client_publishes_with_the_callers_own_transaction(url: str) -> None:
    with sync.connect(url) as client:
        with blocking_transaction(client, url) as connection:
            assert client.publish("orders", 1, id="one", transaction=connection) == "one"
            more = client.publish_many("orders", [2, 3], transaction=connection)
        assert [one.id for one in client.bus.messages("orders").messages] == [*reversed(["one", *more])]

        def fails() -> None:
            with blocking_transaction(client, url) as connection:
                client.publish("orders", 4, transaction=connection)
                raise LookupError

        with pytest.raises(LookupError):
            fails()
        assert client.bus.status().topics[0].messages == 3


def test_a_webhook_without_an_endpoint_writes_nothing_into_the_transaction_of_its_caller(url: str) -> None:
    with sync.connect(url) as client, blocking_transaction(client, url) as connection:
        assert client.webhooks.send("order.paid", {"n": 1}, transaction=connection) == []
