"""Routes of the dashboard's pages about flows, one call for each page."""

from __future__ import annotations

import asyncio
from datetime import datetime
from functools import partial

from msgspec import Struct, convert

from batuta.errors import UnknownFlow
from batuta.flows.models import RunStatus, Workflow
from batuta.server.flows.events import EventDocuments, EventQuery, list_events
from batuta.server.flows.runs import ApprovalPage, FailedQuery, FlowRunDocument, approvals, whole
from batuta.server.http.call import Call
from batuta.server.http.routing import route

_FLOWS, _RUNS = 100, 5


class FlowQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    cursor: str | None = None


class VersionRow(Struct, kw_only=True):
    """A version of a flow, without its steps."""

    id: str
    version: int
    is_active: bool
    published_at: datetime | None
    updated_at: datetime


class LastRun(Struct, kw_only=True):
    id: str
    status: RunStatus
    created_at: datetime
    finished_at: datetime | None


class FlowRow(Struct, kw_only=True):
    """A flow: its versions, the newest first, and the last runs of the version that runs."""

    name: str
    description: str | None
    trigger_type: str
    versions: list[VersionRow]
    runs: list[LastRun]


class FlowsPage(Struct):
    flows: list[FlowRow]
    cursor: str | None


class FlowPage(Struct):
    """A version of a flow, with its last runs."""

    workflow: Workflow
    versions: list[VersionRow]
    runs: list[LastRun]


class FlowRunView(Struct):
    """A run of a flow, with the flow that it follows."""

    run: FlowRunDocument
    workflow: Workflow | None


async def flows(call: Call) -> FlowsPage:
    page = await call.client.flows.list(limit=_FLOWS, cursor=call.query.cursor)
    by_name: dict[str, list[Workflow]] = {}
    for one in page.workflows:
        by_name.setdefault(one.name, []).append(one)
    runs = await asyncio.gather(*(_last_runs(call, _running(versions).id) for versions in by_name.values()))
    rows = [
        FlowRow(
            name=name,
            description=versions[0].description,
            trigger_type=_running(versions).trigger_type,
            versions=convert(versions, list[VersionRow], from_attributes=True),
            runs=last,
        )
        for (name, versions), last in zip(by_name.items(), runs, strict=True)
    ]
    return FlowsPage(rows, page.cursor)


def _running(versions: list[Workflow]) -> Workflow:
    """The active version, else the newest that is published, else the newest."""
    active = [one for one in versions if one.is_active]
    return next(iter([*active, *(one for one in versions if one.published_at), *versions]))


async def _last_runs(call: Call, workflow_id: str) -> list[LastRun]:
    return convert(await call.client.flows.runs.last(workflow_id, _RUNS), list[LastRun], from_attributes=True)


async def flow(call: Call) -> FlowPage:
    workflow = await call.client.flows.get(call.id)
    page = await call.client.flows.list(name=workflow.name, limit=_FLOWS)
    versions = convert(page.workflows, list[VersionRow], from_attributes=True)
    return FlowPage(workflow, versions, await _last_runs(call, workflow.id))


async def run(call: Call) -> FlowRunView:
    view = await call.client.flows.runs.get(call.id)
    try:
        workflow = await call.client.flows.get(view.run.workflow_id)
    except UnknownFlow:
        workflow = None
    return FlowRunView(whole(view), workflow)


_route = partial(route, "GET", payloads=True)
ROUTES = (
    _route("/api/v1/flows", flows, "Flows with their versions and last runs.", FlowsPage, query=FlowQuery),
    # no payload, but a document: an editor saves what it was shown
    _route("/api/v1/flows/{id}", flow, "A version of a flow, with its last runs.", FlowPage, payloads=False),
    _route("/api/v1/flow-runs/{id}", run, "A run of a flow, with the flow that it follows.", FlowRunView),
    _route("/api/v1/flow-events", list_events, "Events, as a page shows them.", EventDocuments, query=EventQuery),
    _route("/api/v1/flow-approvals", approvals, "Approvals, as a page shows them.", ApprovalPage, query=FailedQuery),
)
