"""Events and flows: three steps from POST to COMPLETED, and how many events and runs a second one process does.

python -m bench.flows [sqlite:///file.db | postgresql://...]
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from typing import Any

import batuta
from batuta.journal.states import RunState
from batuta.server import Server
from tests.flows.http import SPRINT
from tests.server.web import Web

ONE_BY_ONE, EVENTS, AT_ONCE = 200, 3_000, 100


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


async def accepted(web: Web) -> float:
    """Events a second, each with an external id and the start of a run."""
    numbers = iter(range(EVENTS))

    async def sender() -> None:
        for number in numbers:
            body = {"type": "invoice_overdue", "payload": {"amount": 2500}, "external_id": f"many {number}"}
            answer = await web.post("/api/events", body)
            assert answer.status == 201, answer

    began = time.perf_counter()
    await asyncio.gather(*(sender() for _ in range(AT_ONCE)))
    return EVENTS / (time.perf_counter() - began)


async def finished(client: batuta.Batuta) -> float:
    """Runs a second, of those that wait."""
    waiting = await client.count(workflow="flow", states=(RunState.PENDING,))
    began = time.perf_counter()
    async with client.worker(**await client.flows.parts()):
        while await client.count(workflow="flow", states=(RunState.PENDING, RunState.RUNNING, RunState.WAITING)):
            await asyncio.sleep(0.05)
    return waiting / (time.perf_counter() - began)


async def measure(url: str) -> dict[str, Any]:
    async with batuta.connect(url) as client:
        server = Server(client)
        web = Web(server.serve)
        web = web.with_headers(x_csrf_token=(await web.get("/api/v1/session")).json["csrf_token"])
        flow = (await web.post("/api/workflows", SPRINT)).json
        await web.post(f"/api/workflows/{flow['id']}/publish", {})
        async with client.worker(**await client.flows.parts()):
            took = await one_by_one(client, web)
        events = await accepted(web)
        runs = await finished(client)
        await server.close()
    return {
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
