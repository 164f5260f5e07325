"""A namespace with one of everything that the server knows, made through its API."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import batuta
from batuta import Retry, job
from batuta.bus import Message, subscribe
from tests.flows.http import at_work
from tests.partners import declare
from tests.server.shop import APP
from tests.server.web import Web

HUSH = "hushhush"
"""Stands in every value of the namespace, and in no id that a caller needs."""
FLOW: dict[str, Any] = {
    "name": f"Flow {HUSH}",
    "description": HUSH,
    "trigger_type": "paid",
    "steps": [
        {"key": "ask", "type": "approval", "config": {"title": HUSH}},
        {"key": "end", "type": "end"},
    ],
}


@job(retry=Retry(attempts=1))
async def book(message: Message[int]) -> None:
    pass


async def made(web: Web, method: str, path: str, body: Any = None, **headers: str) -> Any:
    answer = await web.ask(method, path, body, headers=headers)
    assert answer.status < 300, (path, answer)
    return answer.json


@asynccontextmanager
async def at_work_on_all(client: batuta.Batuta) -> AsyncIterator[None]:
    worker = client.worker(
        workflows=APP.workflows, activities=APP.activities, jobs=APP.jobs, subscriptions=[subscribe("orders", book)]
    )
    async with worker, at_work(client):
        yield


async def furnish(web: Web, client: batuta.Batuta) -> list[str]:
    """Everything, and the ids and names by which callers would ask for it. `web` has the rights of an admin."""
    api, tags = "/api/v1", {"word": HUSH}
    found: list[str] = []
    async with at_work_on_all(client):
        for name, id, given in (("order", "done", [7]), ("basket", "open", []), ("order", "bad", [-1])):
            run = {"name": name, "id": id, "input": given, "tags": tags, "memo": HUSH}
            found += [id, (await made(web, "POST", f"{api}/runs", run, **{"idempotency-key": f"{id}-key"}))["run_id"]]
        await made(web, "POST", f"{api}/runs/open/update", {"name": "put", "args": [HUSH], "update_id": "first"})
        for to in ("nobody", HUSH):
            found.append((await made(web, "POST", f"{api}/jobs", {"name": "send", "input": [to]}))["run_id"])
        await made(web, "POST", f"{api}/bus/messages", {"topic": "orders", "payload": HUSH, "id": "m1", "key": HUSH})
        await _settled(client)
        flow = (await made(web, "POST", "/api/workflows", FLOW))["id"]
        await made(web, "POST", f"/api/workflows/{flow}/publish", {})
        event = (await made(web, "POST", "/api/events", {"type": "paid", "payload": {"x": HUSH}}))["id"]
        found += [flow, event, await _approval(web)]
    await declare(client)
    schedule = {"id": "nightly", "name": "order", "cron": "0 3 * * *", "input": [HUSH]}
    await made(web, "POST", f"{api}/schedules", schedule)
    await made(web, "PATCH", f"{api}/queues/slow", {"concurrency": 3, "reason": HUSH})
    await made(web, "PUT", "/api/secrets/crm", {"value": HUSH})
    await made(web, "PUT", f"{api}/quotas/open_runs", {"limit": 1_000, "reason": HUSH})
    await made(web, "PUT", f"{api}/partners/breakers/bank", {"state": "open", "reason": HUSH})
    endpoint = (await made(web, "POST", f"{api}/webhooks", {"url": f"https://example.com/{HUSH}"}))["id"]
    sent = await made(web, "POST", f"{api}/webhooks/send", {"type": "order.paid", "data": HUSH, "id": "evt-1"})
    ended = {"verb": "pause", "filter": {"name": "basket"}, "reason": HUSH, "wait": 30}
    operation = (await made(web, "POST", f"{api}/runs/bulk", ended))["id"]
    key = (await made(web, "POST", f"{api}/api-keys", {"name": HUSH, "scope": "viewer"}))["id"]
    found += ["nightly", "slow", "crm", "open_runs", "bank", "orders", "book", "amount", "order", "basket"]
    return [*found, endpoint, sent["deliveries"][0]["run_id"], operation, key]


async def _settled(client: batuta.Batuta) -> None:
    """All but the basket have ended, and three of them as dead letters."""
    async with asyncio.timeout(60):
        while await client.count(kind="any", states=["pending", "running"]) or await client.dead_letters.count() < 3:
            await asyncio.sleep(0.02)


async def _approval(web: Web) -> str:
    async with asyncio.timeout(60):
        while not (found := (await made(web, "GET", "/api/approvals"))["approvals"]):
            await asyncio.sleep(0.02)
    return str(found[0]["run_id"])
