"""The way to and from a broker: a job sends what waits in the store, and consumers write what comes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from msgspec import json

from batuta.authoring.call_options import ActivityOptions
from batuta.authoring.client.enqueue import JobRequest
from batuta.authoring.client.messages import Message
from batuta.authoring.jobs import Job
from batuta.authoring.retry import Retry
from batuta.authoring.services import Backend
from batuta.bus.broker import Broker
from batuta.bus.subscriptions import Subscription
from batuta.errors import BatutaError, BusUnavailable, NonRetryable
from batuta.journal.bus.messages import DELIVERY, StoredMessage
from batuta.journal.codec_envelope import is_coded
from batuta.journal.records import Hint
from batuta.names import LONGEST_ID, joined, shortened

log = logging.getLogger("batuta.bus")

_BATCH = 500
_LINGER = 2.0
"""How long the job that sends waits for more before it ends."""
_AGAIN = Retry(attempts=0, first=0.2, factor=2, longest=5.0)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0


class Relay:
    """Sends the messages of this namespace to the broker. Its job is unique, so one worker does it at a time."""

    def __init__(self, backend: Backend, broker: Broker) -> None:
        self._backend, self._broker, self._store = backend, broker, backend.bus.store
        self._news = asyncio.Event()
        self._send_name, self._refused_name = f"relay.{broker.name}", f"{DELIVERY}relay.{broker.name}"
        self.queue = self._send_name
        """Its own queue: every worker sends, whatever queues it serves."""

    def jobs(self) -> list[Job[..., Any]]:
        """The jobs that its worker must have."""

        async def send() -> int:
            return await self._send_all()

        async def send_refused(message: Message[Any]) -> None:
            await self._send_refused(message)

        return [
            Job(send, self._send_name, ActivityOptions(retry=_AGAIN)),
            Job(send_refused, self._refused_name, ActivityOptions(retry=Retry(attempts=1))),
        ]

    async def run(self) -> None:
        """See to it that the job is there while something is to be sent. Until cancelled."""
        undo = self._store.listen(self._hear)
        try:
            while True:
                with suppress(BatutaError):
                    if await self._store.unsent_messages(self._broker.name, 1):
                        await self._backend.enqueue(
                            JobRequest(job=self._send_name, input=b"[]", queue=self.queue, unique=self._broker.name)
                        )
                await self._rest(self._store.poll_seconds or 1.0)
        finally:
            undo()

    def _hear(self, hint: Hint) -> None:
        if hint.bus:
            self._news.set()

    async def _rest(self, seconds: float) -> bool:
        """Whether there is news."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()
        found = self._news.is_set()
        self._news.clear()
        return found

    async def _send_all(self) -> int:
        """Send all that waits, and what comes within a moment. Raises BusUnavailable."""
        count = 0
        while True:
            waiting = await self._store.unsent_messages(self._broker.name, _BATCH)
            readable = [one for one in waiting if not is_coded(one.body)]
            if waiting and not readable:
                raise BusUnavailable("messages went through a codec that this process does not have")
            if not readable:
                if not await self._rest(_LINGER):
                    return count
                continue
            sent = await self._broker.send(readable)
            await self._put_aside([one for one in readable if one.number in sent.refused], sent.refused)
            await self._store.sent_messages([*sent.numbers, *sent.refused])
            count += len(sent.numbers)
            if sent.away:
                raise BusUnavailable(sent.away)

    async def _put_aside(self, refused: Sequence[StoredMessage], why: dict[int, str]) -> None:
        """A message that the broker will never take is a dead letter: others must not wait for it."""
        for one in refused:
            log.warning("message %r of topic %r is refused: %s", one.id, one.topic, why[one.number])
            await self._backend.enqueue(
                JobRequest(
                    job=self._refused_name,
                    queue=self.queue,
                    input=f"[{one.body}]".encode(),
                    id=shortened(f"{self._refused_name}:{joined(one.topic, one.id)}", LONGEST_ID),
                    key=one.key,
                )
            )

    async def _send_refused(self, message: Message[Any]) -> None:
        body = json.encode(message).decode()
        one = StoredMessage(
            topic=message.topic, id=message.id, key=message.key, body=body, number=0, at=message.time, taken=True
        )
        sent = await self._broker.send([one])
        for why in sent.refused.values():
            raise NonRetryable(f"message {message.id!r} of topic {message.topic!r} is refused: {why}")
        if sent.away:
            raise BusUnavailable(sent.away)


class Consumer:
    """Writes what the broker has for one subscription into the store."""

    def __init__(self, backend: Backend, broker: Broker, subscription: Subscription) -> None:
        self._backend, self._broker, self._subscription = backend, broker, subscription
        self.begun = asyncio.Event()
        """The broker knows the subscription, or could not be reached."""

    async def run(self) -> None:
        """Until cancelled."""
        one, pause = self._subscription, _FIRST_PAUSE
        while True:
            try:
                await self._broker.consume(
                    one.topic,
                    one.name,
                    from_start=one.from_start,
                    begun=self.begun.set,
                    to=self._backend.bus.publish,
                )
            except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again
                log.warning("subscription %r gets no messages: %s", one.name, error)
            self.begun.set()
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
