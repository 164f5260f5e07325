"""What starts flows beside events that come in: schedules and topics of the bus."""

from __future__ import annotations

from typing import Any, Final, Protocol

from msgspec import convert, json

from batuta.authoring.activity.attempt import activity_info
from batuta.authoring.client.calendar import cron, every
from batuta.authoring.client.messages import Message
from batuta.authoring.client.schedules import Schedule
from batuta.authoring.jobs import job
from batuta.bus.subscriptions import LONGEST_NAME, Subscription, subscribe
from batuta.errors import ScheduleExists, UnknownSchedule
from batuta.flows.calls.triggers import queue_of
from batuta.flows.document import FlowDocument, Trigger
from batuta.flows.program import seconds_of
from batuta.flows.rows import document_of
from batuta.journal.flows.records import FlowRow
from batuta.names import shortened

START: Final = "flow.start"


class Client(Protocol):
    """The part of a client that starts things at times, and limits queues."""

    @property
    def schedules(self) -> Any: ...
    async def limit_queue(self, name: str, /, **limits: Any) -> None: ...


def schedule_id(name: str) -> str:
    """Of the schedule that starts the flow of this name."""
    return f"flow {name}"


async def prepare(client: Client, row: FlowRow) -> None:
    """Before a flow is active: its queue has its limit, its schedule is there. Raises InvalidSchedule."""
    trigger = json.decode(document_of(row), type=FlowDocument).trigger
    if trigger is not None and trigger.concurrency is not None:
        limit = trigger.concurrency.limit
        await client.limit_queue(queue_of(limit), key_concurrency=limit)
    planned = None if trigger is None else trigger.schedule
    if planned is None:
        await forget(client, row.name)
        return
    seconds = seconds_of(planned.every)
    when = every(seconds) if seconds else cron(planned.cron, planned.timezone)
    made = Schedule(schedule_id(row.name), when, f"job:{START}", row.name, planned.payload, "schedule")
    try:
        await client.schedules.create(made)
    except ScheduleExists:
        await client.schedules.update(made)


async def forget(client: Client, name: str) -> None:
    """It has no schedule any more."""
    try:
        await client.schedules.delete(schedule_id(name))
    except UnknownSchedule:
        return


def trigger_in(document: dict[str, Any]) -> Trigger | None:
    """How the flow of a document begins, beyond the type of its events."""
    return convert(document["trigger"], Trigger) if document.get("trigger") else None


class Starters:
    """Jobs that start flows, for a worker: `client.worker(jobs=[client.flows.starters])`."""

    def __init__(self, flows: Any) -> None:
        self._flows = flows

    @job(name=START)
    async def start(self, name: str, payload: dict[str, Any], source: str) -> str | None:
        """Begin a run of the active version of a flow, once for each run of this job."""
        return await self._begin(name, payload, source, activity_info().key)

    async def _begin(self, name: str, payload: dict[str, Any], source: str, external_id: str) -> str | None:
        page = await self._flows.list(name=name, active=True, limit=1)
        if not page.workflows:
            return None  # it was deactivated meanwhile
        started = await self._flows.runs.start(
            page.workflows[0].id, payload=payload, source=source, external_id=external_id
        )
        return str(started.run.id)

    def subscription(self, topic: str, name: str) -> Subscription:
        async def deliver(message: Message[Any]) -> None:
            payload = message.payload if isinstance(message.payload, dict) else {"message": message.payload}
            await self._begin(name, payload, shortened(f"bus {topic}", 100).lower(), message.id)

        return subscribe(topic, deliver, name=shortened(f"flow {name}", LONGEST_NAME))
