"""The bus over HTTP: topics, subscriptions, what waits, and messages."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, structs

from batuta.authoring.client.bus import MessagePage, MessageView
from batuta.durations import parse_duration
from batuta.journal.bus.messages import DELIVERY, SubscriptionStatus, TopicStatus
from batuta.journal.dead_letters import DeadLetter
from batuta.journal.records import LetterReason
from batuta.server.filters import ReasonQuery
from batuta.server.http.call import Answer, Call
from batuta.server.http.routing import Scope, route

_LAST = 20


class SubscriptionLine(SubscriptionStatus, kw_only=True):
    """A subscription, what it has yet to get, and its deliveries that failed."""

    job: str
    """The name of the runs that deliver."""
    dead_letters: int


class BusPage(Struct, kw_only=True):
    """The bus of a namespace: what its page shows."""

    topics: list[TopicStatus]
    subscriptions: list[SubscriptionLine]
    topic: str
    """Of the messages."""
    messages: list[MessageView]
    """The last ones."""
    failed: list[DeadLetter]
    """The last deliveries that failed, newest first."""


class BusQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """`topic`: whose last messages are shown; without it the first topic."""

    topic: str = ""


class MessagesQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    topic: str = ""
    cursor: int | None = None
    limit: int = 50


class MessageBody(Struct, kw_only=True, forbid_unknown_fields=True):
    topic: str
    payload: Any
    key: str = ""
    id: str | None = None
    type: str | None = None


class PublishedMessage(Struct, kw_only=True):
    id: str
    topic: str


class DeletedSubscription(Struct):
    name: str
    deleted: bool


class PruneMessagesBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """`keep` is a text such as `7d`."""

    keep: str


class PrunedMessages(Struct):
    messages: int


async def overview(call: Call) -> BusPage:
    query: BusQuery = call.query
    client = call.client
    status = await client.bus.status()
    topic = query.topic or (status.topics[0].name if status.topics else "")
    lines = []
    for one in status.subscriptions:
        job = DELIVERY + one.name
        dead = await client.dead_letters.count(name=job)
        lines.append(SubscriptionLine(**structs.asdict(one), job=job, dead_letters=dead))
    page = await client.dead_letters.list(reason=LetterReason.UNDELIVERED, limit=_LAST)
    return BusPage(
        topics=status.topics,
        subscriptions=lines,
        topic=topic,
        messages=(await client.bus.messages(topic, limit=_LAST)).messages if topic else [],
        failed=list(page.letters),
    )


async def messages(call: Call) -> MessagePage:
    return await call.client.bus.messages(**structs.asdict(call.query))


async def publish(call: Call) -> Answer:
    body: MessageBody = call.body
    made = await call.client.publish(body.topic, body.payload, key=body.key, id=body.id, type=body.type)
    return Answer(body=PublishedMessage(id=made, topic=body.topic), status=201)


async def delete(call: Call) -> DeletedSubscription:
    return DeletedSubscription(call.id, await call.client.bus.delete(call.id, reason=call.query.reason))


async def prune(call: Call) -> PrunedMessages:
    return PrunedMessages(await call.client.bus.prune(parse_duration(call.body.keep)))


_ALL = "/api/v1/bus"
ROUTES = (
    route(
        "GET",
        _ALL,
        overview,
        "Topics and subscriptions, with their waiting messages.",
        BusPage,
        query=BusQuery,
        payloads=True,
    ),
    route(
        "GET",
        f"{_ALL}/messages",
        messages,
        "Messages of a topic, newest first.",
        MessagePage,
        query=MessagesQuery,
        payloads=True,
    ),
    route(
        "POST",
        f"{_ALL}/messages",
        publish,
        "Publish a message.",
        PublishedMessage,
        body=MessageBody,
        status=201,
        large=True,
    ),
    route(
        "DELETE",
        f"{_ALL}/subscriptions/{{id}}",
        delete,
        "Delete a subscription.",
        DeletedSubscription,
        query=ReasonQuery,
        scope=Scope.ADMIN,
    ),
    route(
        "POST",
        f"{_ALL}/prune",
        prune,
        "Delete old messages that were delivered.",
        PrunedMessages,
        body=PruneMessagesBody,
        scope=Scope.ADMIN,
    ),
)
