"""Events and flows: three steps from POST to COMPLETED, how many events and runs a second one process does, what other
published flows cost, and how much more a flow costs than the same workflow in Python.

python -m bench.flows [sqlite:///file.db | postgresql://...]

Ratios are of processor time in the same run, in turns: the load of the machine changes them little.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from typing import Any

from msgspec import Raw, json

import batuta
from batuta import activity, workflow
from batuta.flows.models import FLOW, Event, FlowStart
from batuta.flows.workflow import Flows, flow
from batuta.ids import new_run_id
from batuta.journal.flows.records import FlowRow
from batuta.journal.states import RunState
from batuta.server import Server
from tests.flows.http import SPRINT
from tests.server.web import Web

ONE_BY_ONE, EVENTS, AT_ONCE = 200, 3_000, 100
OTHERS = 10_000
"""Published flows of other events."""
STEPS, RUNS, ROUNDS = 20, 40, 5
CHECK: dict[str, Any] = {
    "key": "check",
    "type": "condition",
    "config": {"rule": {"field": "amount", "operator": "greater_than", "value": 100}, "onFalse": "done"},
}
LONG = {
    "name": "long",
    "steps": [CHECK, *({"key": f"s{n}", "type": "action"} for n in range(STEPS)), {"key": "done", "type": "end"}],
}


@activity
async def act(step: str, payload: dict[str, Any]) -> dict[str, Any]:
    return {"dryRun": True, "actionType": "webhook"}


@workflow
async def in_python(payload: dict[str, Any]) -> dict[str, Any]:
    """The same as LONG."""
    steps: dict[str, Any] = {}
    if payload["amount"] > 100:
        for number in range(STEPS):
            steps[f"s{number}"] = await act(f"s{number}", payload)
    return steps


async def one_by_one(client: batuta.Batuta, web: Web) -> list[float]:
    """Milliseconds from the POST of an event to the end of its run."""
    took = []
    for number in range(ONE_BY_ONE):
        began = time.perf_counter()
        body = {"type": "invoice_overdue", "payload": {"amount": 2500}, "external_id": f"one {number}"}
        event = (await web.post("/api/events", body)).json
        [run_id] = (await client.flows.runs.of_events([event["id"]]))[event["id"]]
        await (await client.get(run_id)).result()
        took.append((time.perf_counter() - began) * 1000)
    return sorted(took)


async def accepted(web: Web, name: str) -> float:
    """Events a second, each with an external id and the start of a run."""
    numbers = iter(range(EVENTS))

    async def sender() -> None:
        for number in numbers:
            body = {"type": "invoice_overdue", "payload": {"amount": 2500}, "external_id": f"{name} {number}"}
            answer = await web.post("/api/events", body)
            assert answer.status == 201, answer

    began = time.perf_counter()
    await asyncio.gather(*(sender() for _ in range(AT_ONCE)))
    return EVENTS / (time.perf_counter() - began)


async def finished(client: batuta.Batuta) -> float:
    """Runs a second, of those that wait."""
    waiting = await client.count(workflow=FLOW, states=(RunState.PENDING,))
    began = time.perf_counter()
    async with client.worker(**await client.flows.parts()):
        while await client.count(workflow="flow", states=(RunState.PENDING, RunState.RUNNING, RunState.WAITING)):
            await asyncio.sleep(0.05)
    return waiting / (time.perf_counter() - began)


async def spent(work: Any) -> float:
    """Seconds of processor time."""
    began = time.process_time()
    await work
    return time.process_time() - began


async def times_python(url: str) -> float:
    """How much processor time a flow takes, of that of the same workflow in Python."""
    async with batuta.connect(url) as client:
        payload = {"amount": 2500}
        event = Event(id="e", tenant_id="", type="t", payload=payload, source="api", created_at=datetime.now(UTC))
        steps = Raw(json.encode(LONG["steps"]))
        start = FlowStart(workflow_id="w", name="long", version=1, steps=steps, event=event)

        async def as_flows() -> None:
            handles = [await client.start(flow, start) for _ in range(RUNS)]
            for one in handles:
                await one.result()

        async def as_code() -> None:
            handles = [await client.start(in_python, payload) for _ in range(RUNS)]
            for one in handles:
                await one.result()

        parts = Flows(activities=[act]).parts()
        parts["workflows"] = [*parts["workflows"], in_python]
        async with client.worker(**parts):
            await as_flows()
            await as_code()
            ratios = [await spent(as_flows()) / await spent(as_code()) for _ in range(ROUNDS)]
    return statistics.median(ratios)


async def publish_others(client: batuta.Batuta) -> None:
    store = client.flows._backend.store
    for number in range(OTHERS):
        made = FlowRow(workflow_id=new_run_id(), name=f"other {number}", trigger_type=f"other_{number}", document="{}")
        made.is_active, made.published_at = True, 1
        await store.put_flow(made)


async def measure(url: str) -> dict[str, Any]:
    async with batuta.connect(url) as client:
        server = Server(client)
        web = Web(server.serve)
        web = web.with_headers(x_csrf_token=(await web.get("/api/v1/session")).json["csrf_token"])
        made = (await web.post("/api/workflows", SPRINT)).json
        await web.post(f"/api/workflows/{made['id']}/publish", {})
        async with client.worker(**await client.flows.parts()):
            took = await one_by_one(client, web)
        events = await accepted(web, "many")
        runs = await finished(client)
        alone = await spent(accepted(web, "alone"))
        await publish_others(client)
        among = await spent(accepted(web, "among"))
        await server.close()
    return {
        "times_python": round(await times_python(url), 2),
        "event_among_10000_flows": round(among / alone, 2),
        "post_to_completed_p50_ms": round(statistics.median(took), 2),
        "post_to_completed_p99_ms": round(took[int(len(took) * 0.99)], 2),
        "events_per_second": round(events),
        "runs_per_second": round(runs),
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{folder}/flows.db"
        print(asyncio.run(measure(url)))


if __name__ == "__main__":
    main()
