"""The bus in SQLite: messages, subscriptions and deliveries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Struct, structs

from batuta.journal.audit import Act, Changed
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
from batuta.stores.sqlite.database.base import Base
from batuta.stores.sqlite.database.unit_of_work import UnitOfWork

S = TypeVar("S", bound=Struct)

_AFTER_ALL = 2**63 - 1
_MANY = 100
"""Messages that take long enough to write for that to be done in a thread."""


def publish(unit: UnitOfWork, messages: Sequence[NewMessage]) -> list[str]:
    """Write messages, in a transaction. Returns the ids of those that are new."""
    shared = {"namespace": unit.namespace, "now": unit.now}
    fresh = [message.id for message in messages if unit.change("publish_message", structs.asdict(message) | shared)]
    if fresh:
        unit.tell_of_bus()
    return fresh


class BusVerbs(Base):
    """The part of the store that is about the bus."""

    async def publish_messages(self, messages: Sequence[NewMessage]) -> list[str]:
        many = len(messages) > _MANY
        return await self._write(lambda unit: publish(unit, messages), small=len(messages) <= 2, aside=many)

    async def put_subscription(self, row: SubscriptionRow, *, from_start: bool = False) -> SubscriptionRow:
        values = structs.asdict(row) | {"namespace": self.namespace, "now": self.clock_now()}
        every = values | {"first": 0, "last": _AFTER_ALL}

        def work(unit: UnitOfWork) -> SubscriptionRow:
            unit.tell_of_bus()
            if unit.finds("subscription", values):
                unit.change("order_subscription", values)
            else:
                _take(unit, every)  # those of before are for others
                unit.change("put_subscription", values)
                if from_start:
                    unit.change("hand_out", every | {"taken": 1})
            return unit.structs(SubscriptionRow, "subscription", values)[0]

        return await self._write(work)

    async def drop_subscription(self, name: str, act: Act | None = None) -> bool:
        values = {"namespace": self.namespace, "name": name}

        def work(unit: UnitOfWork) -> bool:
            if not unit.change("drop_subscription", values):
                return False
            unit.change("drop_deliveries", values)
            unit.record(act, [Changed(target=name)])
            return True

        return await self._write(work)

    async def bus_turn(self, names: Sequence[str], begun: Sequence[Begun], limit: int) -> BusTurn:
        shared: dict[str, Any] = {"namespace": self.namespace, "limit": limit, "room": WINDOW}
        rows = [structs.asdict(row) | {"run_id": row.run_id.bytes} | shared for row in begun]

        def work(unit: UnitOfWork) -> BusTurn:
            unit.change_each("begin_delivery", rows)
            ended = unit.rows("end_deliveries", shared)
            keys = {(subscription, key) for subscription, key in ended if key}
            unit.change_each("next_of_key", [shared | {"subscription": of, "key": key} for of, key in keys])
            row = unit.row("new_messages", shared)
            found = 0 if row is None else row[2]
            if row is not None and found:
                _take(unit, shared | {"first": row[0], "last": row[1]})
            return BusTurn(_ready(unit, names, shared), found == limit)

        return await self._write(work, aside=limit > _MANY)

    async def unsent_messages(self, via: str, limit: int) -> list[StoredMessage]:
        return self._read_bus(StoredMessage, "unsent_messages", via=via, limit=limit)

    async def sent_messages(self, numbers: Sequence[int]) -> None:
        rows = [{"namespace": self.namespace, "number": number} for number in numbers]
        await self._write(lambda unit: unit.change_each("sent_message", rows))

    async def bus_status(self) -> BusStatus:
        return BusStatus(
            topics=self._read_bus(TopicStatus, "topics", most=MOST_COUNTED),
            subscriptions=self._read_bus(SubscriptionStatus, "subscriptions", most=MOST_COUNTED),
        )

    async def messages(self, topic: str | None, before: int | None = None, limit: int = 50) -> list[StoredMessage]:
        values = {"before": _AFTER_ALL if before is None else before, "limit": limit}
        if topic is None:
            return self._read_bus(StoredMessage, "all_messages", **values)
        return self._read_bus(StoredMessage, "topic_messages", topic=topic, **values)

    async def rewrite_messages(self, bodies: Mapping[int, str]) -> None:
        rows = [{"namespace": self.namespace, "number": number, "body": body} for number, body in bodies.items()]
        await self._write(lambda unit: unit.change_each("rewrite_body_of_bus", rows), aside=True)

    async def prune_messages(self, keep: int, limit: int) -> int:
        values = {"namespace": self.namespace, "before": self.clock_now() - keep, "limit": limit}
        return await self._write(lambda unit: unit.change("prune_messages", values))

    def _read_bus(self, kind: type[S], statement: str, **values: Any) -> list[S]:
        return self._structs(kind, statement, values | {"namespace": self.namespace})


def _take(unit: UnitOfWork, values: dict[str, Any]) -> None:
    """Hand new messages from the first to the last of these numbers to all subscriptions."""
    unit.change("hand_out", values | {"name": None, "taken": 0})
    unit.change("take_messages", values)


def _ready(unit: UnitOfWork, names: Sequence[str], shared: dict[str, Any]) -> list[Delivery]:
    """The oldest deliveries of these subscriptions that are to become runs."""
    found = [
        (number, name) for name in names for (number,) in unit.rows("ready_deliveries", shared | {"subscription": name})
    ]
    return [
        delivery
        for number, name in sorted(found)[: shared["limit"]]
        for delivery in unit.structs(Delivery, "ready_delivery", shared | {"subscription": name, "number": number})
    ]
