"""The server inside an application of the user's own, and problems in the application's own routes."""

import json
import os
import re
import subprocess
import sys
from typing import Annotated, Any
from urllib.request import urlopen

import pytest
from msgspec import Meta, Struct
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import batuta
from batuta import asgi
from batuta.errors import (
    AlreadyStarted,
    BatutaError,
    InvalidInput,
    QuotaExceeded,
    RunFailed,
    StoreUnavailable,
    UnknownRun,
)
from batuta.problems import problem_of
from batuta.redaction import Redactor
from batuta.server import Action, Gauge, Gauges, Page, Principal, Scope, Table, dashboard
from tests.server.web import Web


async def who(request: Request) -> Principal | None:
    name = request.headers.get("x-user")
    scope = Scope.ADMIN if name == "ann" else Scope.VIEWER
    return None if name is None else Principal(name=name, kind="app", scope=scope, namespace="default")


async def test_a_mounted_server_works_below_its_path_with_the_applications_own_users(client: batuta.Batuta) -> None:
    async def hello(_: Request) -> PlainTextResponse:
        return PlainTextResponse("hello")

    app = Starlette()
    app.mount("/batuta", dashboard(client, authenticate=who, pages=[Route("/mine", hello)]))
    web = Web(app)
    assert (await web.get("/batuta/api/v1/runs")).status == 401
    assert (await web.get("/batuta/mine")).body == b"hello"
    ann = web.with_headers(x_user="ann")
    token = (await ann.get("/batuta/api/v1/session")).json["csrf_token"]
    made = await ann.with_headers(x_csrf_token=token).post("/batuta/api/v1/runs", {"name": "order", "id": "a/b"})
    assert made.headers["location"] == f"/batuta/api/v1/runs/{made.json['run_id']}"
    assert (await ann.get("/batuta/api/v1/runs/a%2Fb")).json["id"] == "a/b"
    bob = web.with_headers(x_user="bob", x_csrf_token=token)
    assert (await bob.post("/batuta/api/v1/runs", {"name": "order"})).status == 403
    page = await web.get("/batuta/")
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    described = (await web.get("/batuta/openapi.json")).json
    assert described["servers"] == [{"url": "/batuta"}]


async def test_a_page_of_the_application_is_in_the_menu_of_those_who_may_see_it(client: batuta.Batuta) -> None:
    async def partners(found: batuta.Batuta) -> list[Table]:
        runs = await found.list(limit=5)
        return [Table(title="Runs", columns=["run"], rows=[[{"run": run.id}] for run in runs.runs], note="none yet")]

    pages = [Page("Partners", "/partners", partners), Page("Secrets", "/secrets", partners, Scope.ADMIN)]
    app = Starlette()
    app.mount("/batuta", dashboard(client, authenticate=who, pages=pages))
    ann, bob = (Web(app).with_headers(x_user=name) for name in ("ann", "bob"))
    titles = [[page["title"] for page in (await web.get("/batuta/api/v1/session")).json["pages"]] for web in (ann, bob)]
    assert titles == [["Partners", "Secrets"], ["Partners"]]
    await client.start("order", 5, id="a")
    shown = (await bob.get("/batuta/api/v1/pages/partners")).json
    assert shown["tables"] == [{"title": "Runs", "columns": ["run"], "rows": [[{"run": "a"}]], "note": "none yet"}]
    assert (await bob.get("/batuta/api/v1/pages/secrets")).status == 403
    assert (await bob.get("/batuta/partners")).headers["content-type"].startswith("text/html")  # the dashboard itself


@pytest.mark.parametrize("path", ["partners", "/", "/Part ners", "/a/b", "//evil"])
def test_a_page_with_a_path_that_is_none_is_refused(path: str) -> None:
    async def read(_: batuta.Batuta) -> list[Table]:
        return []

    with pytest.raises(InvalidInput, match="such as /partners"):
        Page("Partners", path, read)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (UnknownRun("x"), 404, "unknown_run"),
        (AlreadyStarted("x", "running"), 409, "already_started"),
        (StoreUnavailable("host db.internal is away"), 503, "store_unavailable"),
        (QuotaExceeded("open_runs", "default", 1, 1, 2.5, "full"), 429, "quota_exceeded"),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_errors_in_the_applications_own_routes_are_problems(  # covers D-11
    error: BatutaError, status: int, code: str
) -> None:
    async def fails(_: Request) -> PlainTextResponse:
        raise error

    app = Starlette(routes=[Route("/", fails)])
    app.add_middleware(asgi.Problems)
    answer = await Web(app).get("/")
    assert (answer.status, answer.json["code"], answer.json["status"]) == (status, code, status)
    assert answer.json["trace_id"] == answer.headers["x-trace-id"]
    assert "db.internal" not in answer.json["detail"]
    assert ("retry-after" in answer.headers) is (status in (429, 503))


def every_error() -> list[type[BatutaError]]:
    found: list[type[BatutaError]] = []
    waiting = [BatutaError]
    while waiting:
        kind = waiting.pop()
        found.append(kind)
        waiting += kind.__subclasses__()
    return found


@pytest.mark.parametrize("kind", every_error(), ids=lambda kind: kind.__name__)
def test_every_error_is_a_problem_with_a_code_of_its_own(kind: type[BatutaError]) -> None:
    error = kind.__new__(kind)
    problem = problem_of(error)
    assert 400 <= problem.status < 600
    assert problem.code.replace("_", "").isalnum()
    assert problem.document("0" * 32)["type"].startswith("urn:batuta:problem:")


def test_an_error_that_is_not_ours_tells_nothing_of_itself() -> None:
    problem = problem_of(RuntimeError("password=hunter2"))
    assert (problem.status, problem.code) == (500, "internal_error")
    assert "hunter2" not in problem.detail
    assert problem_of(RunFailed("a", "failed", "boom")).status == 409


class Refund(Struct):
    order: str
    cents: Annotated[int, Meta(ge=1)] = 100


async def test_an_action_of_a_page_is_a_form_and_runs_for_those_who_may(client: batuta.Batuta) -> None:
    async def read(_: batuta.Batuta) -> list[Gauges]:
        gauge = Gauge(name="Float", value=20, most=100, tone="retry", label="LOW", history=[60, 40, 20])
        return [Gauges(title="Money", gauges=[gauge])]

    async def refund(found: batuta.Batuta, given: Refund) -> str:
        if given.order == "none":
            raise InvalidInput("order 'none' does not exist")
        return f"{given.cents} for {given.order}"

    action = Action(title="Refund an order", form=Refund, act=refund)
    app = Starlette()
    app.mount("/batuta", dashboard(client, authenticate=who, pages=[Page("Money", "/money", read, actions=[action])]))
    ann, bob = (Web(app).with_headers(x_user=name) for name in ("ann", "bob"))
    shown = (await ann.get("/batuta/api/v1/pages/money")).json
    assert shown["gauges"][0]["gauges"][0]["history"] == [60, 40, 20]
    [button] = shown["actions"]
    assert (button["name"], [one["name"] for one in button["form"]]) == ("refund-an-order", ["order", "cents"])
    assert (await bob.get("/batuta/api/v1/pages/money")).json["actions"] == []

    token = (await ann.get("/batuta/api/v1/session")).json["csrf_token"]
    path, act = "/batuta/api/v1/pages/money/refund-an-order", ann.with_headers(x_csrf_token=token)
    assert (await act.post(path, {"order": "a"})).json == {"message": "100 for a"}
    [row] = (await client.audit(verb="page action")).rows
    assert (row.actor, row.target) == ("app:ann", "money/refund-an-order")
    assert (await act.post(path, {"order": "none"})).json["detail"] == "order 'none' does not exist"
    assert (await act.post(path, {"order": "a", "cents": 0})).status == 400
    assert (await ann.post(path, {"order": "a"})).status == 403
    assert (await bob.with_headers(x_csrf_token=token).post(path, {"order": "a"})).status == 403


def test_actions_of_a_page_need_titles_of_their_own() -> None:
    async def read(_: batuta.Batuta) -> list[Table]:
        return []

    async def act(_: batuta.Batuta, given: Refund) -> str:
        return ""

    twice = [Action(title=title, form=Refund, act=act) for title in ("Pay", "pay!")]
    with pytest.raises(InvalidInput, match="each one once"):
        Page("Money", "/money", read, actions=twice)


@pytest.mark.timeout(120)
def test_an_open_stream_does_not_keep_the_application_from_ending(sqlite_url: str) -> None:
    """Uvicorn tells the application to end only when every stream has ended: it waited for the browser to leave."""
    words = [sys.executable, "-m", "uvicorn", "tests.extra.dashboard.mounted:app", "--port", "0"]
    env = os.environ | {"BATUTA_DATABASE_URL": sqlite_url}
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=env) as process:
        try:
            assert process.stderr is not None
            address = next(hit[0] for line in process.stderr if (hit := re.search(r"http://127\.0\.0\.1:\d+", line)))
            with urlopen(f"{address}/tools/batuta/api/v1/events", timeout=60) as stream:
                assert stream.readline() == b"event: hello\n"
                process.terminate()
                assert b'event: bye\ndata: {"reason":"shutdown"}' in stream.read()
            process.wait(60)
        finally:
            process.kill()


class Person(Struct):
    name: str
    at: list[dict[str, str]]


@batuta.activity
async def greet(person: dict[str, str]) -> dict[str, str]:
    return person


@batuta.workflow
async def welcome(person: dict[str, str]) -> dict[str, str]:
    return await greet(person)


HIDES_NAMES = Redactor(fields=["name"])


async def test_a_redactor_of_names_hides_those_of_people_alone(client: batuta.Batuta, monkeypatch) -> None:
    monkeypatch.setenv("BATUTA_REDACT", "tests.server.test_mounting:HIDES_NAMES")

    async def read(_: batuta.Batuta) -> list[Any]:
        ann = Person(name="Ann", at=[{"name": "Bob"}])
        gauges = [Gauge(name="Float", value=20, most=100), Gauge(name="ann@example.com", value=1, most=2)]
        return [Gauges(title="Money", gauges=gauges), Table(title="People", columns=["Who"], rows=[[ann]])]

    async def act(found: batuta.Batuta, given: Refund) -> str:
        return ""

    app, actions = Starlette(), [Action(title="Refund an order", form=Refund, act=act)]
    app.mount("/", dashboard(client, authenticate=who, pages=[Page("Money", "/money", read, actions=actions)]))
    web = Web(app).with_headers(x_user="ann")
    shown = (await web.get("/api/v1/pages/money")).json
    assert [one["name"] for one in shown["gauges"][0]["gauges"]] == ["Float", "[email]"]
    assert shown["tables"][0]["rows"] == [[{"name": "[name]", "at": [{"name": "[name]"}]}]]
    [button] = shown["actions"]
    assert (button["name"], [one["name"] for one in button["form"]]) == ("refund-an-order", ["order", "cents"])
    async with client.worker(workflows=[welcome], activities=[greet]):
        handle = await client.start(welcome, {"name": "Ann"})
        await handle.result()
    timeline = (await web.get(f"/api/v1/runs/{handle.id}/timeline")).json
    assert {"greet", "welcome"} & {one["name"] for one in timeline["steps"]} == {"greet", "welcome"}
    journal = (await web.get(f"/api/v1/runs/{handle.id}/journal")).json
    assert [one["kind"] for one in journal["entries"]] == ["started", "activity_done"]
    assert "Ann" not in json.dumps([timeline, journal])
