"""Messages of the bus, subscriptions, and what is still to be delivered. Values, no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from batuta.ids import RunId
from batuta.journal.audit import Act
from batuta.journal.codec_envelope import Payload

DELIVERY = "bus:"
"""Prefix of the names of jobs that deliver, and of the ids of their runs."""
WINDOW = 1_000
"""Deliveries of one subscription that are open runs at once. The others wait in a table that is cheaper than runs."""
MOST_COUNTED = 10_000
"""Where a count stops."""


class NewMessage(Struct, kw_only=True):
    """A message to be published. A second one of the same topic, subscription and id is not kept."""

    topic: str
    id: str
    key: str = ""
    """Messages of one key are delivered one after the other, in order. Empty: in any order."""
    body: Payload
    """JSON of the whole message."""
    subscription: str = ""
    """The only subscription that gets it; empty: all of its topic."""
    via: str = ""
    """The broker that it is to be sent to; empty: it is delivered from this store."""


class StoredMessage(NewMessage, kw_only=True):
    """Messages and subscriptions in a store."""

    number: int
    """Rises in order of publication."""
    at: int
    taken: bool
    """It was handed to the subscriptions, or to the broker."""


class SubscriptionRow(Struct, kw_only=True):
    """Who gets the messages of a topic."""

    name: str
    topic: str
    via: str = ""
    """The broker that its messages come from; empty: this store."""
    ordered: bool = True
    """Whether messages of one key wait for each other."""
    created_at: int = 0


class Delivery(Struct, kw_only=True):
    """A message that a subscription is to get now: those before it of the same key are done."""

    subscription: str
    number: int
    topic: str
    id: str
    key: str
    body: Payload
    at: int


class Begun(Struct, kw_only=True):
    """A delivery that is a run now."""

    subscription: str
    number: int
    run_id: RunId


class BusTurn(Struct):
    """The work for one turn of the bus."""

    deliveries: list[Delivery]
    """They are to become runs."""
    more: bool
    """There may be more new messages than one turn takes."""


class SubscriptionStatus(SubscriptionRow, kw_only=True):
    """A subscription, and what it has yet to get. Counts stop at MOST_COUNTED."""

    waiting: int
    """Published, and no run yet."""
    running: int
    """Open runs."""
    oldest_at: int | None
    """When the first of them was published."""
    behind: int | None = None
    """Messages that its broker still holds for it; None: it has none, or does not say. No store knows it."""


class TopicStatus(Struct, kw_only=True):
    """A topic with messages or subscriptions. The count stops at MOST_COUNTED."""

    name: str
    messages: int
    """Messages that are kept."""
    unsent: int
    """Messages that wait for a broker."""
    last_at: int | None


class BusStatus(Struct, kw_only=True):
    """The bus of a namespace."""

    topics: list[TopicStatus]
    """By name, 500 at most."""
    subscriptions: list[SubscriptionStatus]
    """By name."""


class BusStore(Protocol):
    """The part of a store that keeps messages."""

    async def publish_messages(self, messages: Sequence[NewMessage]) -> list[str]:
        """Write them, in order. Returns the ids of those that are new."""
        ...

    async def put_subscription(self, row: SubscriptionRow, *, from_start: bool = False) -> SubscriptionRow:
        """Add a subscription; of one that is there only `ordered` changes. Returns the one that is there then.

        A new one gets every message whose publication commits later. It may get some from before, and with
        `from_start` gets all that are kept.
        """
        ...

    async def drop_subscription(self, name: str, act: Act | None = None) -> bool:
        """Forget it and what it has yet to get, but for open runs. False when there is none."""
        ...

    async def bus_turn(self, names: Sequence[str], begun: Sequence[Begun], limit: int) -> BusTurn:
        """Note deliveries that are runs now, forget those whose runs have ended, hand new messages to subscriptions,
        and return deliveries of these subscriptions that are to become runs, oldest first.

        The same delivery is returned until it was noted. Of a key only the first is returned until its run has ended.
        Of a subscription so many that at most WINDOW are runs. Takes `limit` new messages, and returns so many at most.
        """
        ...

    async def unsent_messages(self, via: str, limit: int) -> list[StoredMessage]:
        """Messages that wait for that broker, by number."""
        ...

    async def sent_messages(self, numbers: Sequence[int]) -> None:
        """The broker has them."""
        ...

    async def bus_status(self) -> BusStatus: ...

    async def messages(self, topic: str | None, before: int | None = None, limit: int = 50) -> list[StoredMessage]:
        """Messages of a topic, or of all, with numbers < before, newest first."""
        ...

    async def rewrite_messages(self, bodies: Mapping[int, str]) -> None:
        """Write the bodies of messages otherwise, by number. Everything else in their rows stays; missing ones stay
        missing."""
        ...

    async def prune_messages(self, keep: int, limit: int) -> int:
        """Delete up to `limit` messages that are older than `keep` microseconds and were delivered, or sent, oldest
        first. Returns how many."""
        ...
