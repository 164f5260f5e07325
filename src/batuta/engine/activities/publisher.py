"""Writes messages of the bus. Messages that come together share a transaction."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from batuta.engine.backend.start_batching import until_known
from batuta.errors import StoreError
from batuta.journal.bus.messages import NewMessage
from batuta.journal.store import Store

_MOST = 500
_BYTES = 4 * 1024 * 1024

Done = Callable[[BaseException | None], None]


class Publisher:
    """One transaction at a time, with all that wait for it, in order."""

    def __init__(self, store: Store, via: str = "") -> None:
        self.store, self.via = store, via
        """`via`: the broker that its messages go to."""
        self._waiting: deque[tuple[Sequence[NewMessage], Done]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def publish(self, messages: Sequence[NewMessage]) -> None:
        """Durable when this returns. Raises StoreErrors."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: BaseException | None) -> None:
            if not future.done():
                future.set_result(None) if error is None else future.set_exception(error)

        self._add(messages, done)
        await future

    def publish_from(self, loop: asyncio.AbstractEventLoop, message: NewMessage) -> Future[str]:
        """The same for one message, from any thread. Gives its id."""
        future: Future[str] = Future()

        def done(error: BaseException | None) -> None:
            if future.set_running_or_notify_cancel():
                future.set_result(message.id) if error is None else future.set_exception(error)

        if asyncio._get_running_loop() is loop:
            self._add([message], done)
        else:
            loop.call_soon_threadsafe(self._add, [message], done)
        return future

    def _add(self, messages: Sequence[NewMessage], done: Done) -> None:
        self._waiting.append((messages, done))
        if self._task is None:  # not in the context, nor ended with the task, of one that publishes: it is for all
            loop = asyncio.get_running_loop()
            self._task = asyncio.Task(
                self._write_all(), loop=loop, name="batuta-publisher", context=contextvars.Context()
            )

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                await self._write()
        finally:
            self._task = None

    async def _write(self) -> None:
        batch: list[NewMessage] = []
        told: list[Done] = []
        size = 0
        while self._waiting and len(batch) < _MOST and size < _BYTES:
            messages, done = self._waiting.popleft()
            batch += messages
            told.append(done)
            size += sum(len(message.body) for message in messages)
        error: BaseException | None = None
        try:
            await until_known(lambda: self.store.publish_messages(batch))
        except Exception as caught:  # noqa: BLE001 - no caller may wait for ever
            error = caught
        except BaseException as caught:
            error = caught
            raise
        finally:
            for done in told:
                done(type(error)(*error.args) if isinstance(error, StoreError) else error)
