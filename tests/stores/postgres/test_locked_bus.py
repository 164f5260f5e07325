"""A row of the bus that another session holds delays what it is about, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from batuta.journal.audit import Act, Verb
from batuta.journal.bus.messages import Begun, Delivery
from batuta.stores.postgres import PostgresStore
from batuta.testing.conformance.operators.bus import begin, begun, ids, message, subscribe
from tests.stores.postgres.raw import DEADLINE_SECONDS, connection


@asynccontextmanager
async def held(url: str, rows: str) -> AsyncIterator[None]:
    async with connection(url) as raw:
        holding = raw.transaction()
        await holding.start()
        assert await raw.fetch(f"SELECT FROM batuta.{rows} FOR UPDATE")
        yield
        await holding.rollback()


async def turn(store: PostgresStore, names: Sequence[str], notes: Sequence[Begun] = ()) -> list[Delivery]:
    async with asyncio.timeout(DEADLINE_SECONDS):
        return (await store.bus_turn(names, notes, 100)).deliveries


async def test_others_get_messages_while_one_delivery_is_held(store: PostgresStore, postgres_url: str) -> None:
    await subscribe(store, "mail")
    await subscribe(store, "books", "bills")
    await store.publish_messages([message("a", "k"), message("b", "k")])
    first = await turn(store, ["mail"])
    runs = await begin(store, first)
    async with held(postgres_url, "bus_deliveries WHERE number = 1"):
        await store.publish_messages([message("c", topic="bills")])
        assert ids(await turn(store, ["mail", "books"], begun(first, runs))) == ["a", "c"], "it could not be noted"
    assert await turn(store, ["mail"], begun(first, runs)) == []
    await store.terminate_runs([runs["a"]], "done", Act(actor="ann", verb=Verb.TERMINATE))
    for rows in ("bus_deliveries WHERE number = 1", "bus_deliveries WHERE number = 2"):
        async with held(postgres_url, rows):
            assert await turn(store, ["mail"]) == []
            assert ids(await turn(store, ["books"])) == ["c"]
    assert ids(await turn(store, ["mail"])) == ["b"]


async def test_a_message_that_is_held_delays_those_of_its_key_alone(store: PostgresStore, postgres_url: str) -> None:
    await subscribe(store, "mail")
    await subscribe(store, "books", "bills")
    made = [message("a", "k"), message("b", "other"), message("c", "k"), message("d"), message("e", "k", topic="bills")]
    await store.publish_messages(made)
    async with held(postgres_url, "bus_messages WHERE id = 'a'"):
        assert ids(await turn(store, ["mail", "books"])) == ["b", "d", "e"]
    assert ids(await turn(store, ["mail", "books"])) == ["a", "b", "d", "e"]
