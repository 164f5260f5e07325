"""Bad input to every route: the right problem, and nothing has changed. Made from the table of routes."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import batuta
from batuta.server import Server
from batuta.server.access import sign_in
from batuta.server.http import endpoint
from batuta.server.http.routing import Route, Scope
from batuta.server.table import TABLE
from tests.server.test_table import body_of, is_problem, path_of
from tests.server.web import Response, Web

GUARDED = [route for route in TABLE if route.scope is not Scope.PUBLIC]
WITH_BODY = [route for route in TABLE if route.body is not None]
IDS = {"runs", "jobs", "dead-letters", "operations", "schedules", "api-keys", "webhooks", "workflows"}
"""Nouns whose routes with an id are about something that is there."""


def named(route: Route) -> str:
    return f"{route.method} {route.path}"


class Place:
    """A server with one key, and something of each kind to change."""

    def __init__(self, client: batuta.Batuta, server: Server) -> None:
        self.client, self.server, self.web = client, server, Web(server.serve)
        self.key = ""

    @property
    def store(self) -> Any:
        return self.client._backend.access.store  # all that is kept

    def state(self) -> str:
        return repr(self.store._tables)

    def bearer(self, key: str) -> Web:
        return self.web.with_headers(authorization=f"Bearer {key}")

    async def refused(self, asked: Response, status: int, code: str, before: str) -> None:
        assert (asked.status, asked.json["code"], is_problem(asked)) == (status, code, True)
        assert self.state() == before


@pytest.fixture
async def place(client: batuta.Batuta, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    monkeypatch.setattr(sign_in, "KNOWN_SECONDS", -1.0)
    made = Place(client, Server(client))
    await client.start("order", 1, id="unknown/not")
    await client.schedules.create(batuta.Schedule("s", batuta.every(60), "order"))
    await client.limit_queue("mail", concurrency=1)
    made.key = (await client.api_keys.create("ann", "admin")).key
    yield made
    await made.server.close()


async def ask(web: Web, route: Route, **more: Any) -> Response:
    body = None if "data" in more else body_of(route)
    return await web.ask(route.method, path_of(route), body, **more)


@pytest.mark.parametrize("route", GUARDED, ids=named)
async def test_a_credential_that_is_not_good_changes_nothing(place: Place, route: Route) -> None:
    old = await place.client.api_keys.create("old", "admin", expires=60)
    gone = await place.client.api_keys.create("gone", "admin")
    foreign = await place.client.api_keys.create("foreign", "admin")
    await place.client.api_keys.revoke(gone.id)
    place.store._database.keys[foreign.id].namespace = "other"
    place.store.shift_clock(61)
    before = place.state()
    wrong = "batuta_live_" + "0" * 12 + "_" + "0" * 72
    for key in (wrong, old.key, gone.key, place.key[:-1] + "x", ""):
        await place.refused(await ask(place.bearer(key), route), 401, "unauthenticated", before)
    basic = place.web.with_headers(authorization="Basic YW5uOnNlY3JldA==")
    await place.refused(await ask(basic, route), 401, "unauthenticated", before)
    await place.refused(await ask(place.bearer(foreign.key), route), 403, "forbidden", before)


@pytest.mark.parametrize("route", GUARDED, ids=named)
async def test_a_forged_cookie_or_a_missing_token_changes_nothing(place: Place, route: Route) -> None:
    signed = await place.web.post("/api/v1/session", {"key": place.key})
    cookie = signed.cookies[0].partition(";")[0]
    token = signed.json["csrf_token"]
    text, _, signature = cookie.rpartition(".")
    before = place.state()
    forged = [
        f"{text}.{'0' * len(signature)}",
        f"{text.replace(':', '0:', 1)}.{signature}",
        "batuta_session=",
        "batuta_session=x.y",
        "batuta_session=%00",
    ]
    for one in forged:
        web = place.web.with_headers(cookie=one, x_csrf_token=token)
        await place.refused(await ask(web, route), 401, "unauthenticated", before)
    if route.method != "GET":
        for given in ({}, {"x_csrf_token": ""}, {"x_csrf_token": token[:-1] + "g"}, {"x_csrf_token": "0" * 64}):
            web = place.web.with_headers(cookie=cookie, **given)
            await place.refused(await ask(web, route), 403, "csrf_failed", before)


@pytest.mark.parametrize("route", WITH_BODY, ids=named)
async def test_a_body_that_cannot_be_read_changes_nothing(
    place: Place, route: Route, monkeypatch: pytest.MonkeyPatch
) -> None:
    web, before = place.bearer(place.key), place.state()
    wrong_types = b'{"' + b'": [[]], "'.join(name.encode() for name in route.body.__struct_fields__) + b'": [[]]}'
    for data in (b"{", b"\xff", wrong_types, b'{"colour": 1}'):
        await place.refused(await ask(web, route, data=data), 400, "invalid_input", before)
    await place.refused(await ask(web, route, data=b" " * 3_000_000), 413, "too_large", before)
    form = {"content-type": "application/x-www-form-urlencoded"}
    await place.refused(await ask(web, route, data=b"a=b", headers=form), 415, "unsupported_media_type", before)
    monkeypatch.setattr(endpoint, "SLOWEST_BODY", 0.01)
    await place.refused(await _slowly(place, route), 408, "request_timeout", before)


async def _slowly(place: Place, route: Route) -> Response:
    """A client that sends a part of the body, and then nothing."""
    web, response = place.bearer(place.key), Response()
    scope = web._scope(route.method, path_of(route), None, {"content-type": "application/json"})
    parts: asyncio.Queue[Any] = asyncio.Queue()
    parts.put_nowait({"type": "http.request", "body": b"{", "more_body": True})

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            response.status = message["status"]
            response.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            response.body += message.get("body", b"")

    await web.app(scope, parts.get, send)
    return response


@pytest.mark.parametrize("route", [route for route in GUARDED if route.parameters], ids=named)
async def test_an_id_that_is_not_there_changes_nothing(place: Place, route: Route) -> None:
    if route.noun not in IDS:
        return
    web, before = place.bearer(place.key), place.state()
    asked = await ask(web, route)
    assert place.state() == before
    if route.query.__struct_fields__ == ("reason",):  # it needs a reason first
        asked = await web.ask(route.method, f"{path_of(route)}?reason=x", body_of(route))
    assert (asked.status, is_problem(asked)) in ((404, True), (400, True))
    assert asked.status == 404 or route.body is not None
    assert place.state() == before
