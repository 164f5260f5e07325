"""The bus on Apache Pulsar (extra `pulsar`).

Topics of ours are topics of one namespace of Pulsar, subscriptions are Key_Shared: of a key one consumer at a time gets
messages, whichever workers there are.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote, urlsplit
from urllib.request import urlopen

from msgspec import DecodeError, Struct, json

from batuta.bus.broker import Receive, Sent
from batuta.bus.cloudevents import CONTENT_TYPE, event_of, received
from batuta.errors import BusUnavailable, InvalidURL, MissingExtra
from batuta.journal.bus.messages import NewMessage, StoredMessage

_PATIENCE = 30.0
_BATCH = 500
_GATHER = 0.005
_SEND_MILLIS = 10_000
_FATAL = "TopicNotFound InvalidTopicName MessageTooBig TopicTerminated InvalidMessage IncompatibleSchema".split()
"""Errors after which no other try helps."""


class _Subscription(Struct):
    msgBacklog: int  # noqa: N815 - Pulsar's word


class _Stats(Struct):
    subscriptions: dict[str, _Subscription] = {}


class PulsarBus:
    """Pulsar at `pulsar://host:6650` (TLS: `pulsar+ssl://`).

    `namespace`: of Pulsar, where the topics are. `admin_url`: of its web service, to know how far subscriptions are
    behind. `options` are those of `pulsar.Client`, such as `authentication`.
    """

    name = "pulsar"

    def __init__(self, url: str, *, namespace: str = "public/default", admin_url: str = "", **options: Any) -> None:
        if urlsplit(url).scheme not in ("pulsar", "pulsar+ssl"):
            raise InvalidURL(f"{url!r} is no address of Pulsar: use pulsar://host:6650 or pulsar+ssl://host:6651")
        try:
            import pulsar  # here: it is large
            import pulsar.asyncio
        except ImportError as error:
            raise MissingExtra("the bus on Pulsar", "pulsar") from error
        self.url, self._namespace, self._admin_url = url, namespace, admin_url.rstrip("/")
        self._pulsar: Any = pulsar
        self._options = {
            "operation_timeout_seconds": round(_PATIENCE),
            "connection_timeout_ms": 5_000,
            "logger": pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        } | options
        self._client: Any = None
        self._producers: dict[str, Any] = {}

    def topic(self, topic: str) -> str:
        """The full name of a topic."""
        return f"persistent://{self._namespace}/{quote(topic, safe='')}"

    # -- sending

    async def send(self, messages: Sequence[StoredMessage]) -> Sent:
        sent = Sent(numbers=[], refused={})
        tasks: list[tuple[StoredMessage, asyncio.Task[Any]]] = []
        try:
            async with asyncio.timeout(_PATIENCE):
                for message in messages:
                    try:
                        content, producer = json.encode(event_of(message)), await self._producer(message.topic)
                    except (DecodeError, RecursionError) as error:
                        sent.refused[message.number] = f"it cannot be read: {error}"
                    except Exception as error:  # noqa: BLE001 - the driver's own
                        if not self._is_fatal(error):
                            sent.away = _told(error)
                            break
                        sent.refused[message.number] = _told(error)
                    else:
                        options = {"partition_key": message.key} if message.key else {}
                        properties = {"content-type": CONTENT_TYPE}
                        tasks.append(
                            (message, asyncio.ensure_future(producer.send(content, properties=properties, **options)))
                        )
                await asyncio.gather(*(task for _, task in tasks), return_exceptions=True)
        except TimeoutError:
            sent.away = f"{self.url} did not answer within {_PATIENCE:g} s"
        self._settle(sent, tasks)
        return sent

    def _settle(self, sent: Sent, tasks: Sequence[tuple[StoredMessage, asyncio.Task[Any]]]) -> None:
        """Up to the first that may be sent later: what comes after it must not overtake it."""
        for message, task in tasks:
            error = task.exception() if task.done() and not task.cancelled() else BusUnavailable("no answer")
            if error is None:
                sent.numbers.append(message.number)
            elif self._is_fatal(error):
                sent.refused[message.number] = _told(error)
            else:
                sent.away = sent.away or _told(error)
                self._producers.pop(message.topic, None)
                return

    async def _producer(self, topic: str) -> Any:
        if topic not in self._producers:
            self._producers[topic] = await self._opened().create_producer(
                self.topic(topic),
                send_timeout_millis=_SEND_MILLIS,
                block_if_queue_full=True,
                batching_enabled=True,
                batching_type=self._pulsar.BatchingType.KeyBased,
                batching_max_publish_delay_ms=2,
            )
        return self._producers[topic]

    def _is_fatal(self, error: BaseException) -> bool:
        result = error.error() if isinstance(error, self._pulsar.asyncio.PulsarException) else None
        return result is not None and result.name in _FATAL

    # -- receiving

    async def consume(self, topic: str, name: str, *, from_start: bool, begun: Callable[[], None], to: Receive) -> None:
        kinds, position = self._pulsar.ConsumerType, self._pulsar.InitialPosition
        try:
            consumer = await self._opened().subscribe(
                self.topic(topic),
                name,
                consumer_type=kinds.KeyShared,
                initial_position=position.Earliest if from_start else position.Latest,
                receiver_queue_size=2 * _BATCH,
            )
        except self._pulsar.asyncio.PulsarException as error:
            raise BusUnavailable(_told(error)) from error
        begun()
        pending: asyncio.Task[Any] | None = None
        try:
            while True:
                batch, pending = await _gathered(consumer, pending)
                await to([self._received(topic, name, one) for one in batch])
                for one in batch:
                    await consumer.acknowledge(one)
        except self._pulsar.asyncio.PulsarException as error:
            raise BusUnavailable(_told(error)) from error
        finally:
            if pending is not None:
                pending.add_done_callback(_looked_at)
                pending.cancel()
            # What was received and not acknowledged is given to another consumer.
            await asyncio.wait([asyncio.ensure_future(consumer.close())], timeout=5)

    def _received(self, topic: str, name: str, one: Any) -> NewMessage:
        at = one.publish_timestamp() * 1000
        return received(topic, name, one.data(), id=str(one.message_id()), key=_key_of(one), time=at)

    async def behind(self, topic: str, name: str) -> int | None:
        if not self._admin_url:
            return None
        place, _, last = self.topic(topic).removeprefix("persistent://").rpartition("/")
        path = f"/admin/v2/persistent/{place}/{quote(last, safe='')}/stats"
        return await asyncio.to_thread(_backlog, self._admin_url + path, name)

    # -- life

    def _opened(self) -> Any:
        if self._client is None:
            self._client = self._pulsar.asyncio.Client(self.url, **self._options)
        return self._client

    async def close(self) -> None:
        client, self._client = self._client, None
        self._producers.clear()
        if client is not None:
            await asyncio.wait([asyncio.ensure_future(client.close())], timeout=5)


async def _gathered(consumer: Any, pending: asyncio.Task[Any] | None) -> tuple[list[Any], asyncio.Task[Any] | None]:
    """At least one message, and those that come within a moment; and the receiving that is still under way."""
    batch: list[Any] = []
    until = 0.0
    while True:
        if pending is None:
            pending = asyncio.ensure_future(consumer.receive())
        await asyncio.wait([pending], timeout=max(0.0, until - time.monotonic()) if batch else None)
        if not pending.done():
            return batch, pending
        one, pending = pending.result(), None
        until = until or time.monotonic() + _GATHER
        batch.append(one)
        if len(batch) >= _BATCH:
            return batch, None


def _key_of(one: Any) -> str:
    try:
        return one.partition_key() or ""
    except UnicodeDecodeError:  # another program's: without a key it has no order, and holds up no others
        return ""


def _looked_at(task: asyncio.Task[Any]) -> None:
    """Ignores the driver's own error for a closed consumer."""
    if not task.cancelled():
        task.exception()


def _backlog(url: str, name: str) -> int | None:
    try:
        with urlopen(url, timeout=3) as answer:  # noqa: S310 - the address is the operator's
            found = json.decode(answer.read(), type=_Stats).subscriptions.get(name)
    except (OSError, DecodeError, RecursionError):
        return None
    return None if found is None else found.msgBacklog


def _told(error: BaseException) -> str:
    return f"Pulsar: {error}"
