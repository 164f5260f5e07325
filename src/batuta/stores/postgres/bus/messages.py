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
from batuta.stores.postgres.database.rows import record_of

_AFTER_ALL = 2**63 - 1


def message_columns(messages: Sequence[NewMessage]) -> tuple[list[str], ...]:
    """Columns for publish_messages, after the namespace."""
    rows = [(one.topic, one.subscription, one.via, one.id, one.key, one.body) for one in messages]
    return tuple(map(list, zip(*rows, strict=True))) if rows else ([], [], [], [], [], [])


class BusVerbs(Base):
    async def publish_messages(self, messages: Sequence[NewMessage]) -> list[str]:
        rows = await self._execute("publish_messages", *message_columns(messages))
        fresh: list[str] = rows[0]["fresh"]
        self._announcer.tell(Hint(bus=bool(fresh)))
        return fresh

    async def put_subscription(self, row: SubscriptionRow, *, from_start: bool = False) -> SubscriptionRow:
        rows = await self._execute("put_subscription", row.name, row.topic, row.via, row.ordered, from_start)
        self._announcer.tell(Hint(bus=True))
        return SubscriptionRow(**dict(rows[0]))

    async def drop_subscription(self, name: str, act: Act | None = None) -> bool:
        return bool(await self._execute("drop_subscription", name, *act_values(act)))

    async def bus_turn(self, names: Sequence[str], begun: Sequence[Begun], limit: int) -> BusTurn:
        columns = ([one.subscription for one in begun], [one.number for one in begun], [one.run_id for one in begun])
        rows = await self._execute("bus_turn", list(names), *columns, limit, WINDOW)
        found = [Delivery(**dict(row)) for row in rows if row["number"] is not None]
        return BusTurn(found, len(found) < len(rows))

    async def unsent_messages(self, via: str, limit: int) -> list[StoredMessage]:
        return await self._read_all(record_of(StoredMessage), "unsent_messages", via, limit)

    async def sent_messages(self, numbers: Sequence[int]) -> None:
        await self._execute("sent_messages", list(numbers))

    async def bus_status(self) -> BusStatus:
        return BusStatus(
            topics=await self._read_all(record_of(TopicStatus), "topics", MOST_COUNTED),
            subscriptions=await self._read_all(record_of(SubscriptionStatus), "subscriptions", MOST_COUNTED),
        )

    async def messages(self, topic: str | None, before: int | None = None, limit: int = 50) -> list[StoredMessage]:
        last = _AFTER_ALL if before is None else before
        if topic is None:
            return await self._read_all(record_of(StoredMessage), "all_messages", last, limit)
        return await self._read_all(record_of(StoredMessage), "topic_messages", topic, last, limit)

    async def rewrite_messages(self, bodies: Mapping[int, str]) -> None:
        await self._execute("rewrite_messages", list(bodies), list(bodies.values()))

    async def prune_messages(self, keep: int, limit: int) -> int:
        return len(await self._execute("prune_messages", keep, limit))
