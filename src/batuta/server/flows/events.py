"""Events: accepted once, with the runs that they start."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType, field, structs

from batuta.clock import SECOND, SystemClock
from batuta.flows.calls.events import Sent
from batuta.flows.models import Event
from batuta.server.http.call import Answer, Call
from batuta.server.http.routing import route
from batuta.server.run_actions import ReasonBody
from batuta.telemetry import EventAccepted


class FlowEventBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Something that happened. With an `external_id` that its source has used before, the first one is given back."""

    type: str
    payload: dict[str, Any] = {}
    source: str = "api"
    external_id: str | None = None


class EventQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    type: str | None = None
    source: str | None = None
    external_id: str | None = None
    limit: int = 50
    cursor: str | None = None


class SentFlowEvent(Event, kw_only=True):
    """An event that came in."""

    idempotent: bool | UnsetType = field(name="_idempotent", default=UNSET)
    """True: it was there already."""


class EventDocument(Event, kw_only=True):
    """An event, and the runs that it has begun."""

    runs: list[str]


class EventDocuments(Struct):
    """Some events, newest first, and the cursor of the next page (null: that was the last)."""

    events: list[EventDocument]
    cursor: str | None


def _answer(call: Call, sent: Sent) -> Answer:
    outcome = "new" if sent.is_new else "repeated"
    call.server.metrics.event(EventAccepted(SystemClock().now() / SECOND, sent.event.tenant_id, outcome))
    body = SentFlowEvent(**structs.asdict(sent.event), idempotent=UNSET if sent.is_new else True)
    headers = {"Location": f"{call.root}/api/events/{sent.event.id}"}
    return Answer(body=body, status=201 if sent.is_new else 200, headers=headers)


async def send(call: Call) -> Answer:
    return _answer(call, await call.client.flows.events.send(**structs.asdict(call.body)))


async def replay(call: Call) -> Answer:
    with call.because(call.body.reason):
        return _answer(call, await call.client.flows.events.replay(call.id))


async def list_events(call: Call) -> EventDocuments:
    page = await call.client.flows.events.list(**structs.asdict(call.query))
    return EventDocuments(await _with_runs(call, page.events), page.cursor)


async def _with_runs(call: Call, found: list[Event]) -> list[EventDocument]:
    runs = await call.client.flows.runs.of_events([event.id for event in found])
    return [EventDocument(**structs.asdict(event), runs=runs[event.id]) for event in found]


async def show(call: Call) -> EventDocument:
    [found] = await _with_runs(call, [await call.client.flows.events.get(call.id)])
    return found


_ALL, _ONE = "/api/events", "/api/events/{id}"

ROUTES = (
    route(
        "GET",
        _ALL,
        list_events,
        "Events, newest first, with their runs.",
        EventDocuments,
        query=EventQuery,
        payloads=True,
    ),
    route(
        "POST",
        _ALL,
        send,
        "Accept an event, and start the active flows of its type.",
        SentFlowEvent,
        body=FlowEventBody,
        status=201,
        large=True,
        payloads=True,
    ),
    route("GET", _ONE, show, "One event, with its runs.", EventDocument, payloads=True),
    route(
        "POST",
        f"{_ONE}/replay",
        replay,
        "Send an event once more, as a new one.",
        SentFlowEvent,
        body=ReasonBody,
        status=201,
        payloads=True,
    ),
)
