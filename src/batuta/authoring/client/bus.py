"""The bus, as a client sees it: topics, subscriptions, and what they have yet to get."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime
from typing import Any, Protocol

from msgspec import DecodeError, Raw, Struct, json

from batuta.authoring.client.messages import WrittenMessage
from batuta.authoring.services import BusService
from batuta.clock import SECOND, as_datetime
from batuta.durations import Duration, in_seconds
from batuta.errors import InvalidInput
from batuta.journal.audit import Verb
from batuta.journal.bus.messages import BusStatus, BusStore, StoredMessage, SubscriptionStatus
from batuta.names import check_name, check_page_size, check_reason, quoted

log = logging.getLogger("batuta.bus")

_MOST = 1_000
_PATIENCE = 4.0
_ASKED_AT_ONCE = 4
_HANDED_OUT = 500
_FOR_EVER = 1e10


class MessageView(Struct, kw_only=True):
    """A message, as people look at it."""

    number: int
    id: str
    topic: str
    key: str
    type: str = ""
    source: str = ""
    published_at: datetime
    payload: Any = None
    """None: it is null, or cannot be read here."""
    problem: str = ""
    subscription: str = ""
    """The only one that gets it; empty: all of the topic."""
    via: str = ""
    """The broker that it goes to."""
    taken: bool
    """It was handed to the subscriptions, or sent to the broker."""


class MessagePage(Struct):
    """Some messages, newest first, and the cursor of the next page (None: that was the last)."""

    messages: list[MessageView]
    cursor: int | None


class Backlog(Protocol):
    """The part of a broker that knows how far subscriptions are behind."""

    @property
    def name(self) -> str: ...
    async def behind(self, topic: str, name: str) -> int | None: ...


class BusClient:
    """The bus of one namespace: `client.bus`."""

    def __init__(self, service: BusService, broker: Backlog | None = None) -> None:
        self._service, self._broker = service, broker

    async def status(self) -> BusStatus:
        """Topics, and subscriptions with what they have yet to get."""
        return await self.with_backlog(await self._service.store.bus_status())

    async def with_backlog(self, status: BusStatus) -> BusStatus:
        """The same, with what the broker still holds for each subscription, as far as it says so in time."""
        broker = self._broker
        if broker is not None:
            theirs = [one for one in status.subscriptions if one.via == broker.name]
            gate = asyncio.Semaphore(_ASKED_AT_ONCE)  # each question may hold a thread
            found = await asyncio.gather(*(_behind(broker, one, gate) for one in theirs))
            for one, behind in zip(theirs, found, strict=True):
                one.behind = behind
        return status

    async def messages(self, topic: str, *, cursor: int | None = None, limit: int = 50) -> MessagePage:
        """Messages of a topic that are kept, newest first. `cursor`: of the page before."""
        check_page_size(limit)
        if cursor is not None and (type(cursor) is not int or not 0 <= cursor < 2**63):
            raise InvalidInput(f"cursor={quoted(cursor)} must be the cursor of the page before")
        found = await self._service.store.messages(check_name(topic, "topic"), cursor, limit + 1)
        more = len(found) > limit
        return MessagePage([_view(one) for one in found[:limit]], found[limit - 1].number if more else None)

    async def delete(self, name: str, *, reason: str = "") -> bool:
        """Forget a subscription, and what it has yet to get. Runs that have begun go on. False when there is none."""
        act = self._service.act(Verb.DROP_SUBSCRIPTION, check_reason(reason))
        return await self._service.store.drop_subscription(check_name(name, "subscription"), act)

    async def prune(self, keep: Duration | None) -> int:
        """Delete messages that were delivered and are older than that. Returns how many. Workers do it by themselves,
        with the setting `bus_keep`."""
        seconds: object = in_seconds(keep)
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < _FOR_EVER:
            raise InvalidInput(f"keep={keep!r} must say for how long messages are kept, such as 7 days; 0 keeps none")
        store, act = self._service.store, self._service.act
        await store.note_act("bus", act(Verb.PRUNE))
        deleted = await prune_messages(store, round(seconds * SECOND))
        if deleted:
            await store.note_act("bus", act(Verb.PRUNE, after={"deleted": deleted}))
        return deleted


async def _behind(broker: Backlog, one: SubscriptionStatus, gate: asyncio.Semaphore) -> int | None:
    try:
        async with asyncio.timeout(_PATIENCE), gate:  # the wait for the others counts
            return await broker.behind(one.topic, one.name)
    except Exception as error:  # noqa: BLE001 - the rest of the status is worth having without it
        log.warning("how far subscription %r is behind is not known: %r", one.name, error)
        return None


async def prune_messages(store: BusStore, keep: int) -> int:
    """Delete messages that are older than `keep` microseconds and that no subscription has yet to get. Those that no
    worker with subscriptions has seen are handed to subscriptions before. Returns how many."""
    while (await store.bus_turn([], [], _HANDED_OUT)).more:
        pass
    deleted = 0
    while found := await store.prune_messages(keep, _MOST):
        deleted += found
    return deleted


def _view(message: StoredMessage) -> MessageView:
    try:
        read = json.decode(message.body, type=WrittenMessage)
        payload = json.decode(read.payload)
    except (DecodeError, RecursionError):
        read, payload = WrittenMessage(id=message.id, topic=message.topic, payload=Raw(b"null")), None
    return MessageView(
        number=message.number,
        id=message.id,
        topic=message.topic,
        key=message.key,
        type=read.type,
        source=read.source,
        published_at=as_datetime(message.at),
        payload=payload,
        problem=read.problem,
        subscription=message.subscription,
        via=message.via,
        taken=message.taken,
    )
