"""Other starters of flows than events that come in: schedules and topics of the bus."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from msgspec import json

from batuta.authoring.activity.attempt import activity_info
from batuta.authoring.client.calendar import cron, every
from batuta.authoring.client.messages import Message
from batuta.authoring.client.schedules import Schedule
from batuta.authoring.jobs import job
from batuta.bus.subscriptions import LONGEST_NAME, Subscription, subscribe
from batuta.errors import PayloadSealed
from batuta.flows.calls.reading import Client
from batuta.flows.calls.triggers import queue_of
from batuta.flows.document import FlowDocument, Trigger
from batuta.flows.program import seconds_of
from batuta.flows.rows import document_of
from batuta.journal.flows.records import FlowRow
from batuta.names import joined, shortened

START: Final = "flow.start"


def schedule_id(name: str) -> str:
    """Of the schedule that starts the flow of this name."""
    return f"flow {name}"


async def prepare(client: Client, row: FlowRow) -> Schedule | None:
    """Before a flow is active: its queue has its limit, its subscription keeps messages for it. Its schedule. Raises
    InvalidSchedule."""
    trigger = trigger_of(document_of(row))
    if trigger is None:
        return None
    if trigger.concurrency is not None and trigger.concurrency.overlap == "queue":
        limit = trigger.concurrency.limit
        await client.limit_queue(queue_of(limit), key_concurrency=limit)
    if trigger.topic:
        await client.keep_for(_subscription(trigger.topic, row.name, _nothing))
    planned = trigger.schedule
    if planned is None:
        return None
    seconds = seconds_of(planned.every)
    when = every(seconds) if seconds else cron(planned.cron, planned.timezone)
    return Schedule(schedule_id(row.name), when, f"job:{START}", row.name, planned.payload, "schedule")


def topic_of(row: FlowRow) -> str:
    """The topic whose messages start a flow; empty: none, or its document cannot be read."""
    try:
        trigger = trigger_of(document_of(row))
    except PayloadSealed:
        return ""
    return "" if trigger is None else trigger.topic or ""


async def drop(client: Client, topic: str, name: str) -> None:
    """After a flow has left a topic: no messages are kept for it any more."""
    await client.bus.delete(_subscription(topic, name, _nothing).name, reason=f"flow {name!r} hears it no more"[:200])


async def _nothing(message: Message[Any]) -> None:
    """In the place of a handler, where the row alone is needed."""


def _subscription(topic: str, name: str, deliver: Callable[[Message[Any]], Awaitable[None]]) -> Subscription:
    return subscribe(topic, deliver, name=shortened(f"flow {joined(name, topic)}", LONGEST_NAME))


def trigger_of(document: str) -> Trigger | None:
    """How the flow of a document begins, beyond the type of its events."""
    return json.decode(document, type=FlowDocument).trigger


class Starters:
    """Jobs that start flows, for a worker: `client.worker(jobs=[client.flows.starters])`."""

    def __init__(self, flows: Any) -> None:
        self._flows = flows

    @job(name=START)
    async def start(self, name: str, payload: dict[str, Any], source: str) -> str | None:
        """Begin a run of the active version of a flow, once for each run of this job."""
        return await self._begin(name, payload, source, activity_info().key)

    async def _begin(
        self, name: str, payload: dict[str, Any], source: str, external_id: str, topic: str = ""
    ) -> str | None:
        page = await self._flows.list(name=name, active=True, limit=1)
        if not page.workflows:
            return None  # it was deactivated meanwhile
        [active] = page.workflows
        if topic and (active.trigger or {}).get("topic") != topic:
            return None  # a later version has another topic
        begun: str | None = await self._flows.runs.begin(active.id, payload, source, external_id)
        return begun

    def subscription(self, topic: str, name: str) -> Subscription:
        async def deliver(message: Message[Any]) -> None:
            payload = message.payload if isinstance(message.payload, dict) else {"message": message.payload}
            await self._begin(name, payload, shortened(f"bus {topic}", 100).lower(), message.id, topic)

        return _subscription(topic, name, deliver)
