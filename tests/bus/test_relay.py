"""Messages go through a broker whatever queues the workers serve."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from batuta import Retry, connect
from batuta.bus import Broker, Message, subscribe
from batuta.bus.broker import Receive, Sent
from batuta.journal.bus.messages import NewMessage, StoredMessage


class Shelf:
    """A broker that keeps what it is sent, and gives it to its only subscription."""

    name = "shelf"

    def __init__(self) -> None:
        self.messages: list[StoredMessage] = []
        self._news = asyncio.Event()

    async def send(self, messages: Sequence[StoredMessage]) -> Sent:
        self.messages += messages
        self._news.set()
        return Sent(numbers=[one.number for one in messages])

    async def consume(self, topic: str, name: str, *, from_start: bool, begun: Callable[[], None], to: Receive) -> None:
        begun()
        given = 0
        while True:
            await self._news.wait()
            self._news.clear()
            fresh, given = self.messages[given:], len(self.messages)
            await to(
                [
                    NewMessage(topic=one.topic, id=one.id, key=one.key, body=one.body, subscription=name)
                    for one in fresh
                    if one.topic == topic
                ]
            )

    async def behind(self, topic: str, name: str) -> int | None:
        return None

    async def close(self) -> None: ...


async def test_a_worker_that_serves_another_queue_alone_sends_and_hears(tmp_path: Path) -> None:
    heard = asyncio.Event()

    async def hear(message: Message[int]) -> None:
        assert message.payload == 5
        heard.set()

    broker: Broker = Shelf()
    listening = subscribe("orders", hear, name="books", queue="mine", retry=Retry(attempts=1))
    async with connect(f"sqlite:///{tmp_path}/x.db", bus=broker) as client:
        async with client.worker(queues=["mine"], subscriptions=[listening], grace=3.0):
            await client.publish("orders", 5)
            await asyncio.wait_for(heard.wait(), 30)
            assert {one.name for one in await client.queues()} >= {"mine", "relay.shelf"}
