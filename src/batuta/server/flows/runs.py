"""Runs of flows, and approvals that wait for a person."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from msgspec import UNSET, Struct, UnsetType, field, json, structs

from batuta.errors import FlowConflict, InvalidInput
from batuta.flows.calls.flows import Entity
from batuta.flows.models import AuditLog, LogLevel, Run, RunLog, RunStatus, StepRun
from batuta.flows.views import FlowRun as RunView
from batuta.server.http.call import Answer, Call, check_wait
from batuta.server.http.routing import route
from batuta.server.run_actions import ReasonBody

MOST_SHOWN: Final = 8 * 1024 * 1024
"""Characters of inputs and outputs of steps in one answer."""
SMALL: Final = 200
"""Characters of a value that is shown all the same."""


class RunBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """A run of a published flow for an event; without `event_id` for a new event with this payload."""

    workflow_id: str
    event_id: str | None = None
    payload: dict[str, Any] | None = None


class FlowRunQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    status: RunStatus | None = None
    workflow_id: str | None = None
    event_id: str | None = None
    limit: int = 20
    cursor: str | None = None


class FailedQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    limit: int = 20
    cursor: str | None = None


class FlowRun(Run, kw_only=True):
    """A run of a flow."""

    idempotent: bool | UnsetType = field(name="_idempotent", default=UNSET)
    """True: the event had begun it before."""


class FlowRunDocument(Run, kw_only=True):
    """A run of a flow, with what it did."""

    steps: list[StepRun]
    logs: list[RunLog]
    audit: list[AuditLog] | UnsetType = UNSET


class FlowRunPage(Struct):
    """Some runs, newest first, and the cursor of the next page (null: that was the last)."""

    runs: list[FlowRun]
    cursor: str | None


class FailedRuns(Struct):
    """Failed runs with their error logs and steps."""

    runs: list[FlowRunDocument]
    cursor: str | None


class FlowAuditQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which record: `run` (with its steps), `workflow` or `event`, and its id."""

    entity: Entity = Entity.RUN
    entity_id: str = ""


class AuditLogs(Struct):
    """Each change of a record, the oldest first."""

    audit: Sequence[AuditLog]


class ApprovalView(Struct, kw_only=True):
    """A run that waits for a person."""

    run_id: str
    workflow_id: str
    name: str
    step: str
    step_run_id: str
    title: str
    data: Any
    since: datetime | None


class ApprovalPage(Struct):
    approvals: list[ApprovalView]
    cursor: str | None


class DecisionBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """A person's decision about an approval; the server adds the person. `step_run_id`: which one, where several wait
    at the same step, one for each item of a list; left out: the first of them."""

    step: str
    approved: bool
    step_run_id: str | None = None
    comment: str = ""
    data: Any = None
    timeout: float = 10.0
    """Seconds to wait until a worker has taken it up."""


class Decided(Struct, kw_only=True):
    """What was decided. `pending`: it is kept, and no worker has taken it up yet; the run shows when one has."""

    id: str
    step: str
    approved: bool
    pending: bool | UnsetType = UNSET


async def start(call: Call) -> Answer:
    started = await call.client.flows.runs.start(**structs.asdict(call.body))
    made = FlowRun(**structs.asdict(started.run), idempotent=UNSET if started.is_new else True)
    headers = {"Location": f"{call.root}/api/runs/{made.id}"}
    return Answer(body=made, status=201 if started.is_new else 200, headers=headers)


async def list_runs(call: Call) -> FlowRunPage:
    page = await call.client.flows.runs.list(**structs.asdict(call.query))
    return FlowRunPage([FlowRun(**structs.asdict(one.run)) for one in page.runs], page.cursor)


async def failed(call: Call) -> FailedRuns:
    page = await call.client.flows.runs.failed(**structs.asdict(call.query))
    room = _Room()
    return FailedRuns([whole(one, room, only=LogLevel.ERROR) for one in page.runs], page.cursor)


class _Room:
    """Inputs and outputs of steps that one answer shows. Each step has the payload of the event as its input: over a
    list of some hundred items, a payload of 1 MB would fill the memory of the server."""

    def __init__(self) -> None:
        self._left = MOST_SHOWN
        self._sizes: dict[int, int] = {}
        """By the identity of the value: steps share the payload."""

    def shown(self, value: Any) -> Any:
        """The value, or its size when it is large and there is no more room."""
        size = self._sizes.get(id(value))
        if size is None:
            size = self._sizes[id(value)] = len(json.encode(value))
        if size > max(SMALL, self._left):
            return {"left_out": size}
        self._left -= size
        return value


def whole(view: RunView, room: _Room | None = None, *, only: LogLevel | None = None) -> FlowRunDocument:
    logs = [line for line in view.logs if only in (None, line.level)]
    audit = UNSET if only is not None else view.audit
    show = (room or _Room()).shown
    steps = [structs.replace(one, input=show(one.input), output=show(one.output)) for one in view.steps]
    return FlowRunDocument(**structs.asdict(view.run), steps=steps, logs=logs, audit=audit)


async def show(call: Call) -> FlowRunDocument:
    return whole(await call.client.flows.runs.get(call.id))


async def audit(call: Call) -> AuditLogs:
    query: FlowAuditQuery = call.query
    if not query.entity_id:
        raise InvalidInput(f"give entity_id: the id of the {query.entity}")
    return AuditLogs(await call.client.flows.audit(query.entity, query.entity_id))


async def retry(call: Call) -> FlowRun:
    with call.because(call.body.reason):
        return FlowRun(**structs.asdict(await call.client.flows.runs.retry(call.id, reason=call.body.reason)))


async def cancel(call: Call) -> FlowRun:
    with call.because(call.body.reason):
        return FlowRun(**structs.asdict(await call.client.flows.runs.cancel(call.id, reason=call.body.reason)))


async def approvals(call: Call) -> ApprovalPage:
    found, cursor = await call.client.flows.runs.approvals(**structs.asdict(call.query))
    return ApprovalPage(
        [
            ApprovalView(
                run_id=one.run.id,
                workflow_id=one.run.workflow_id,
                name=one.name,
                step=one.step,
                step_run_id=one.step_run_id,
                title=one.title,
                data=one.data,
                since=one.since,
            )
            for one in found
        ],
        cursor,
    )


async def decide(call: Call) -> Answer:
    body: DecisionBody = call.body
    check_wait("timeout", body.timeout)
    decided = Decided(id=call.id, step=body.step, approved=body.approved)
    try:
        done = await call.client.flows.runs.decide(
            call.id,
            body.step,
            body.approved,
            step_run_id=body.step_run_id,
            by=call.principal.actor,
            comment=body.comment,
            data=body.data,
            timeout=body.timeout,
        )
    except TimeoutError:
        return Answer(body=structs.replace(decided, pending=True), status=202, headers={"Retry-After": "1"})
    if not done:
        raise FlowConflict(f"run {call.id} waits for no decision of step {body.step[:100]!r}: look at it again")
    return Answer(body=decided)


_ALL, _ONE = "/api/runs", "/api/runs/{id}"

ROUTES = (
    route("GET", _ALL, list_runs, "Runs of flows, newest first.", FlowRunPage, query=FlowRunQuery, payloads=True),
    route(
        "POST", _ALL, start, "Run a published flow for an event, once.", FlowRun, body=RunBody, status=201, large=True
    ),
    route(
        "GET",
        f"{_ALL}/failed",
        failed,
        "Failed runs with their error logs and steps.",
        FailedRuns,
        query=FailedQuery,
        payloads=True,
    ),
    route("GET", _ONE, show, "One run of a flow, with steps, logs and audit.", FlowRunDocument, payloads=True),
    route("POST", f"{_ONE}/retry", retry, "Go on from the step that failed.", FlowRun, body=ReasonBody),
    route("POST", f"{_ONE}/cancel", cancel, "Ask a run to end.", FlowRun, body=ReasonBody),
    route(
        "POST",
        f"{_ONE}/decide",
        decide,
        "Decide an approval that a run waits for.",
        Decided,
        body=DecisionBody,
        large=True,
    ),
    route(
        "GET",
        "/api/audit",
        audit,
        "Each change of a run, a workflow or an event.",
        AuditLogs,
        query=FlowAuditQuery,
        payloads=True,
    ),
    route(
        "GET",
        "/api/approvals",
        approvals,
        "Runs that wait for a person.",
        ApprovalPage,
        query=FailedQuery,
        payloads=True,
    ),
)
