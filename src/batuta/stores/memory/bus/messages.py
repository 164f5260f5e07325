"""The bus in memory: messages, subscriptions and deliveries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import structs

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
from batuta.stores.memory.audit import record
from batuta.stores.memory.base import Base, verb
from batuta.stores.memory.tables import BusTables, DeliveryRow
from batuta.stores.memory.unit_of_work import UnitOfWork

_WAITS, _READY, _BEGUN = range(3)
_MOST_TOPICS = 500


def publish(unit: UnitOfWork, messages: Sequence[NewMessage]) -> list[str]:
    """Write messages. Returns the ids of those that are new."""
    bus, fresh = unit.tables.bus, []
    for message in messages:
        once = (message.topic, message.subscription, message.id)
        if once not in bus.known:
            bus.known.add(once)
            number = next(unit.numbers)
            bus.messages[number] = StoredMessage(**structs.asdict(message), number=number, at=unit.now, taken=False)
            fresh.append(message.id)
    unit.hint.bus = unit.hint.bus or bool(fresh)
    return fresh


class BusVerbs(Base):
    @verb
    def publish_messages(self, unit: UnitOfWork, messages: Sequence[NewMessage]) -> list[str]:
        return publish(unit, messages)

    @verb
    def put_subscription(self, unit: UnitOfWork, row: SubscriptionRow, *, from_start: bool = False) -> SubscriptionRow:
        bus = unit.tables.bus
        standing = bus.subscriptions.get(row.name)
        if standing is None:
            _take(bus)  # those of before are for others
            bus.subscriptions[row.name] = standing = structs.replace(row, created_at=unit.now)
            kept = [one for one in bus.messages.values() if one.taken and not one.subscription and not one.via]
            _hand_out(bus, [standing], kept if from_start else [])
        elif (standing.topic, standing.via) == (row.topic, row.via):
            standing.ordered = row.ordered
        unit.hint.bus = True
        return structs.replace(standing)

    @verb
    def drop_subscription(self, unit: UnitOfWork, name: str, act: Act | None = None) -> bool:
        bus = unit.tables.bus
        if bus.subscriptions.pop(name, None) is None:
            return False
        bus.deliveries = {place: row for place, row in bus.deliveries.items() if place[0] != name}
        record(unit, act, [Changed(target=name)])
        return True

    @verb
    def bus_turn(self, unit: UnitOfWork, names: Sequence[str], begun: Sequence[Begun], limit: int) -> BusTurn:
        bus = unit.tables.bus
        for one in begun:
            row = bus.deliveries.get((one.subscription, one.number))
            if row is not None and row.state == _READY:
                row.state, row.run_id = _BEGUN, one.run_id
        _forget_ended(unit)
        taken = _take(bus, limit)
        return BusTurn(_ready(bus, names)[:limit], taken == limit)

    @verb
    def unsent_messages(self, unit: UnitOfWork, via: str, limit: int) -> list[StoredMessage]:
        found = [one for one in unit.tables.bus.messages.values() if one.via == via and not one.taken]
        return [structs.replace(one) for one in found[:limit]]

    @verb
    def sent_messages(self, unit: UnitOfWork, numbers: Sequence[int]) -> None:
        for number in numbers:
            if (message := unit.tables.bus.messages.get(number)) is not None:
                message.taken = True

    @verb
    def bus_status(self, unit: UnitOfWork) -> BusStatus:
        bus = unit.tables.bus
        names = {one.topic for one in bus.messages.values()} | {one.topic for one in bus.subscriptions.values()}
        return BusStatus(
            topics=[_topic(bus, name) for name in sorted(names)[:_MOST_TOPICS]],
            subscriptions=[_status(bus, row) for _, row in sorted(bus.subscriptions.items())],
        )

    @verb
    def messages(
        self, unit: UnitOfWork, topic: str | None, before: int | None = None, limit: int = 50
    ) -> list[StoredMessage]:
        found = [one for one in reversed(unit.tables.bus.messages.values()) if topic in (None, one.topic)]
        return [structs.replace(one) for one in found if before is None or one.number < before][:limit]

    @verb
    def rewrite_messages(self, unit: UnitOfWork, bodies: Mapping[int, str]) -> None:
        for number, body in bodies.items():
            if (message := unit.tables.bus.messages.get(number)) is not None:
                unit.tables.bus.messages[number] = structs.replace(message, body=body)

    @verb
    def prune_messages(self, unit: UnitOfWork, keep: int, limit: int) -> int:
        bus, before = unit.tables.bus, unit.now - keep
        first = min((number for _, number in bus.deliveries), default=None)
        old = [one for one in list(bus.messages.values())[:limit] if first is None or one.number < first]
        gone = [one for one in old if one.taken and one.at <= before]
        for message in gone:
            del bus.messages[message.number]
            bus.known.discard((message.topic, message.subscription, message.id))
        return len(gone)


def _forget_ended(unit: UnitOfWork) -> None:
    deliveries = unit.tables.bus.deliveries
    ended = [place for place, row in deliveries.items() if row.state == _BEGUN and row.run_id not in unit.tables.open]
    for place in ended:
        key = deliveries.pop(place).key
        same = [(number, row) for (of, number), row in deliveries.items() if key and (of, row.key) == (place[0], key)]
        waiting = [number for number, row in same if row.state == _WAITS]
        if waiting:
            deliveries[place[0], min(waiting)].state = _READY


def _take(bus: BusTables, limit: int | None = None) -> int:
    """Hand new messages to all subscriptions. Returns how many."""
    new = [one for one in bus.messages.values() if not one.taken and not one.via][:limit]
    for message in new:
        message.taken = True
    _hand_out(bus, bus.subscriptions.values(), new)
    return len(new)


def _hand_out(bus: BusTables, to: Iterable[SubscriptionRow], messages: Iterable[StoredMessage]) -> None:
    busy = {(of, row.key) for (of, _), row in bus.deliveries.items() if row.key}
    subscriptions = list(to)
    for message in messages:
        for row in subscriptions:
            mine = not row.via if not message.subscription else row.name == message.subscription
            place = (row.name, message.number)
            if row.topic != message.topic or not mine or place in bus.deliveries:
                continue
            key = message.key if row.ordered else ""
            bus.deliveries[place] = DeliveryRow(key, _WAITS if (row.name, key) in busy else _READY, message.at)
            if key:
                busy.add((row.name, key))


def _ready(bus: BusTables, names: Sequence[str]) -> list[Delivery]:
    room = dict.fromkeys(names, WINDOW)
    for (of, _), row in bus.deliveries.items():
        if of in room:
            room[of] -= row.state == _BEGUN
    found: list[Delivery] = []
    for (of, number), row in sorted(bus.deliveries.items(), key=lambda item: (item[0][1], item[0][0])):
        if row.state == _READY and room.get(of, 0) > 0:
            room[of] -= 1
            found.append(_delivery(of, bus.messages[number]))
    return found


def _delivery(to: str, one: StoredMessage) -> Delivery:
    return Delivery(
        subscription=to, number=one.number, topic=one.topic, id=one.id, key=one.key, body=one.body, at=one.at
    )


def _topic(bus: BusTables, name: str) -> TopicStatus:
    found = [one for one in bus.messages.values() if one.topic == name]
    unsent = sum(bool(one.via) and not one.taken for one in found)
    last_at = found[-1].at if found else None
    return TopicStatus(name=name, messages=min(len(found), MOST_COUNTED), unsent=unsent, last_at=last_at)


def _status(bus: BusTables, row: SubscriptionRow) -> SubscriptionStatus:
    own = [one for (of, _), one in bus.deliveries.items() if of == row.name]
    unseen = [
        one
        for one in bus.messages.values()
        if not one.taken
        and not one.via
        and one.topic == row.topic
        and (one.subscription == row.name or not (one.subscription or row.via))
    ]
    running = sum(one.state == _BEGUN for one in own)
    oldest = min([*(one.at for one in own), *(one.at for one in unseen)], default=None)
    waiting = len(own) - running + len(unseen)
    return SubscriptionStatus(**structs.asdict(row), waiting=waiting, running=running, oldest_at=oldest)
