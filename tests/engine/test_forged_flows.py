"""Who can write to the database, and has no key, chooses neither what a flow does nor what an event or message says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest
from msgspec import json
from msgspec.structs import replace

from batuta import Batuta, activity, connect, saga, workflow
from batuta.bus import Message, subscribe
from batuta.codecs import Compression, Encryption
from batuta.connect import store_for
from batuta.errors import BatutaError, PayloadRefused, PayloadSealed
from batuta.flows.models import RunStatus
from batuta.ids import new_run_id
from batuta.journal.server.documents import FLOW_SECRETS, OPERATIONS
from batuta.journal.store import Store
from batuta.stores.coded.key_rotation import Rotated, rotate
from batuta.stores.coded.namespace_guard import guarded
from tests.engine.arena import PATIENCE, until
from tests.engine.forging import Forger
from tests.engine.test_bound_payloads import CODECS, flow_of, opened
from tests.engine.test_sealed import K1, K2, SECRET, go, mail, rows_of


@activity
async def book(card: str) -> str:
    return card


@activity
async def unbook(card: str) -> None:
    return None


@workflow
async def trip(card: str) -> str:
    async with saga() as undo:
        undo(unbook, card)
        await book(card)
        return await go.wait()


pytestmark = pytest.mark.usefixtures("real_time")


@pytest.fixture
async def forger(url: str) -> AsyncIterator[Forger]:
    made = Forger(url)
    yield made
    await made.close()


@asynccontextmanager
async def stores(url: str, *keys: str) -> AsyncIterator[Store]:
    """As a client with these keys has it."""
    store = guarded(store_for(url, codec=[Encryption(key) for key in keys]))
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def published(client: Batuta, name: str) -> Any:
    made = await client.flows.create(flow_of(name, SECRET))
    return await client.flows.publish(made.id)


async def run_count(client: Batuta) -> int:
    return len((await client.list(limit=10)).runs)


async def test_a_flow_that_was_put_there_in_the_clear_is_not_run(url: str, forger: Forger) -> None:
    async with connect(url, codec=CODECS) as client:
        await published(client, "ours")
        text = json.encode(flow_of("theirs")).decode()
        row = {"name": "theirs", "version": 1, "description": "", "trigger_type": "overdue", "document": text}
        times = {"published_at": 1, "revision": 1, "created_at": 1, "updated_at": 1}
        id = new_run_id()
        await forger.insert("flows", namespace="default", workflow_id=UUID(int=id.int), is_active=True, **row, **times)
        with pytest.raises(PayloadSealed, match=r"flow theirs@1 cannot be read: .*it is not encrypted"):
            await client.flows.events.send("overdue", {"amount": 1})
        with pytest.raises(PayloadSealed):
            await client.flows.runs.start(id, payload={"amount": 1})
        assert await run_count(client) == 0
        [ours, theirs] = (await client.flows.list()).workflows
        assert (ours.description, len(ours.steps)) == (SECRET, 2)
        assert "it is not encrypted" in (theirs.description or "")
        parts = await client.flows.parts()
        await client.flows.activate(id, False)
        async with client.worker(**parts):
            sent = await client.flows.events.send("overdue", {"amount": 1})
            [run] = (await client.flows.runs.list(event_id=sent.event.id)).runs

            async def has_ended() -> bool:
                return (await client.flows.runs.get(run.run.id)).run.status is RunStatus.COMPLETED

            await until(has_ended)


@pytest.mark.parametrize("change", ["document", "name", "trigger_type", "published_at"])
async def test_a_flow_is_refused_where_its_row_was_changed(url: str, forger: Forger, change: str) -> None:
    async with connect(url, codec=CODECS) as client:
        one, other = await published(client, "one"), await client.flows.create(flow_of("other"))
        [(theirs,)] = await forger.sql(
            f"SELECT document FROM {forger.schema}flows WHERE name = {forger.mark(1)}", "one"
        )
        forged = {"name": "another", "trigger_type": "paid", "published_at": 1, "document": theirs}[change]
        flow = one if change in ("name", "trigger_type") else other
        where = f"UPDATE {forger.schema}flows SET {change} = {forger.mark(1)} WHERE workflow_id = {forger.mark(2)}"
        await forger.sql(where, forged, forger.as_id(UUID(flow.id)))
        with pytest.raises(PayloadSealed, match="belongs elsewhere"):
            await client.flows.get(flow.id)


@pytest.mark.parametrize("change", [{"type": "paid"}, {"source": "bank"}, {"external_id": "e-2"}])
async def test_an_event_is_refused_where_its_row_was_changed(url: str, forger: Forger, change: dict[str, str]) -> None:
    async with connect(url, codec=CODECS) as client:
        flow = await published(client, "ours")
        sent = await client.flows.events.send("overdue", {"amount": 1}, source="shop", external_id="e-1")
        await client.flows.events.send("overdue", {"amount": 2}, source="shop")
        [(name, value)] = change.items()
        statement = f"UPDATE {forger.schema}events SET {name} = {forger.mark(1)} WHERE event_id = {forger.mark(2)}"
        await forger.sql(statement, value, forger.as_id(UUID(sent.event.id)))
        for asked in (
            client.flows.events.get(sent.event.id),
            client.flows.events.replay(sent.event.id),
            client.flows.runs.start(flow.id, sent.event.id),
        ):
            with pytest.raises(PayloadSealed, match="belongs elsewhere"):
                await asked
        listed = (await client.flows.events.list()).events
        assert [one.payload.get("amount") for one in listed] == [2, None]


async def test_a_message_is_delivered_to_no_subscription_of_another_topic(url: str, forger: Forger) -> None:
    got: list[str] = []

    async def orders(message: Message[str]) -> None:
        got.append(f"orders {message.payload}")

    async def bills(message: Message[str]) -> None:
        got.append(f"bills {message.payload}")

    parts: Any = {"subscriptions": [subscribe("orders", orders), subscribe("bills", bills)], "heartbeat": 0.1}
    async with connect(url, codec=CODECS) as client:
        async with client.worker(**parts):
            await client.publish("orders", "one", id="m-1")

            async def has_one() -> bool:
                return bool(got)

            await until(has_one)
        [(number,)] = await forger.sql(f"SELECT number FROM {forger.schema}bus_messages")
        row = {"number": number, "key": "", "state": 1, "at": 1}
        await forger.insert("bus_deliveries", namespace="default", subscription="bills", **row)
        await client.publish("bills", "two", id="m-2")
        async with client.worker(**parts):

            async def has_two() -> bool:
                return "bills two" in got

            await until(has_two)
    assert got == ["orders one", "bills two"]


@pytest.mark.parametrize("key", [None, K2], ids=["none", "other key"])
async def test_who_cannot_read_an_encrypted_namespace_writes_nothing_of_flows_and_messages_into_it(
    url: str, key: str | None
) -> None:
    async with connect(url, codec=Encryption(K1)) as client:
        flow = await published(client, "ours")
        sent = await client.flows.events.send("unheard", {"amount": 1})
        await client.enqueue(mail, SECRET)
    async with connect(url, codec=[] if key is None else Encryption(key)) as client:
        for writing in (
            client.flows.create(flow_of("theirs")),
            client.flows.events.send("unheard", {"amount": 1}),
            client.flows.secrets.set("bank", "theirs"),
            client.publish("cards", "theirs"),
            client.webhooks.create("https://example.com/"),
        ):
            with pytest.raises(PayloadRefused, match="namespace 'default' is encrypted"):
                await writing
        for asked in (
            client.flows.get(flow.id),
            client.flows.events.get(sent.event.id),
            client.flows.runs.start(flow.id, payload={}),
            client.flows.events.send("overdue", {}),
        ):
            with pytest.raises(BatutaError) as raised:
                await asked
            assert isinstance(raised.value, PayloadSealed | PayloadRefused)
    async with opened(url) as whole, stores(url, *([] if key is None else [key])) as store:
        row, ours = await store.flow(UUID(flow.id)), await whole.flow(UUID(flow.id))
        assert row is not None
        assert ours is not None
        with pytest.raises(PayloadRefused):
            await store.put_flow(replace(ours, version=2, workflow_id=new_run_id()))
        assert await store.put_flow(replace(row, is_active=False), row.revision), "it may be made inactive"
    async with connect(url, codec=Encryption(K1)) as client:
        found = await client.flows.get(flow.id)
        assert (len(found.steps), found.is_active) == (2, False)


async def test_documents_and_answers_are_refused_by_who_cannot_read_the_namespace(url: str) -> None:
    async with connect(url, codec=Encryption(K1)) as client:
        await client.enqueue(mail, SECRET)
        namespace = client.namespace
        assert namespace is not None
    for codec in ([], [Encryption(K2)]):
        async with connect(url, codec=codec) as client:
            documents, requests = client.namespace.documents, client.namespace.requests
            for kind in (FLOW_SECRETS, OPERATIONS):
                with pytest.raises(PayloadRefused):
                    await documents.put_documents(kind, {"one": '"theirs"'}, 10**9)
            with pytest.raises(PayloadRefused):
                await requests.begin_request("key", "digest", "ann", 10**9, 10**9)
    async with opened(url) as store:
        assert await store.documents(FLOW_SECRETS) == []


async def rotated(url: str, keys: str, *, dry_run: bool = False) -> Rotated:
    store = store_for(url, codec=[Compression(), Encryption(keys)])
    await store.open()
    try:
        return await rotate(store, dry_run=dry_run)
    finally:
        await store.close()


async def test_rotated_keys_encrypt_flows_and_events_anew(url: str) -> None:
    async with connect(url, codec=Encryption(K1)) as client:
        flow = await published(client, "ours")
        draft = await client.flows.create(flow_of("draft", SECRET))
        sent = await client.flows.events.send("unheard", {"card": SECRET})
    both = f"{K2},{K1}"
    for dry_run in (True, False):
        done = await rotated(url, both, dry_run=dry_run)
        assert (done.written, done.sealed) == ({"flows": 2, "events": 1}, 0)
    assert (await rotated(url, both)).written == {}
    assert "aes.k1" not in await rows_of(url)
    async with connect(url, codec=Encryption(K2)) as client:
        assert (await client.flows.get(flow.id)).is_active
        assert (await client.flows.get(draft.id)).description == SECRET
        assert (await client.flows.events.get(sent.event.id)).payload == {"card": SECRET}


async def test_rotated_keys_encrypt_messages_that_wait_and_that_were_delivered_anew(url: str, forger: Forger) -> None:
    got: list[str] = []

    async def charge(message: Message[str]) -> None:
        got.append(message.payload)

    parts: Any = {"subscriptions": [subscribe("cards", charge)], "heartbeat": 0.1}
    async with connect(url, codec=Encryption(K1)) as client:
        async with client.worker(**parts):
            await client.publish("cards", SECRET, id="delivered")

            async def has_one() -> bool:
                return bool(got)

            await until(has_one)
        await client.publish("cards", SECRET, id="waits")
        await client.publish("others", SECRET)
    both = f"{K2},{K1}"
    for dry_run in (True, False):
        done = await rotated(url, both, dry_run=dry_run)
        assert (done.written["messages"], done.sealed) == (3, 0)
    assert (await rotated(url, both)).written == {}
    assert "aes.k1" not in await rows_of(url)
    async with connect(url, codec=Encryption(K2)) as client, client.worker(**parts):

        async def has_two() -> bool:
            return len(got) == 2

        await until(has_two)
    assert got == [SECRET, SECRET]


async def test_a_damaged_message_is_counted_by_a_rotation_and_left_alone(url: str, forger: Forger) -> None:
    async with connect(url, codec=Encryption(K1)) as client:
        for id in ("good", "moved"):
            await client.publish("cards", SECRET, id=id)
    await forger.sql(f"UPDATE {forger.schema}bus_messages SET id = 'elsewhere' WHERE id = 'moved'")
    done = await rotated(url, f"{K2},{K1}")
    assert (done.messages, done.sealed) == (1, 1)


async def test_flows_and_events_from_before_the_keys_are_encrypted_and_no_stray_key_locks_them_out(url: str) -> None:
    async with connect(url, codec=[]) as client:
        flow = await published(client, "ours")
        sent = await client.flows.events.send("unheard", {"card": SECRET})
    async with connect(url, codec=Encryption(K1)) as client:
        with pytest.raises(PayloadSealed, match="add the word 'plain'"):
            await client.flows.get(flow.id)
        await client.flows.secrets.set("bank", "stray")
    async with connect(url, codec=[]) as client:
        assert (await client.flows.get(flow.id)).is_active, "the namespace was not marked"
    done = await rotated(url, f"{K1},plain")
    assert done.written == {"flows": 1, "events": 1}
    assert (await rotated(url, K1)).marked
    async with connect(url, codec=Encryption(K1)) as client:
        assert (await client.flows.get(flow.id)).description == SECRET
        assert (await client.flows.events.get(sent.event.id)).payload == {"card": SECRET}
    assert SECRET not in await rows_of(url)


async def test_an_open_run_whose_compensation_has_the_old_key_is_counted_until_it_has_closed(url: str) -> None:
    """Its journal has the old key wherever its compensation has, for both are written together."""
    parts: Any = {"workflows": [trip], "activities": [book, unbook], "heartbeat": 0.1}
    async with connect(url, codec=Encryption(K1)) as client, client.worker(**parts):
        handle = await client.start(trip, SECRET, id="trip", timeout=3600)

        async def has_booked() -> bool:
            return (await handle.describe()).entries >= 2

        await until(has_booked)
    both = f"{K2},{K1}"
    assert "compensation" in await rows_of(url)
    assert (await rotated(url, both)).open == 1
    async with connect(url, codec=Encryption(both)) as client, client.worker(**parts):
        await (await client.get("trip")).signal(go, "on")
        assert await (await client.get("trip", trip)).result(PATIENCE) == "on"
    assert (await rotated(url, both)).open == 0
    done = await rotated(url, K2)
    assert (done.open, done.sealed, done.written) == (0, 0, {})
