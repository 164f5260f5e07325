"""Requests with an idempotency key: done once, answered the same again."""

import asyncio
from typing import Any

import pytest
from starlette.requests import Request

import batuta
from batuta.errors import IdempotencyInProgress, StoreUnavailable
from batuta.resilience.idempotency import Idempotency
from batuta.server import Principal, Scope, Server, dashboard
from batuta.server.http.routing import Repeat
from batuta.server.table import TABLE
from tests.server.test_table import body_of, path_of
from tests.server.web import Web


async def test_the_same_request_is_done_once_and_answered_the_same(web: Web) -> None:
    body = {"name": "order", "input": [1]}
    first = await web.post("/api/v1/runs", body, idempotency_key="k1")
    again = await web.post("/api/v1/runs", body, idempotency_key="k1")
    assert (first.status, first.body, first.headers["location"]) == (201, again.body, again.headers["location"])
    assert (again.status, again.headers["idempotency-replayed"]) == (201, "true")
    assert "idempotency-replayed" not in first.headers
    assert (await web.get("/api/v1/runs/count")).json == {"count": 1}
    counted = (await web.get("/metrics")).body.decode()
    assert 'batuta_idempotency_replays_total{route="/api/v1/runs"} 1.0' in counted
    assert 'batuta_http_requests_total{method="POST",route="/api/v1/runs",status="201"} 2.0' in counted


async def test_the_same_key_with_another_body_or_path_is_a_conflict(web: Web) -> None:
    await web.post("/api/v1/runs", {"name": "order", "id": "a"}, idempotency_key="k1")
    for path, body in (("/api/v1/runs", {"name": "order", "id": "b"}), ("/api/v1/jobs", {"name": "order", "id": "a"})):
        refused = await web.post(path, body, idempotency_key="k1")
        assert (refused.status, refused.json["code"]) == (409, "idempotency_key_reused")
    assert (await web.get("/api/v1/runs/count", kind="any")).json == {"count": 1}


async def test_a_refusal_is_answered_the_same_too(web: Web) -> None:
    refused = await web.post("/api/v1/runs/none/pause", {}, idempotency_key="k1")
    await web.post("/api/v1/runs", {"name": "order", "id": "none"})
    again = await web.post("/api/v1/runs/none/pause", {}, idempotency_key="k1")
    assert (refused.status, refused.json["code"], again.body) == (404, "unknown_run", refused.body)


async def test_keys_of_two_credentials_are_two_keys(client: batuta.Batuta) -> None:
    server = Server(client)
    keys = [(await client.api_keys.create(name, "operator")).key for name in ("ann", "bob")]
    for key in keys:
        web = Web(server.serve, {"authorization": f"Bearer {key}"})
        assert (await web.post("/api/v1/runs", {"name": "order"}, idempotency_key="k")).status == 201
    assert await client.count() == 2


async def test_a_request_that_fails_may_be_sent_again(web: Web, client: batuta.Batuta, monkeypatch: Any) -> None:
    start = client.start

    async def away(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("away")

    monkeypatch.setattr(client, "start", away)
    failed = await web.post("/api/v1/runs", {"name": "order"}, idempotency_key="k1")
    assert (failed.status, failed.json["code"], failed.headers["retry-after"]) == (503, "store_unavailable", "1")
    monkeypatch.setattr(client, "start", start)
    assert (await web.post("/api/v1/runs", {"name": "order"}, idempotency_key="k1")).status == 201


async def test_while_a_request_is_under_way_its_twin_is_told_to_wait(client: batuta.Batuta) -> None:
    idempotency = Idempotency(client.namespace.requests, wait=0)
    entered, leave = asyncio.Event(), asyncio.Event()

    async def work() -> tuple[str, bool]:
        entered.set()
        await leave.wait()
        return "done", True

    first = asyncio.create_task(idempotency.once("ann", "k", b"x", work))
    await entered.wait()
    with pytest.raises(IdempotencyInProgress, match="under way"):
        await idempotency.once("ann", "k", b"x", work)
    leave.set()
    assert await first == ("done", False)
    assert await idempotency.once("ann", "k", b"x", work) == ("done", True)


async def test_a_key_that_was_made_is_not_kept_for_a_repeated_request(web: Web, client: batuta.Batuta) -> None:
    made = await web.post("/api/v1/api-keys", {"name": "ann", "scope": "admin"}, idempotency_key="k1")
    again = await web.with_headers(authorization=f"Bearer {made.json['key']}").post(
        "/api/v1/api-keys", {"name": "ann", "scope": "admin"}, idempotency_key="k1"
    )
    assert (made.status, again.status) == (201, 201)  # another credential: another key
    kept = client._backend.access.store._tables.requests  # type: ignore[attr-defined]  # what it keeps
    assert len(kept) == 2
    assert made.json["key"] not in str(kept)


async def test_an_update_with_a_key_waits_for_the_same_answer(web: Web, worker: None) -> None:
    await web.post("/api/v1/runs", {"name": "basket", "id": "b"})
    answers = [
        (await web.post("/api/v1/runs/b/update", {"name": "put", "args": ["ham"]}, idempotency_key="k")).json
        for _ in range(2)
    ]
    assert [one["answer"] for one in answers] == [1, 1]


async def test_the_same_update_of_two_users_of_an_application_is_two_updates(
    client: batuta.Batuta, worker: None
) -> None:
    async def who(request: Request) -> Principal | None:
        return Principal(name=request.headers["x-user"], kind="app", scope=Scope.OPERATOR, namespace="default")

    app = dashboard(client, authenticate=who)
    await client.start("basket", id="b")
    for name, size in (("ann", 1), ("bob", 2), ("ann", 1)):
        web = Web(app).with_headers(x_user=name)
        web = web.with_headers(x_csrf_token=(await web.get("/api/v1/session")).json["csrf_token"])
        put = await web.post("/api/v1/runs/b/update", {"name": "put", "args": ["ham"]}, idempotency_key="k")
        assert put.json["answer"] == size, name


@pytest.mark.parametrize("key", ["", "x" * 201, "é"])
async def test_a_key_that_is_none_is_a_problem(web: Web, key: str) -> None:
    refused = await web.post("/api/v1/runs", {"name": "order"}, idempotency_key=key)
    assert (refused.status, refused.json["code"]) == (400, "invalid_input")


@pytest.mark.parametrize(
    "route",
    [route for route in TABLE if route.method == "POST" and route.repeat is Repeat.KEPT],
    ids=lambda route: route.path,
)
async def test_every_post_answers_the_same_again(web: Web, route: Any) -> None:
    first = await web.post(path_of(route), body_of(route), idempotency_key="k")
    again = await web.post(path_of(route), body_of(route), idempotency_key="k")
    assert (again.status, again.headers["idempotency-replayed"]) == (first.status, "true")
    assert again.body == first.body
