"""The bus in PostgreSQL: messages, subscriptions and deliveries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from batuta.journal.audit import Act
from batuta.journal.bus.messages import (
    MOST_COUNTED,
    WINDOW,
    Begun,
    BusStatus,
    BusTurn,
    Delivery,
    NewMessage,
    StoredMessage,
    SubscriptionRow,
    SubscriptionStatus,
    TopicStatus,
)
from batuta.journal.records import Hint
from batuta.stores.postgres.audit import act_values
from batuta.stores.postgres.base import Base

_AFTER_ALL = 2**63 - 1


def message_columns(messages: Sequence[NewMessage]) -> tuple[list[str], ...]:
    """Columns for publish_messages, after the namespace."""
    rows = [(one.topic, one.subscription, one.via, one.id, one.key, one.body) for one in messages]
    return tuple(map(list, zip(*rows, strict=True))) if rows else ([], [], [], [], [], [])


class BusVerbs(Base):
    """The part of the store that is about the bus."""

    async def publish_messages(self, messages: Sequence[NewMessage]) -> list[str]:
        values = (self.namespace, *message_columns(messages))
        rows = await self._pool.write(self._sql["publish_messages"], *values)
        fresh: list[str] = rows[0]["fresh"]
        self._announcer.tell(Hint(bus=bool(fresh)))
        return fresh

    async def put_subscription(self, row: SubscriptionRow, *, from_start: bool = False) -> SubscriptionRow:
        values = (self.namespace, row.name, row.topic, row.via, row.ordered, from_start)
        rows = await self._pool.write(self._sql["put_subscription"], *values)
        self._announcer.tell(Hint(bus=True))
        return SubscriptionRow(**dict(rows[0]))

    async def drop_subscription(self, name: str, act: Act | None = None) -> bool:
        return bool(await self._pool.write(self._sql["drop_subscription"], self.namespace, name, *act_values(act)))

    async def bus_turn(self, names: Sequence[str], begun: Sequence[Begun], limit: int) -> BusTurn:
        columns = ([one.subscription for one in begun], [one.number for one in begun], [one.run_id for one in begun])
        rows = await self._pool.write(self._sql["bus_turn"], self.namespace, list(names), *columns, limit, WINDOW)
        found = [Delivery(**dict(row)) for row in rows if row["number"] is not None]
        return BusTurn(found, len(found) < len(rows))

    async def unsent_messages(self, via: str, limit: int) -> list[StoredMessage]:
        rows = await self._pool.read(self._sql["unsent_messages"], self.namespace, via, limit)
        return [StoredMessage(**dict(row)) for row in rows]

    async def sent_messages(self, numbers: Sequence[int]) -> None:
        await self._pool.write(self._sql["sent_messages"], self.namespace, list(numbers))

    async def bus_status(self) -> BusStatus:
        topics = await self._pool.read(self._sql["topics"], self.namespace, MOST_COUNTED)
        subscriptions = await self._pool.read(self._sql["subscriptions"], self.namespace, MOST_COUNTED)
        return BusStatus(
            topics=[TopicStatus(**dict(row)) for row in topics],
            subscriptions=[SubscriptionStatus(**dict(row)) for row in subscriptions],
        )

    async def messages(self, topic: str | None, before: int | None = None, limit: int = 50) -> list[StoredMessage]:
        last = _AFTER_ALL if before is None else before
        if topic is None:
            rows = await self._pool.read(self._sql["all_messages"], self.namespace, last, limit)
        else:
            rows = await self._pool.read(self._sql["topic_messages"], self.namespace, topic, last, limit)
        return [StoredMessage(**dict(row)) for row in rows]

    async def rewrite_messages(self, bodies: Mapping[int, str]) -> None:
        values = (self.namespace, list(bodies), list(bodies.values()))
        await self._pool.write(self._sql["rewrite_messages"], *values)

    async def prune_messages(self, keep: int, limit: int) -> int:
        return len(await self._pool.write(self._sql["prune_messages"], self.namespace, keep, limit))
