"""Workflows: versions of flows."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType, structs

from batuta.errors import InvalidInput
from batuta.flows.calls.catalog import WorkflowPage
from batuta.flows.document import FORMAT
from batuta.flows.faults import Fault, InvalidFlow
from batuta.flows.models import Workflow
from batuta.flows.rehearsal import Double, Rehearsal, rehearse
from batuta.flows.schema import json_schema
from batuta.flows.validation import check_document, read_json
from batuta.server.http.call import Answer, Call, Refused
from batuta.server.http.routing import Repeat, route
from batuta.server.run_actions import ReasonBody


class WorkflowBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """A flow. `GET /api/workflows/schema` has the JSON Schema of its parts."""

    name: str
    description: str | UnsetType | None = UNSET
    trigger_type: str | UnsetType = UNSET
    trigger: Any | UnsetType = UNSET
    steps: list[Any]
    format: Annotated[int, Meta(ge=1, le=FORMAT)] | UnsetType = UNSET
    reason: str = ""


class WorkflowChanges(Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields of a draft that are written; null takes one from it, and others stay."""

    name: str | UnsetType = UNSET
    description: str | UnsetType | None = UNSET
    trigger_type: str | UnsetType = UNSET
    trigger: Any | UnsetType = UNSET
    steps: list[Any] | UnsetType = UNSET
    format: Annotated[int, Meta(ge=1, le=FORMAT)] | UnsetType = UNSET
    reason: str = ""


class WorkflowQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    name: str | None = None
    trigger_type: str | None = None
    is_active: bool | None = None
    published: bool | None = None
    limit: int = 50
    cursor: str | None = None


class PublishBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """`activate`: events start it from now on, and no longer the versions before."""

    activate: bool = True
    reason: str = ""


class CheckBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """The text of a flow, as it stands in an editor."""

    text: str


class Checked(Struct):
    """Everything that is wrong with a flow."""

    valid: bool
    faults: list[Fault]
    document: Any = None
    """The flow, where it is JSON."""


class RehearsalBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """A flow, as text or by its id, and the payload of a sample event. `doubles`: what steps give, by their keys."""

    text: str = ""
    workflow_id: str | None = None
    payload: dict[str, Any] = {}
    doubles: dict[str, Double] = {}


class FlowSchema(Struct):
    """The JSON Schema of flows."""

    version: int
    schema: dict[str, Any]


def refusing(error: InvalidFlow) -> Refused:
    """Every fault with its path and a hint."""
    faults = [structs.asdict(fault) for fault in error.faults]
    return Refused(400, "invalid_flow", str(error), faults=faults)


def _document(body: WorkflowBody | WorkflowChanges) -> dict[str, Any]:
    given = structs.asdict(body)
    return {name: value for name, value in given.items() if name != "reason" and value is not UNSET}


async def create(call: Call) -> Answer:
    body: WorkflowBody = call.body
    try:
        made = await call.client.flows.create(_document(body), reason=body.reason)
    except InvalidFlow as error:
        raise refusing(error) from None
    return Answer(body=made, headers={"Location": f"{call.root}/api/workflows/{made.id}"})


async def list_workflows(call: Call) -> WorkflowPage:
    query: WorkflowQuery = call.query
    return await call.client.flows.list(
        name=query.name,
        trigger_type=query.trigger_type,
        active=query.is_active,
        published=query.published,
        cursor=query.cursor,
        limit=query.limit,
    )


async def show(call: Call) -> Workflow:
    return await call.client.flows.get(call.id)


async def change(call: Call) -> Workflow:
    body: WorkflowChanges = call.body
    changes = _document(body)
    if not changes:
        raise InvalidInput("nothing to change: give at least one of name, description, trigger_type, trigger, steps")
    try:
        return await call.client.flows.change(call.id, changes, reason=body.reason)
    except InvalidFlow as error:
        raise refusing(error) from None


async def publish(call: Call) -> Workflow:
    return await call.client.flows.publish(call.id, **structs.asdict(call.body))


async def new_version(call: Call) -> Answer:
    made = await call.client.flows.new_version(call.id, reason=call.body.reason)
    return Answer(body=made, headers={"Location": f"{call.root}/api/workflows/{made.id}"})


async def activate(call: Call) -> Workflow:
    return await call.client.flows.activate(call.id, reason=call.body.reason)


async def deactivate(call: Call) -> Workflow:
    return await call.client.flows.activate(call.id, False, reason=call.body.reason)


async def check(call: Call) -> Checked:
    body: CheckBody = call.body
    value, _ = read_json(body.text)
    _, faults = check_document(body.text)
    return Checked(not faults, faults, value)


async def dry_run(call: Call) -> Rehearsal:
    body: RehearsalBody = call.body
    given: Any = body.text if body.workflow_id is None else await call.client.flows.document(body.workflow_id)
    document, faults = check_document(given)
    if document is None:
        raise refusing(InvalidFlow(faults))
    # In a thread: one that takes long must not hold up other requests.
    steps = document.steps
    return await asyncio.to_thread(lambda: asyncio.run(rehearse(steps, body.payload, body.doubles)))


async def show_schema(_: Call) -> FlowSchema:
    return FlowSchema(FORMAT, json_schema())


_ALL, _ONE = "/api/workflows", "/api/workflows/{id}"


ROUTES = (
    route("GET", _ALL, list_workflows, "Flows, by name, the newest version first.", WorkflowPage, query=WorkflowQuery),
    route("POST", _ALL, create, "Store a flow as a draft.", Workflow, body=WorkflowBody, status=201, large=True),
    route(
        "POST",
        f"{_ALL}/validate",
        check,
        "Check a flow, and list all faults; nothing is stored.",
        Checked,
        body=CheckBody,
        large=True,
        repeat=Repeat.FREE,
    ),
    route(
        "POST",
        f"{_ALL}/dry-run",
        dry_run,
        "Rehearse a flow on a sample event: nothing is called or kept.",
        Rehearsal,
        body=RehearsalBody,
        large=True,
        repeat=Repeat.FREE,
    ),
    route("GET", f"{_ALL}/schema", show_schema, "The JSON Schema of flows.", FlowSchema),
    route("GET", _ONE, show, "One version of a flow.", Workflow),
    route("PATCH", _ONE, change, "Change a draft.", Workflow, body=WorkflowChanges, large=True),
    route("POST", f"{_ONE}/publish", publish, "Publish a draft: it never changes again.", Workflow, body=PublishBody),
    route(
        "POST",
        f"{_ONE}/versions",
        new_version,
        "Make a new draft with the document of this version.",
        Workflow,
        body=ReasonBody,
        status=201,
    ),
    route("POST", f"{_ONE}/activate", activate, "Let events start this version.", Workflow, body=ReasonBody),
    route(
        "POST", f"{_ONE}/deactivate", deactivate, "Stop events from starting this version.", Workflow, body=ReasonBody
    ),
)
