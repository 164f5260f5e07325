"""What another server does for the bus: it carries messages from the stores of publishers to those of subscribers.

Messages are published into the store, with the transaction of their publisher, and sent to the broker from there. A
message that comes from it is written into the store before it is acknowledged, and delivered from there, in order by
key. So a broker that is away holds up nothing but the way of the messages.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from msgspec import Struct

from batuta.journal.bus.messages import NewMessage, StoredMessage

Receive = Callable[[Sequence[NewMessage]], Awaitable[None]]
"""Writes messages of a subscription; they are durable when it returns."""


class Sent(Struct, kw_only=True):
    """The outcome of a batch."""

    numbers: list[int]
    """Messages that the broker has, by their numbers."""
    refused: dict[int, str] = {}
    """Messages that it will never take, and why."""
    away: str = ""
    """Why the rest was not sent: it may be sent later. Empty: nothing is left."""


class Broker(Protocol):
    """An implementation of the bus on another server."""

    @property
    def name(self) -> str:
        """Of the kind of broker: "pulsar"."""
        ...

    async def send(self, messages: Sequence[StoredMessage]) -> Sent:
        """Send the messages. Those of one topic and key keep their order. Bounded in time."""
        ...

    async def consume(self, topic: str, name: str, *, from_start: bool, begun: Callable[[], None], to: Receive) -> None:
        """Give every message of the topic to this subscription, one holder of a key at a time, and acknowledge what
        `to` has written. Runs until cancelled; raises when the broker is away, to be called again. `begun` is called
        when the subscription is there."""
        ...

    async def behind(self, topic: str, name: str) -> int | None:
        """How many messages the broker still holds for the subscription; None: not known."""
        ...

    async def close(self) -> None: ...
