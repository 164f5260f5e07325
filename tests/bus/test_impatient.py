"""Publishers that wait no longer."""

import asyncio
from collections.abc import Sequence

from batuta.client import Batuta
from batuta.clock import SystemClock
from batuta.engine.backend.native import NativeBackend
from batuta.journal.bus.messages import NewMessage
from batuta.stores.memory import MemoryStore


class Slow(MemoryStore):
    """Holds up the first transaction, and notes what each one publishes."""

    def __init__(self) -> None:
        super().__init__()
        self.released = asyncio.Event()
        self.published: list[list[str]] = []

    async def publish_messages(self, messages: Sequence[NewMessage]) -> list[str]:
        self.published.append([message.id for message in messages])
        await self.released.wait()
        return await super().publish_messages(messages)


async def test_a_message_is_published_though_its_publisher_waits_no_longer() -> None:
    store = Slow()
    async with Batuta(NativeBackend(store, SystemClock()), store.open, store.close) as client:
        first = asyncio.create_task(client.publish("shipments", 0, id="m-0"))
        while not store.published:
            await asyncio.sleep(0)
        impatient, last = [asyncio.create_task(client.publish("shipments", n, id=f"m-{n}")) for n in (1, 2)]
        for _ in range(5):
            await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.wait([impatient])
        store.released.set()
        await asyncio.gather(first, last)
    assert impatient.cancelled()
    assert store.published == [["m-0"], ["m-1", "m-2"]]
