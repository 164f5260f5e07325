"""Small flows, and runs of them."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from batuta.authoring.client.handle import Handle
from batuta.errors import RunNotCompleted
from batuta.flows.document import StepBase
from batuta.flows.faults import Fault
from batuta.flows.models import Event, FlowStart, Run
from batuta.flows.validation import check_document
from batuta.flows.views import FlowRun, Link, flow_run
from batuta.flows.workflow import Flows, flow
from batuta.testing import Environment

WHEN = datetime(2026, 1, 31, 12, tzinfo=UTC)
Doc = list[dict[str, Any]]


def step(key: str, type: str, **config: Any) -> dict[str, Any]:
    """A step. Names of fields that all steps have come before the config."""
    common: dict[str, Any] = {
        name: config.pop(name) for name in ("retry", "timeout", "gates", "next", "output") if name in config
    }
    common |= {"if": config.pop("when")} if "when" in config else {}
    return {"key": key, "type": type, **common, **({"config": config} if config else {})}


def rule(field: str, operator: str, *value: Any) -> dict[str, Any]:
    return {"field": field, "operator": operator} | ({"value": value[0]} if value else {})


DONE = step("done", "end")
OVERDUE = [
    step("check_overdue", "condition", rule=rule("amount", "greater_than", 100), onFalse="done"),
    step("notify", "action", actionType="webhook"),
    DONE,
]
"""The flow of the document."""


def check_steps(steps: Any) -> tuple[Sequence[StepBase] | None, list[Fault]]:
    """The steps of a flow, or everything that is wrong with it; a text is JSON already."""
    text = steps if isinstance(steps, str) else json.dumps(steps)
    document, faults = check_document(f'{{"name": "a flow", "steps": {text}}}')
    return None if document is None else document.steps, faults


def start(steps: Doc, payload: dict[str, Any] | None = None, **more: Any) -> FlowStart:
    event = Event(
        id="00000000-0000-0000-0000-00000000000e",
        tenant_id="default",
        type="invoice_overdue",
        payload={} if payload is None else payload,
        source="api",
        created_at=WHEN,
    )
    given: dict[str, Any] = {"workflow_id": "w-1", "name": "Sprint 1 Test", "version": 1, "event": event} | more
    return FlowStart(steps=msgspec.Raw(json.dumps(steps).encode()), **given)


async def ended(handle: Handle[Any]) -> FlowRun:
    """The run once it has ended, however."""
    try:
        await handle.result()
    except RunNotCompleted:
        pass
    return await seen(handle)


async def seen(handle: Handle[Any]) -> FlowRun:
    return flow_run([Link(await handle.describe(), await handle.journal(), await handle.attempts())])


async def ran(steps: Doc, payload: dict[str, Any] | None = None, flows: Flows | None = None, **more: Any) -> FlowRun:
    """The run of a flow, once it has ended."""
    async with Environment(**(flows or Flows()).parts(), **more) as env:
        given = start(steps, payload)
        return await ended(await env.start(flow, given, id="run", tags=given.tags))


def outputs(found: FlowRun) -> dict[str, Any]:
    return {key: one["output"] for key, one in found.run.context.get("steps", {}).items()}


def keys(found: FlowRun) -> list[str]:
    return [one.step_key for one in found.steps]


def failure_of(run: Run) -> str:
    assert run.status == "FAILED", run
    return run.error or ""
