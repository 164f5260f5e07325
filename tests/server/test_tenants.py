"""A tenant with a key of its own asks every route for what another tenant has, by its ids."""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import batuta
from batuta.server import Server
from batuta.server.http.routing import Route
from batuta.server.table import TABLE
from tests.server.furnished import HUSH, furnish
from tests.server.test_table import PUBLIC, body_of
from tests.server.web import Web


@pytest.fixture(params=["sqlite_url", "postgres_url"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param)
    return found


@pytest.fixture
async def server(url: str) -> AsyncIterator[Server]:
    async with batuta.connect(url) as client:
        made = Server(
            client,
            connect=lambda namespace: batuta.connect(url, namespace=namespace),
            costly_rate=batuta.Rate(100_000, 60),
        )
        yield made
        await made.close()


async def caller(server: Server, url: str, namespace: str) -> Web:
    async with batuta.connect(url, namespace=namespace) as client:
        key = (await client.api_keys.create("root", "admin")).key
    return Web(server.serve, {"authorization": f"Bearer {key}"})


def paths_of(route: Route, ids: list[str]) -> list[str]:
    if not route.parameters:
        return [route.path]
    return ["/".join(id if part.startswith("{") else part for part in route.path.split("/")) for id in ids]


GUARDED = [route for route in TABLE if route.path not in PUBLIC and not route.streams and route.path != "/metrics"]
VOLATILE = {"as_of", "last_used_at", "oldest_seconds", "seconds"}


def steady(value: Any) -> Any:
    """Without what time alone changes."""
    if isinstance(value, dict):
        return {name: steady(part) for name, part in value.items() if name not in VOLATILE}
    return [steady(part) for part in value] if isinstance(value, list) else value


async def everything(web: Web, ids: list[str]) -> dict[str, Any]:
    found = {}
    for route in GUARDED:
        if route.method == "GET" and route.noun not in ("overview", "status", "workers", "cache"):
            for path in paths_of(route, ids):
                answer = await web.get(path)
                found[path] = answer.status, steady(json.loads(answer.body)) if answer.status == 200 else None
    return found


def asking_for(ids: list[str]) -> Iterator[tuple[str, str, Any]]:
    """Requests that name things of others in their query or body."""
    bulk, letters = "/api/v1/runs/bulk", "/api/v1/dead-letters"
    for id in ids:
        yield "GET", f"/api/v1/runs/mine/diff?with={id}", None
        yield "GET", f"/api/v1/events?run={id}", None
        yield "GET", f"/api/v1/audit?target={id}", None
        yield "GET", f"/api/v1/bus/messages?topic={id}", None
        yield "GET", f"/api/v1/webhooks?endpoint={id}", None
        yield "GET", f"/api/workflows?name={id}", None
        yield "GET", f"/api/v1/runs?id_prefix={id}", None
        yield "POST", "/api/workflows/dry-run", {"workflow_id": id}
        yield "POST", "/api/v1/webhooks/send", {"type": "a.b", "endpoints": [id]}
        yield "POST", bulk, {"verb": "terminate", "filter": {"id_prefix": id, "kind": "any"}, "reason": "x", "wait": 5}
        yield "POST", f"{letters}/discard", {"ids": [id], "reason": "x", "wait": 5}
        yield "POST", f"{letters}/reprocess", {"ids": [id], "wait": 5}
        yield from (("POST", "/api/runs", {"workflow_id": id, "event_id": other}) for other in ids)
    for run_id in ids[1:6:2]:
        yield "POST", bulk, {"verb": "delete", "filter": {"parent": run_id, "kind": "any"}, "reason": "x", "wait": 5}


async def test_no_route_shows_or_changes_what_another_tenant_has(server: Server, url: str) -> None:
    acme, eve = await caller(server, url, "acme"), await caller(server, url, "acme/eve")
    async with batuta.connect(url, namespace="acme") as client:
        ids = await furnish(acme, client)
    before = await everything(acme, ids)
    assert sum(status == 200 for status, _ in before.values()) > 60
    assert HUSH in str(before)
    for route in GUARDED:
        for path in paths_of(route, ids):
            answer = await eve.ask(route.method, path, body_of(route))
            assert answer.status < 500, (route.method, path, answer)
            assert HUSH.encode() not in answer.body, (route.method, path, answer)
    made = await eve.post("/api/v1/runs", {"name": "order", "id": "mine"})
    assert made.status == 201
    for method, path, body in asking_for(ids):
        answer = await eve.ask(method, path, body)
        assert answer.status in (200, 404, 409), (path, body, answer)
        assert HUSH.encode() not in answer.body, (path, body, answer)
    assert await everything(acme, ids) == before
