"""Hints between processes: NOTIFY after the fact, at most one in ten milliseconds, and LISTEN with catching up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import DecodeError, json
from msgspec.structs import replace

from batuta.errors import StoreError
from batuta.ids import RunId, digest_of, jitter, new_message_id
from batuta.journal.records import Hint
from batuta.stores.contract.listeners import NOTHING, Listeners
from batuta.stores.postgres.database.connection import DRIVER_ERRORS, Session, end

PAUSE_SECONDS = 0.01
MOST_IDS = 150
"""More of them do not fit into a payload (8,000 bytes)."""
ROUNDS = 2
"""Turns of the event loop after which a reader of a result has started its next run, and its commit is on its way."""
CHECK_SECONDS = 15.0
LONGEST_WAIT_SECONDS = 5.0


class Payload(Hint, kw_only=True, omit_defaults=True):
    """A hint as it is sent, without `partner`."""

    sender: str


_encode = json.Encoder().encode
_decode = json.Decoder(Payload).decode

FROM_A_GUEST = _encode(Payload(sender="guest", due=True, bus=True)).decode()
"""Sent by the database when a caller's own transaction commits; every process receives it, also the caller's."""


def channel_of(schema: str, namespace: str) -> str:
    """The channel of a namespace. Channel names are short, namespaces need not be."""
    return "batuta_" + digest_of(schema, namespace, size=16).hex()


class Announcer:
    """Tells this process at once, and the others soon. Hints may get lost; nothing depends on them."""

    def __init__(self, listeners: Listeners, notify: Callable[[list[str]], Awaitable[object]]) -> None:
        self.name = new_message_id()
        self._listeners = listeners
        self._notify = notify
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unsent = Payload(sender=self.name)
        self._after: list[Hint] = []
        self._sending: asyncio.Task[None] | None = None
        self._sent_at = 0.0

    def open(self) -> None:
        self._loop = asyncio.get_running_loop()

    async def close(self) -> None:
        """Send what waits, and no more after that."""
        self._tell_waiting(0)
        self._loop = None
        if self._sending is not None:
            await asyncio.wait([self._sending])

    def tell(self, hint: Hint) -> None:
        """From the store's own loop."""
        if hint != NOTHING:
            self._listeners.tell(hint)
            self._queue(hint)

    def tell_after(self, hint: Hint) -> None:
        """The same, but a lone commit goes on first: sending takes as long as all that a run's end takes in Python,
        and can happen while the database works on the next commit."""
        if hint.due or self._loop is None:
            self.tell(hint)
            return
        self._after.append(hint)
        if len(self._after) == 1:
            self._loop.call_soon(self._tell_waiting, ROUNDS)

    def _tell_waiting(self, rounds: int) -> None:
        if rounds and self._loop is not None:
            self._loop.call_soon(self._tell_waiting, rounds - 1)
            return
        waiting, self._after = self._after, []
        for hint in waiting:
            self.tell(hint)

    def tell_from_thread(self, hint: Hint) -> None:
        """From the loop of a heartbeat."""
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self.tell, hint)
            except RuntimeError:
                pass  # the loop is closed: there are no listeners left

    def _queue(self, hint: Hint) -> None:
        unsent = self._unsent
        unsent.due = unsent.due or hint.due
        unsent.schedules = unsent.schedules or hint.schedules
        unsent.partners = unsent.partners or hint.partners
        unsent.bus = unsent.bus or hint.bus
        unsent.messages += hint.messages
        unsent.closed = _joined(unsent.closed, hint.closed)
        unsent.answered = _joined(unsent.answered, hint.answered)
        if self._loop is not None and (self._sending is None or self._sending.done()):
            self._sending = self._loop.create_task(self._send(self._loop))

    async def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        """One after the other, and never so fast that the others do nothing but listen."""
        while True:
            await asyncio.sleep(max(0.0, self._sent_at + PAUSE_SECONDS - loop.time()))
            payloads = self._take()
            if not payloads:
                return
            self._sent_at = loop.time()
            try:
                await self._notify(payloads)
            except StoreError:
                pass  # polling finds it

    def _take(self) -> list[str]:
        unsent, self._unsent = self._unsent, Payload(sender=self.name)
        if unsent == self._unsent:
            return []
        messages = list(dict.fromkeys(unsent.messages))
        ids = len(messages) + len(unsent.closed or ()) + len(unsent.answered or ())
        if unsent.closed is not None and unsent.answered is not None and ids <= MOST_IDS:
            payloads = [replace(unsent, messages=messages)]
        else:
            payloads = [
                replace(unsent, messages=[], answered=[]),
                Payload(sender=self.name, answered=unsent.answered),
                *(
                    Payload(sender=self.name, messages=messages[first : first + MOST_IDS])
                    for first in range(0, len(messages), MOST_IDS)
                ),
            ]
        return [_encode(payload).decode() for payload in payloads]


def _joined(ids: list[RunId] | None, more: list[RunId] | None) -> list[RunId] | None:
    """None when they are more than are named at once, which need not be told apart then: UUIDs hash slowly."""
    if ids is None or more is None or len(more) > MOST_IDS:
        return None
    together = ids + more
    if len(together) > MOST_IDS:
        together = list(dict.fromkeys(together))
    return together if len(together) <= MOST_IDS else None


def anything() -> Hint:
    """Whatever it is, it may have happened."""
    return Hint(due=True, closed=None, answered=None, schedules=True, partners=True, bus=True)


class HintListener:
    """Listens on its own connection. After each time that it could not listen, it says so."""

    def __init__(self, session: Session, channel: str, own_name: str, listeners: Listeners) -> None:
        self._session = session
        self._channel = channel
        self._own_name = own_name
        self._listeners = listeners
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        """The connection was lost, or this is being closed."""
        self._closing = False

    def start(self) -> None:
        """Begin to listen, once."""
        if self._task is None:
            self._closing = False
            self._task = asyncio.get_running_loop().create_task(self._listen())

    async def close(self) -> None:
        task, self._task = self._task, None
        self._closing = True
        self._news.set()
        if task is not None:
            await end(task)
        await self._session.close()

    async def _listen(self) -> None:
        wait = 0.1
        while not self._closing:
            self._news.clear()
            try:
                connection = await self._session.connect()
                connection.add_termination_listener(lambda _connection: self._news.set())
                await connection.add_listener(self._channel, self._hear)
                self._listeners.tell(anything())
                wait = 0.1
                while not await self._hears_news_within(CHECK_SECONDS):
                    # A connection may die without a word; only a question shows it.
                    await connection.fetchval("SELECT 1", timeout=CHECK_SECONDS / 3)
            except (StoreError, *DRIVER_ERRORS):
                self._session.drop()  # sent by another user of the database; hints are only hints
            if not self._closing:
                await asyncio.sleep(wait * (0.5 + jitter()))
                wait = min(wait * 2, LONGEST_WAIT_SECONDS)

    async def _hears_news_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self._news.wait()
        except TimeoutError:
            return False

    def _hear(self, _connection: Any, _pid: int, _channel: str, payload: object) -> None:
        try:
            said = _decode(str(payload))
        except (DecodeError, RecursionError):
            return  # not ours
        if said.sender != self._own_name:
            said.partner = None  # believed only of this process
            self._listeners.tell(said)


class Ticker:
    """Listens to nothing, and regularly says that something may have happened. For poolers."""

    def __init__(self, listeners: Listeners, seconds: float) -> None:
        self._listeners = listeners
        self._seconds = seconds
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._tick())

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _tick(self) -> None:
        while True:
            self._listeners.tell(anything())
            await asyncio.sleep(self._seconds * (0.9 + 0.2 * jitter()))
