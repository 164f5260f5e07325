"""Writes messages of the bus. Messages that come together share a transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future

from batuta.engine.backend.batching import Batches, until_known
from batuta.journal.bus.messages import NewMessage
from batuta.journal.store import Store


class Publisher(Batches[Sequence[NewMessage], None]):
    """Publishes messages in order."""

    name, drops_cancelled = "batuta-publisher", False

    def __init__(self, store: Store, via: str = "") -> None:
        super().__init__()
        self.store, self.via = store, via
        """`via`: the broker that its messages go to."""

    def size(self, item: Sequence[NewMessage]) -> tuple[int, int]:
        return len(item), sum(len(message.body) for message in item)

    async def write(self, items: Sequence[Sequence[NewMessage]]) -> Sequence[None]:
        messages = [message for some in items for message in some]
        await until_known(lambda: self.store.publish_messages(messages))
        return [None] * len(items)

    async def publish(self, messages: Sequence[NewMessage]) -> None:
        """Durable when this returns. Raises StoreErrors. Once it is called they are published, also for a caller who
        waits no longer."""
        await self.add(messages)

    def publish_from(self, loop: asyncio.AbstractEventLoop, message: NewMessage) -> Future[str]:
        """The same for one message, from any thread. Gives its id."""
        future: Future[str] = Future()

        def done(written: asyncio.Future[None]) -> None:
            if future.set_running_or_notify_cancel():
                error = written.exception()
                future.set_result(message.id) if error is None else future.set_exception(error)

        def begin() -> None:
            self.add([message]).add_done_callback(done)

        if asyncio._get_running_loop() is loop:
            begin()
        else:
            loop.call_soon_threadsafe(begin)
        return future
