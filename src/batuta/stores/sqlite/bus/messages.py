"""The bus in SQLite: messages, subscriptions and deliveries."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
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
from batuta.journal.records import Hint
from batuta.stores.sqlite.audit import record
from batuta.stores.sqlite.database.connection import Q
from batuta.stores.sqlite.database.readers import Readers
from batuta.stores.sqlite.database.rows import one
from batuta.stores.sqlite.database.writer import Writer

S = TypeVar("S", bound=Struct)

_AFTER_ALL = 2**63 - 1
_MANY = 100
"""Messages that take long enough to write for that to be done in a thread."""


def publish(cursor: sqlite3.Cursor, namespace: str, messages: Sequence[NewMessage], now: int) -> list[str]:
    """Write messages, in a transaction. Returns the ids of those that are new."""
    shared = {"namespace": namespace, "now": now}
    return [
        message.id
        for message in messages
        if cursor.execute(Q["publish_message"], structs.asdict(message) | shared).rowcount
    ]


class BusVerbs(ABC):
    """The part of the store that is about the bus."""

    namespace: str
    _writer: Writer
    _readers: Readers

    @abstractmethod
    def clock_now(self) -> int: ...

    @abstractmethod
    def tell(self, hint: Hint) -> None: ...

    async def publish_messages(self, messages: Sequence[NewMessage]) -> list[str]:
        now, many = self.clock_now(), len(messages) > _MANY
        work = lambda cursor: publish(cursor, self.namespace, messages, now)  # noqa: E731 - a name for one argument
        fresh = await self._writer.write(work, small=len(messages) <= 2, aside=many)
        self.tell(Hint(bus=bool(fresh)))
        return fresh

    async def put_subscription(self, row: SubscriptionRow, *, from_start: bool = False) -> SubscriptionRow:
        values = structs.asdict(row) | {"namespace": self.namespace, "now": self.clock_now()}
        every = values | {"first": 0, "last": _AFTER_ALL}

        def work(cursor: sqlite3.Cursor) -> SubscriptionRow:
            if _structs(SubscriptionRow, cursor.execute(Q["subscription"], values)):
                cursor.execute(Q["order_subscription"], values)
            else:
                _take(cursor, every)  # those of before are for others
                cursor.execute(Q["put_subscription"], values)
                if from_start:
                    cursor.execute(Q["hand_out"], every | {"taken": 1})
            return _structs(SubscriptionRow, cursor.execute(Q["subscription"], values))[0]

        found = await self._writer.write(work)
        self.tell(Hint(bus=True))
        return found

    async def drop_subscription(self, name: str, act: Act | None = None) -> bool:
        values, now = {"namespace": self.namespace, "name": name}, self.clock_now()

        def work(cursor: sqlite3.Cursor) -> bool:
            if not cursor.execute(Q["drop_subscription"], values).rowcount:
                return False
            cursor.execute(Q["drop_deliveries"], values)
            record(cursor, self.namespace, now, act, [Changed(target=name)])
            return True

        return await self._writer.write(work)

    async def bus_turn(self, names: Sequence[str], begun: Sequence[Begun], limit: int) -> BusTurn:
        shared: dict[str, Any] = {"namespace": self.namespace, "limit": limit, "room": WINDOW}
        rows = [structs.asdict(row) | {"run_id": row.run_id.bytes} | shared for row in begun]

        def work(cursor: sqlite3.Cursor) -> BusTurn:
            cursor.executemany(Q["begin_delivery"], rows)
            ended = cursor.execute(Q["end_deliveries"], shared).fetchall()
            keys = {(subscription, key) for subscription, key in ended if key}
            cursor.executemany(Q["next_of_key"], [shared | {"subscription": of, "key": key} for of, key in keys])
            row = one(cursor.execute(Q["new_messages"], shared))
            found = 0 if row is None else row[2]
            if row is not None and found:
                _take(cursor, shared | {"first": row[0], "last": row[1]})
            return BusTurn(_ready(cursor, names, shared), found == limit)

        return await self._writer.write(work, aside=limit > _MANY)

    async def unsent_messages(self, via: str, limit: int) -> list[StoredMessage]:
        return self._read_bus(StoredMessage, "unsent_messages", via=via, limit=limit)

    async def sent_messages(self, numbers: Sequence[int]) -> None:
        rows = [{"namespace": self.namespace, "number": number} for number in numbers]
        await self._writer.write(lambda cursor: cursor.executemany(Q["sent_message"], rows))

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
        await self._writer.write(lambda cursor: cursor.executemany(Q["rewrite_body_of_bus"], rows), aside=True)

    async def prune_messages(self, keep: int, limit: int) -> int:
        values = {"namespace": self.namespace, "before": self.clock_now() - keep, "limit": limit}
        return await self._writer.write(lambda cursor: cursor.execute(Q["prune_messages"], values).rowcount)

    def _read_bus(self, kind: type[S], statement: str, **values: Any) -> list[S]:
        given = values | {"namespace": self.namespace}
        return self._readers.read(lambda connection: _structs(kind, connection.execute(Q[statement], given)))


def _take(cursor: sqlite3.Cursor, values: dict[str, Any]) -> None:
    """Hand new messages from the first to the last of these numbers to all subscriptions."""
    cursor.execute(Q["hand_out"], values | {"name": None, "taken": 0})
    cursor.execute(Q["take_messages"], values)


def _ready(cursor: sqlite3.Cursor, names: Sequence[str], shared: dict[str, Any]) -> list[Delivery]:
    """The oldest deliveries of these subscriptions that are to become runs."""
    found = [
        (number, name)
        for name in names
        for (number,) in cursor.execute(Q["ready_deliveries"], shared | {"subscription": name})
    ]
    return [
        delivery
        for number, name in sorted(found)[: shared["limit"]]
        for delivery in _structs(
            Delivery, cursor.execute(Q["ready_delivery"], shared | {"subscription": name, "number": number})
        )
    ]


def _structs(kind: type[S], rows: sqlite3.Cursor) -> list[S]:
    """Rows whose columns are the fields of the struct, in their order."""
    fields = kind.__struct_fields__
    flags = [field for field in ("taken", "ordered") if field in fields]
    found = [dict(zip(fields[: len(row)], row, strict=True)) for row in rows]
    return [kind(**row | {flag: bool(row[flag]) for flag in flags}) for row in found]
