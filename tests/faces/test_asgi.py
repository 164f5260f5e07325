"""A client and a worker that live as long as an ASGI application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from batuta import App, Schedule, activity, asgi, connect, cron, workflow
from batuta.errors import InvalidInput, InvalidURL

PATIENCE = 20.0


@activity
async def double(n: int) -> int:
    return 2 * n


@workflow
async def doubles(n: int) -> int:
    return await double(n)


YEARLY = Schedule("yearly", cron("@yearly"), doubles, 1)
WORKER = App(workflows=[doubles], activities=[double], schedules=[YEARLY])


class Server:
    """The server's side of the protocol."""

    def __init__(self, app: asgi.Application, *, knows_state: bool = True) -> None:
        self.app = app
        self.state: dict[str, Any] | None = {} if knows_state else None
        self._to_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._from_app: asyncio.Queue[Any] = asyncio.Queue()
        scope: dict[str, Any] = {"type": "lifespan", "asgi": {"version": "3.0"}}
        if self.state is not None:
            scope["state"] = self.state
        self._task = asyncio.ensure_future(app(scope, self._to_app.get, self._from_app.put))

    async def tell(self, event: str) -> dict[str, Any]:
        """Send a lifespan event; the answer."""
        self._to_app.put_nowait({"type": f"lifespan.{event}"})
        async with asyncio.timeout(PATIENCE):
            answer: dict[str, Any] = await self._from_app.get()
        return answer

    async def ends(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self._task

    async def request(self) -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b""}

        scope: dict[str, Any] = {"type": "http", "path": "/", "method": "GET", "headers": [], "query_string": b""}
        if self.state is not None:
            scope["state"] = self.state.copy()
        await self.app(scope, receive, send)
        return sent


class Shop:
    """An application with a lifespan of its own, which fails as it is told."""

    def __init__(self, fails: str = "", *, knows_lifespan: bool = True) -> None:
        self.fails, self.knows_lifespan = fails, knows_lifespan
        self.heard: list[str] = []
        self.results: list[int] = []

    async def __call__(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        if scope["type"] == "http":
            handle = await scope["state"]["batuta"].start(doubles, 4)
            self.results.append(await handle.result(PATIENCE))
            await send({"type": "http.response.start", "status": 200})
            return
        if not self.knows_lifespan:
            raise AssertionError("http only")
        for event in ("startup", "shutdown"):
            assert (await receive())["type"] == f"lifespan.{event}"
            self.heard.append(event)
            if self.fails == event:
                await send({"type": f"lifespan.{event}.failed", "message": "no shop today"})
                return
            await send({"type": f"lifespan.{event}.complete"})


@pytest.mark.parametrize("knows_state", [True, False])
@pytest.mark.parametrize("knows_lifespan", [True, False])
async def test_a_plain_application_gets_a_client_and_a_worker(
    sqlite_url: str, knows_state: bool, knows_lifespan: bool
) -> None:
    shop = Shop(knows_lifespan=knows_lifespan)
    server = Server(asgi.wrap(shop, sqlite_url, worker=WORKER), knows_state=knows_state)
    assert await server.tell("startup") == {"type": "lifespan.startup.complete"}
    assert (await server.request())[0]["status"] == 200
    assert shop.results == [8]
    assert await server.tell("shutdown") == {"type": "lifespan.shutdown.complete"}
    await server.ends()
    assert shop.heard == (["startup", "shutdown"] if knows_lifespan else [])
    async with connect(sqlite_url) as client:
        assert [view.id for view in await client.schedules.list()] == ["yearly"]


async def test_a_database_that_is_away_fails_the_startup_and_the_application_is_not_begun(tmp_path: Path) -> None:
    shop = Shop()
    server = Server(asgi.wrap(shop, f"sqlite:///{tmp_path}/nowhere/shop.db"))
    answer = await server.tell("startup")
    assert answer["type"] == "lifespan.startup.failed"
    assert "does not exist" in answer["message"]
    await server.ends()
    assert shop.heard == []


@pytest.mark.parametrize("event", ["startup", "shutdown"])
async def test_the_applications_own_failure_is_passed_on(sqlite_url: str, event: str) -> None:
    server = Server(asgi.wrap(Shop(event), sqlite_url, worker=WORKER))
    if event == "shutdown":
        await server.tell("startup")
    assert await server.tell(event) == {"type": f"lifespan.{event}.failed", "message": "no shop today"}
    await server.ends()


async def test_shutdown_lets_activities_in_flight_finish(sqlite_url: str) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    @activity
    async def slow() -> str:
        begun.set()
        await gate.wait()
        return "done"

    @workflow
    async def waits() -> str:
        return await slow()

    async with connect(sqlite_url) as outside:
        server = Server(asgi.wrap(Shop(), sqlite_url, worker=App(workflows=[waits], activities=[slow]), grace=20.0))
        await server.tell("startup")
        await outside.start(waits, id="w")
        await begun.wait()
        ending = asyncio.ensure_future(server.tell("shutdown"))
        await asyncio.sleep(0)
        gate.set()
        assert (await ending)["type"] == "lifespan.shutdown.complete"
        handle = await outside.get("w", waits)
        assert [str(line.kind) for line in await handle.journal()] == ["started", "activity_done"]


def test_an_invalid_lifespan_is_refused_when_the_application_is_made() -> None:
    with pytest.raises(InvalidURL):
        asgi.lifespan("mysql://shop")


async def test_a_setting_that_is_none_fails_the_startup(sqlite_url: str) -> None:
    server = Server(asgi.wrap(Shop(), sqlite_url, worker=WORKER, heartbeet=3))
    assert "did you mean 'heartbeat'" in (await server.tell("startup"))["message"]
    with pytest.raises(InvalidInput):
        async with asgi.lifespan(sqlite_url, worker=WORKER, heartbeet=3)(None):
            pass


async def test_the_same_lifespan_can_be_used_twice(sqlite_url: str) -> None:
    life = asgi.lifespan(sqlite_url, worker=WORKER)
    for n in range(2):
        async with life(None) as state:
            handle = await state["batuta"].start(doubles, n)
            assert await handle.result(PATIENCE) == 2 * n


# -- Starlette and FastAPI


async def test_starlette_takes_it_as_its_lifespan(sqlite_url: str) -> None:
    async def order(request: Request) -> JSONResponse:
        handle = await request.state.batuta.start(doubles, 21)
        return JSONResponse(await handle.result(PATIENCE))

    app = Starlette(routes=[Route("/", order)], lifespan=asgi.lifespan(sqlite_url, worker=WORKER))
    server = Server(app)
    assert (await server.tell("startup"))["type"] == "lifespan.startup.complete"
    assert server.state is not None
    assert "batuta" in server.state
    start, body = (await server.request())[:2]
    assert (start["status"], body["body"]) == (200, b"42")
    assert (await server.tell("shutdown"))["type"] == "lifespan.shutdown.complete"
    await server.ends()


async def test_starlette_reports_a_startup_that_failed(tmp_path: Path) -> None:
    server = Server(Starlette(lifespan=asgi.lifespan(f"sqlite:///{tmp_path}/nowhere/shop.db")))
    answer = await server.tell("startup")
    assert answer["type"] == "lifespan.startup.failed"
    assert "does not exist" in answer["message"]
    with pytest.raises(Exception, match="does not exist"):
        await server.ends()


async def test_a_starlette_application_with_a_lifespan_of_its_own_can_be_wrapped(sqlite_url: str) -> None:
    order: list[str] = []

    @asynccontextmanager
    async def own(_app: Starlette) -> AsyncIterator[dict[str, str]]:
        order.append("opened")
        yield {"shop": "open"}
        order.append("closed")

    async def show(request: Request) -> JSONResponse:
        return JSONResponse([request.state.shop, await request.state.batuta.count()])

    server = Server(asgi.wrap(Starlette(routes=[Route("/", show)], lifespan=own), sqlite_url))
    await server.tell("startup")
    assert (await server.request())[1]["body"] == b'["open",0]'
    await server.tell("shutdown")
    await server.ends()
    assert order == ["opened", "closed"]


@pytest.mark.parametrize("when", ["startup", "running", "shutdown"])
async def test_a_lifespan_that_is_cancelled_leaves_no_task_of_the_application(sqlite_url: str, when: str) -> None:
    ends: list[int] = []
    reached = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        wrapped = server.app
        assert isinstance(wrapped, asgi._Wrapped)
        try:
            for event in ("startup", "shutdown"):
                assert (await receive())["type"] == f"lifespan.{event}"
                if when == event:
                    reached.set()
                    await asyncio.Event().wait()
                await send({"type": f"lifespan.{event}.complete"})
        finally:
            assert wrapped._client is not None
            ends.append(await wrapped._client.count())  # which is still open

    before = asyncio.all_tasks()
    server = Server(asgi.wrap(app, sqlite_url))
    if when == "startup":
        server._to_app.put_nowait({"type": "lifespan.startup"})
    else:
        assert await server.tell("startup") == {"type": "lifespan.startup.complete"}
    if when == "shutdown":
        server._to_app.put_nowait({"type": "lifespan.shutdown"})
    if when != "running":
        await asyncio.wait_for(reached.wait(), PATIENCE)
    server._task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await server.ends()
    assert ends == [0]
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
