"""Keys, sessions, tokens: who is let in, and how."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

import batuta
from batuta.server import Server
from batuta.server.access import request_limits, sign_in
from tests.server.web import Web


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is taken as known from a moment ago."""
    monkeypatch.setattr(sign_in, "KNOWN_SECONDS", -1.0)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/keys.db"


@pytest.fixture
async def client(url: str) -> AsyncIterator[batuta.Batuta]:
    async with batuta.connect(url) as opened:
        yield opened


@pytest.fixture
async def web(client: batuta.Batuta, url: str) -> AsyncIterator[Web]:
    server = Server(client, connect=lambda namespace: batuta.connect(url, namespace=namespace))
    yield Web(server.serve)
    await server.close()


async def key_of(client: batuta.Batuta, scope: str = "admin") -> str:
    return (await client.api_keys.create("ann", scope)).key


def bearer(web: Web, key: str) -> Web:
    return web.with_headers(authorization=f"Bearer {key}")


async def test_without_any_key_this_machine_alone_may_ask(web: Web) -> None:
    session = (await web.get("/api/v1/session")).json
    assert (session["sign_in"], session["principal"]["kind"]) == ("none", "loopback")
    assert (await web.get("/api/v1/runs")).status == 200
    for peer in ("192.0.2.7", "127.evil.example", "127.", ""):
        foreign = await Web(web.app, peer=peer).get("/api/v1/runs")
        assert (foreign.status, foreign.json["code"]) == (403, "forbidden"), peer
    for peer in ("127.0.0.1", "127.1.2.3", "::1"):
        assert (await Web(web.app, peer=peer).get("/api/v1/runs")).status == 200, peer


async def test_what_the_server_does_to_keys_counts_from_the_next_request_on(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sign_in, "KNOWN_SECONDS", 3600.0)
    csrf = (await web.get("/api/v1/session")).json["csrf_token"]
    asked = web.with_headers(**{"x-csrf-token": csrf})
    root = (await asked.post("/api/v1/api-keys", {"name": "root", "scope": "admin"})).json
    assert (await web.get("/api/v1/runs")).status == 401
    admin = bearer(web, root["key"])
    other = (await admin.post("/api/v1/api-keys", {"name": "ci", "scope": "viewer"})).json
    assert (await bearer(web, other["key"]).get("/api/v1/runs")).status == 200
    rotated = (await admin.post(f"/api/v1/api-keys/{other['id']}/rotate", {})).json
    assert (await bearer(web, other["key"]).get("/api/v1/runs")).status == 401
    assert (await bearer(web, rotated["key"]).get("/api/v1/runs")).status == 200
    assert (await admin.ask("DELETE", f"/api/v1/api-keys/{rotated['id']}")).status == 200
    assert (await bearer(web, rotated["key"]).get("/api/v1/runs")).status == 401


async def test_metrics_are_for_viewers_and_show_a_key_of_one_namespace_nothing_of_others(
    web: Web, client: batuta.Batuta, url: str
) -> None:
    assert (await web.get("/metrics")).status == 200
    async with batuta.connect(url, namespace="*") as root:
        every = bearer(web, await key_of(root, "viewer"))
    own = bearer(web, await key_of(client, "viewer"))
    assert (await web.get("/metrics")).status == 401
    async with batuta.connect(url, namespace="shop") as other:
        await other.enqueue("mail", queue="secret-queue")
        assert (await every.get("/api/v1/runs?namespace=shop")).status == 200
        seen = await every.get("/metrics")
    assert seen.headers["content-type"].startswith("text/plain")
    assert 'batuta_queue_depth{namespace="shop",queue="secret-queue",state="ready"} 1.0' in seen.body.decode()
    assert 'batuta_http_requests_total{method="GET",route="/metrics",status="200"} 1.0' in seen.body.decode()
    for answer in (await own.get("/metrics"), await every.get("/metrics?namespace=default")):
        assert 'batuta_store_up{namespace="default"} 1.0' in answer.body.decode()
        assert "shop" not in answer.body.decode()


async def test_a_page_of_a_stranger_that_points_its_name_here_is_refused(web: Web) -> None:
    for host in ("evil.example", "localhost.evil.example:8288", "evil.example:8288"):
        assert (await web.with_headers(host=host).get("/api/v1/runs")).status == 403
    for host in ("localhost:8288", "127.0.0.1:8288", "[::1]:8288", "[::1]"):
        assert (await web.with_headers(host=host).get("/api/v1/runs")).status == 200


async def test_a_change_without_the_token_is_refused_and_changes_nothing(web: Web) -> None:
    for headers in ({}, {"x_csrf_token": "0" * 64}):
        refused = await web.with_headers(**headers).post("/api/v1/runs", {"name": "order", "id": "r"})
        assert (refused.status, refused.json["code"]) == (403, "csrf_failed")
    assert (await web.get("/api/v1/runs/count")).json == {"count": 0}


async def test_once_there_is_a_key_every_caller_needs_one(web: Web, client: batuta.Batuta) -> None:
    key = await key_of(client)
    assert (await web.get("/api/v1/runs")).status == 401
    assert (await web.get("/api/v1/session")).json["sign_in"] == "key"
    assert (await bearer(web, key).get("/api/v1/runs")).status == 200
    made = await bearer(web, key).post("/api/v1/runs", {"name": "order", "id": "r"})
    assert made.status == 201  # no token: a browser sends no key by itself


async def test_a_key_is_not_in_the_database(client: batuta.Batuta, tmp_path: Path) -> None:
    key = await key_of(client)
    files = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert key.encode() not in files
    assert key.rpartition("_")[2].encode() not in files
    assert key.rpartition("_")[0].removeprefix("batuta_live_").encode() in files


@pytest.mark.parametrize("damage", ["", "batuta_live_", "x", "Basic abc"])
async def test_a_text_that_is_no_key_is_refused(web: Web, client: batuta.Batuta, damage: str) -> None:
    await key_of(client)
    refused = await bearer(web, damage).get("/api/v1/runs")
    assert (refused.status, refused.json["code"]) == (401, "unauthenticated")


async def test_a_key_with_another_secret_or_checksum_is_refused(web: Web, client: batuta.Batuta) -> None:
    key = await key_of(client)
    other = await key_of(client)
    mixed = key[:25] + other[25:]
    assert mixed not in (key, other)
    assert (await bearer(web, mixed).get("/api/v1/runs")).status == 401
    assert (await bearer(web, key[:-1] + ("0" if key[-1] != "0" else "1")).get("/api/v1/runs")).status == 401


async def test_a_key_that_is_revoked_or_expired_is_refused(web: Web, client: batuta.Batuta) -> None:
    made = await client.api_keys.create("ann", "viewer")
    short = await client.api_keys.create("bob", "viewer", expires=timedelta(hours=1))
    assert (await bearer(web, made.key).get("/api/v1/runs")).status == 200
    await client.api_keys.revoke(made.id, reason="lost")
    assert (await bearer(web, made.key).get("/api/v1/runs")).status == 401
    assert (await bearer(web, short.key).get("/api/v1/runs")).status == 200
    client._backend.access.store.shift_clock(3601)  # the clock of the store
    assert (await bearer(web, short.key).get("/api/v1/runs")).status == 401


async def test_a_key_is_rotated_with_an_overlap(web: Web, client: batuta.Batuta) -> None:
    old = await client.api_keys.create("ann", "admin")
    new = await bearer(web, old.key).post(f"/api/v1/api-keys/{old.id}/rotate", {"overlap": 60, "reason": "yearly"})
    assert (new.status, new.json["scope"], new.json["name"]) == (200, "admin", "ann")
    assert (await bearer(web, old.key).get("/api/v1/runs")).status == 200
    assert (await bearer(web, new.json["key"]).get("/api/v1/runs")).status == 200
    listed = (await bearer(web, new.json["key"]).get("/api/v1/api-keys")).json["api_keys"]
    assert "key" not in listed[0]
    assert {one["id"]: one["revoked_at"] is not None for one in listed} == {old.id: True, new.json["id"]: False}


async def test_a_key_of_one_namespace_does_not_see_another(web: Web, url: str, client: batuta.Batuta) -> None:
    await client.start("order", 1, id="mine")
    async with batuta.connect(url, namespace="other") as other:
        theirs = await other.api_keys.create("eve", "admin")
        await other.start("order", 1, id="theirs")
    eve = bearer(web, theirs.key)
    assert [run["id"] for run in (await eve.get("/api/v1/runs")).json["runs"]] == ["theirs"]
    foreign, absent = await eve.get("/api/v1/runs/mine"), await eve.get("/api/v1/runs/none")
    assert (foreign.status, foreign.json["code"]) == (absent.status, absent.json["code"]) == (404, "unknown_run")
    assert (await eve.get("/api/v1/runs", namespace="default")).status == 403
    async with batuta.connect(url, namespace="*") as every:
        key = (await every.api_keys.create("root", "admin")).key
    root = bearer(web, key)
    assert [run["id"] for run in (await root.get("/api/v1/runs")).json["runs"]] == ["mine"]
    assert [run["id"] for run in (await root.get("/api/v1/runs", namespace="other")).json["runs"]] == ["theirs"]


async def test_a_person_signs_in_changes_something_and_signs_out(web: Web, client: batuta.Batuta) -> None:
    key = await key_of(client, "operator")
    answer = await web.post("/api/v1/session", {"key": key})
    assert (answer.status, answer.json["principal"]["scope"]) == (200, "operator")
    cookie = answer.cookies[0]
    assert all(word in cookie for word in ("HttpOnly", "SameSite=Strict", "Path=/"))
    assert key not in cookie
    signed = web.with_headers(cookie=cookie.partition(";")[0])
    assert (await signed.get("/api/v1/runs")).status == 200
    assert (await signed.post("/api/v1/runs", {"name": "order"})).json["code"] == "csrf_failed"
    token = (await signed.get("/api/v1/session")).json["csrf_token"]
    assert token == answer.json["csrf_token"]
    assert (await signed.with_headers(x_csrf_token=token).post("/api/v1/runs", {"name": "order"})).status == 201
    rows = (await bearer(web, key).get("/api/v1/audit")).json["rows"]
    assert rows[-1]["verb"] == "create api key"
    left = await signed.ask("DELETE", "/api/v1/session")
    assert (left.status, "Max-Age=0" in left.cookies[0]) == (204, True)
    assert (await signed.get("/api/v1/runs")).status == 401  # a copy of the cookie is worth nothing
    assert (await signed.ask("DELETE", "/api/v1/session")).status == 204


async def test_a_session_that_was_signed_out_is_refused_by_every_server_with_the_same_secret(
    client: batuta.Batuta,
) -> None:
    key, secret = await key_of(client, "operator"), b"s" * 32
    here, there = (Web(Server(client, secret=secret).serve) for _ in range(2))
    cookies = [(await here.post("/api/v1/session", {"key": key})).cookies[0].partition(";")[0] for _ in range(2)]
    first, second = (there.with_headers(cookie=cookie) for cookie in cookies)
    assert [(await one.get("/api/v1/runs")).status for one in (first, second)] == [200, 200]
    await here.with_headers(cookie=cookies[0]).ask("DELETE", "/api/v1/session")
    async with asyncio.timeout(20):
        while (await first.get("/api/v1/runs")).status == 200:
            await asyncio.sleep(0.05)
    assert [(await one.get("/api/v1/runs")).status for one in (first, second)] == [401, 200]


async def test_a_session_ends_with_its_key_and_with_its_time(
    web: Web, client: batuta.Batuta, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await client.api_keys.create("ann", "viewer")
    await key_of(client)
    cookie = (await web.post("/api/v1/session", {"key": made.key})).cookies[0].partition(";")[0]
    assert (await web.with_headers(cookie=cookie).get("/api/v1/runs")).status == 200
    await client.api_keys.revoke(made.id)
    assert (await web.with_headers(cookie=cookie).get("/api/v1/runs")).status == 401
    monkeypatch.setattr(sign_in, "SESSION_SECONDS", -1)
    other = await client.api_keys.create("bob", "viewer")
    old = (await web.post("/api/v1/session", {"key": other.key})).cookies[0].partition(";")[0]
    assert (await web.with_headers(cookie=old).get("/api/v1/runs")).status == 401


async def test_a_forged_cookie_is_refused(web: Web, client: batuta.Batuta) -> None:
    made = await client.api_keys.create("ann", "admin")
    real = (await web.post("/api/v1/session", {"key": made.key})).cookies[0].partition(";")[0]
    text, _, signature = real.rpartition(".")
    for forged in (
        text,
        f"{text}.",
        f"{text}.{'0' * 64}",
        f"{text}0.{signature}",
        "batuta_session=",
        "batuta_session=..",
    ):
        assert (await web.with_headers(cookie=forged).get("/api/v1/runs")).status == 401


async def test_wrong_keys_are_slowed_down_for_the_address_that_sends_them(web: Web, client: batuta.Batuta) -> None:
    key = await key_of(client)
    for _ in range(request_limits.MOST_WRONG):
        assert (await web.post("/api/v1/session", {"key": "batuta_live_wrong"})).status == 401
    refused = await web.post("/api/v1/session", {"key": key})
    assert (refused.status, refused.json["code"]) == (429, "too_many_requests")
    assert int(refused.headers["retry-after"]) > 0
    assert (await Web(web.app, peer="192.0.2.7").post("/api/v1/session", {"key": key})).status == 200
    assert (await bearer(web, "batuta_live_wrong").get("/api/v1/runs")).status == 429
    assert (await bearer(web, key).get("/api/v1/runs")).status == 200  # others cannot lock programs out


async def test_wrong_keys_from_many_addresses_are_slowed_down_and_good_ones_are_not(
    web: Web, client: batuta.Batuta
) -> None:
    key = await key_of(client)
    for number in range(10 * request_limits.MOST_WRONG):
        assert (await Web(web.app, peer=f"198.51.100.{number}").post("/api/v1/session", {"key": "no"})).status == 401
    stranger = Web(web.app, peer="192.0.2.9")
    assert (await stranger.post("/api/v1/session", {"key": "no"})).status == 429
    assert (await stranger.post("/api/v1/session", {"key": key})).status == 200


async def test_costly_requests_are_limited_for_each_key_and_others_go_on(client: batuta.Batuta) -> None:
    server = Server(client, costly_rate=batuta.Rate(3, 3600))
    ann, bob = [bearer(Web(server.serve), await key_of(client)) for _ in range(2)]
    bulk = {"verb": "pause", "filter": {"name": "none"}, "reason": "try"}
    assert [(await ann.get("/api/v1/api-keys")).status for _ in range(2)] == [200, 200]
    assert (await ann.post("/api/v1/runs/bulk", bulk)).json["code"] == "nothing_matches"
    for refused in (await ann.post("/api/v1/runs/bulk", bulk), await ann.get("/api/v1/api-keys")):
        assert (refused.status, refused.json["code"]) == (429, "too_many_requests")
        assert int(refused.headers["retry-after"]) > 3000
    assert (await ann.get("/api/v1/runs")).status == 200
    assert (await bob.get("/api/v1/api-keys")).status == 200
    await server.close()


async def test_costly_requests_of_all_keys_of_a_namespace_are_limited(client: batuta.Batuta) -> None:
    server = Server(client, costly_rate=batuta.Rate(1, 3600))
    keys = [await key_of(client) for _ in range(11)]
    asked = [(await bearer(Web(server.serve), key).get("/api/v1/api-keys")).status for key in keys]
    assert asked == [200] * 10 + [429]
    await server.close()


async def test_a_viewer_cannot_reveal_and_an_operator_is_noted(
    web: Web, client: batuta.Batuta, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.start("order", "ann@example.com", id="r", tags={"mail": "ann@example.com"})
    monkeypatch.setenv("BATUTA_REDACT", "1")
    redacting = Web(Server(client).serve)
    viewer, operator = await key_of(client, "viewer"), await key_of(client, "operator")
    assert b"ann@example.com" not in (await bearer(redacting, viewer).get("/api/v1/runs/r/page")).body
    assert (await bearer(redacting, viewer).get("/api/v1/runs/r", reveal="true", reason="x")).status == 403
    assert (await bearer(redacting, operator).get("/api/v1/runs/r", reveal="true")).status == 400
    shown = await bearer(redacting, operator).get("/api/v1/runs/r", reveal="true", reason="ticket 7")
    assert b"ann@example.com" in shown.body
    rows = (await bearer(redacting, operator).get("/api/v1/audit", verb="reveal")).json["rows"]
    assert [(row["target"], row["reason"]) for row in rows] == [("r", "ticket 7")]


async def test_every_route_that_shows_what_is_stored_hides_what_redaction_hides(
    web: Web, client: batuta.Batuta, monkeypatch: pytest.MonkeyPatch
) -> None:
    mail = "ann@example.com"
    admin = bearer(web, await key_of(client))
    event = {"type": "paid", "payload": {"to": mail}, "external_id": "1"}
    sent = (await admin.post("/api/events", event)).json
    hook = (await admin.post("/api/v1/webhooks", {"url": f"https://example.com/{mail}", "description": mail})).json
    await client.limits.change("bank", rate="1/s", reason=mail)
    monkeypatch.setenv("BATUTA_REDACT", "1")
    hiding = Web(Server(client).serve, admin.headers)
    change = {"rates": ["2/s"], "reason": mail}
    for method, path, body in (
        ("POST", "/api/events", event),
        ("POST", f"/api/events/{sent['id']}/replay", {}),
        ("GET", f"/api/v1/webhooks/{hook['id']}", None),
        ("PATCH", f"/api/v1/webhooks/{hook['id']}", {"types": ["a.b"]}),
        ("POST", f"/api/v1/webhooks/{hook['id']}/disable", {}),
        ("GET", "/api/v1/partners", None),
        ("PUT", "/api/v1/partners/limits/bank", change),
        ("POST", "/api/v1/partners/limits/bank/hold", {"seconds": 1}),
    ):
        for headers in ({}, {"idempotency-key": path}, {"idempotency-key": path}) if method == "POST" else ({},):
            shown = await hiding.ask(method, path, body, headers=headers)
            assert (shown.status < 300, mail.encode() in shown.body, b"[email]" in shown.body) == (True, False, True), (
                path
            )
    whole = await hiding.get(f"/api/v1/webhooks/{hook['id']}", reveal="true", reason="ticket 7")
    assert mail.encode() in whole.body


async def test_the_document_of_a_flow_is_shown_as_it_is_for_an_editor_saves_what_it_shows(
    web: Web, client: batuta.Batuta, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = {"actionType": "webhook", "url": "https://example.com", "headers": {"Authorization": "secret://store/crm"}}
    steps = [{"key": "call", "type": "action", "config": call}, {"key": "end", "type": "end"}]
    monkeypatch.setenv("BATUTA_REDACT", "1")
    admin = bearer(Web(Server(client).serve), await key_of(client))
    made = (await admin.post("/api/workflows", {"name": "f", "trigger_type": "paid", "steps": steps})).json
    assert made["steps"] == steps
    assert (await admin.get(f"/api/workflows/{made['id']}")).json["steps"] == steps
    assert (await admin.get(f"/api/v1/flows/{made['id']}")).json["workflow"]["steps"] == steps


async def test_a_problem_quotes_nothing_that_redaction_hides(
    web: Web, client: batuta.Batuta, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.start("order", 1, id="ann@example.com")
    monkeypatch.setenv("BATUTA_REDACT", "1")
    asks = Web(Server(client).serve).with_headers(authorization=f"Bearer {await key_of(client, 'operator')}")
    body = {"name": "order", "id": "ann@example.com", "input": [2], "if_exists": "reject"}
    for headers in ({}, {"Idempotency-Key": "once"}, {"Idempotency-Key": "once"}):
        refused = await asks.ask("POST", "/api/v1/runs", body, headers=headers)
        assert (refused.status, b"ann@" in refused.body, "[email]" in refused.json["detail"]) == (409, False, True)
