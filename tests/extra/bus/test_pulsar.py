"""The bus on a real Pulsar passes the shipped suite, and loses nothing while the broker is away."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator

import pytest

from batuta import activity, connect, workflow
from batuta.bus import publish, subscribe
from batuta.bus.pulsar import PulsarBus
from batuta.client import Batuta
from batuta.ids import new_message_id
from batuta.journal.records import LetterReason
from batuta.testing.buses import BusConformance, Seen, caught_up, letters, until
from tests.extra.bus.broker import URL_VARIABLE, PulsarServer

pytestmark = [pytest.mark.extra, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def server() -> Iterator[PulsarServer | None]:
    """None: a server of the user's is used."""
    if os.environ.get(URL_VARIABLE):
        yield None
        return
    server = PulsarServer()
    yield server
    server.close()


class OwnTopics(PulsarBus):
    """Each test has topics of its own."""

    def __init__(self, url: str, admin_url: str) -> None:
        super().__init__(url, admin_url=admin_url)
        self._prefix = new_message_id()

    def topic(self, topic: str) -> str:
        return super().topic(f"{self._prefix}-{topic}")


@pytest.fixture
def bus(server: PulsarServer | None) -> OwnTopics:
    if server is None:
        return OwnTopics(os.environ[URL_VARIABLE], "")
    return OwnTopics(server.url, server.admin_url)


@pytest.fixture
async def client(bus: OwnTopics, sqlite_url: str) -> AsyncIterator[Batuta]:
    async with connect(sqlite_url, bus=bus) as client:
        yield client


class TestPulsarBus(BusConformance):
    """Messages that go through the broker."""


@activity(name="pulsar-tell")
async def tell(number: int) -> str:
    return await publish("orders", number, key="k")


@workflow(name="pulsar-teller")
async def teller(number: int) -> str:
    return await tell(number)


@workflow(name="pulsar-silent")
async def silent() -> str:
    return "done"


@pytest.fixture
def mortal() -> Iterator[PulsarServer]:
    """A broker of the test's own: one that was killed may lose its only bookie again for a minute after it is back."""
    server = PulsarServer()
    yield server
    server.close()


async def test_while_the_broker_is_away_runs_go_on_and_nothing_is_lost(mortal: PulsarServer, sqlite_url: str) -> None:
    seen = Seen()
    subscription = subscribe("orders", seen.job("away"))
    async with (
        connect(sqlite_url, bus=OwnTopics(mortal.url, mortal.admin_url)) as client,
        client.worker(workflows=[teller, silent], activities=[tell], subscriptions=[subscription]),
    ):
        await (await client.start(teller, 0)).result(30)
        await seen.have(1)
        mortal.stop()
        for number in range(1, 6):
            await (await client.start(teller, number)).result(30)
            assert await (await client.start(silent)).result(30) == "done"
        [status] = [one for one in (await client.bus.status()).topics if one.name == "orders"]
        assert status.unsent == 5
        await asyncio.to_thread(mortal.start)
        await until(lambda: len(seen.messages) == 6, patience=300.0)
        await caught_up(client, "away")
    assert seen.payloads == list(range(6))
    assert len({one.id for one in seen.messages}) == 6


async def test_what_strangers_send_is_read_or_becomes_a_dead_letter(client: Batuta, bus: OwnTopics) -> None:
    seen = Seen()
    event = b'{"specversion":"1.0","id":"7","source":"/shop","type":"sold","partitionkey":"k","data":{"n":1}}'
    async with client.worker(subscriptions=[subscribe("orders", seen.job("strange"))]):
        producer = await bus._opened().create_producer(bus.topic("orders"))
        await producer.send(event)
        await producer.send(event)
        await producer.send(b'{"plain": true}', partition_key="p")
        await producer.send(b"\xff no JSON")
        await producer.send(event.replace(b'"1.0"', b'"9.9"'))
        await producer.send(event.replace(b'"7"', b'"8","time":"2020-01-01T00:00:00"'))
        await producer.send(b"[" * 100_000)
        await letters(client, 4)
        await until(lambda: len(seen.messages) == 2)
    found = {one.type: (one.id, one.source, one.key, one.payload) for one in seen.messages}
    assert found["sold"] == ("7", "/shop", "k", {"n": 1})
    assert found["orders"][2:] == ("p", {"plain": True})
    problems = sorted(letter.message for letter in (await client.dead_letters.list()).letters)
    assert any("CloudEvents version '9.9' is not known" in problem for problem in problems)
    assert any("cannot be read" in problem for problem in problems)


async def test_a_message_that_the_broker_refuses_is_a_dead_letter_and_others_go_on(client: Batuta) -> None:
    seen = Seen()
    async with client.worker(subscriptions=[subscribe("orders", seen.job("small"))]):
        await client.publish("orders", "x" * 1_500_000, id="large")
        await client.publish("orders", "small")
        await seen.have(1)
        await letters(client, 1)
    [letter] = (await client.dead_letters.list()).letters
    assert (letter.reason, letter.name) == (LetterReason.UNDELIVERED, "bus:relay.pulsar")
    assert "MessageTooBig" in letter.message


async def test_a_topic_that_the_broker_does_not_have_is_a_dead_letter_until_it_is_made(
    server: PulsarServer | None, sqlite_url: str
) -> None:
    assert server is not None, "the broker of the tests must be one whose namespaces can be changed"
    await asyncio.to_thread(server.ask, "PUT", "namespaces/public/strict")
    await asyncio.to_thread(
        server.ask, "POST", "namespaces/public/strict/autoTopicCreation", b'{"allowAutoTopicCreation": false}'
    )
    seen = Seen()
    async with connect(sqlite_url, bus=PulsarBus(server.url, namespace="public/strict")) as client:
        async with client.worker():
            await client.publish("orders", 17, id="seventeen")
            await letters(client, 1)
            [letter] = (await client.dead_letters.list()).letters
            assert (letter.reason, letter.name) == (LetterReason.UNDELIVERED, "bus:relay.pulsar")
            assert "TopicNotFound" in letter.message
        await asyncio.to_thread(server.ask, "PUT", "persistent/public/strict/orders")
        async with client.worker(subscriptions=[subscribe("orders", seen.job("strict"), from_start=True)]):
            await client.dead_letters.reprocess(letter.run_id)
            await seen.have(1)
    assert seen.messages[0].id == "seventeen"


async def test_how_far_a_subscription_is_behind_is_asked_of_the_broker(client: Batuta, bus: OwnTopics) -> None:
    seen = Seen()
    async with client.worker(subscriptions=[subscribe("orders", seen.job("behind"))]):
        await client.publish("orders", 1)
        await seen.have(1)
    producer = await bus._opened().create_producer(bus.topic("orders"))
    await producer.send(b"2")
    found: list[int | None] = [None]

    async def asked() -> None:
        while found[-1] != 1:
            found.append(await bus.behind("orders", "behind"))
            await asyncio.sleep(0.05)

    await asyncio.wait_for(asked(), 30)
