"""Flows over HTTP: a server and a worker on one database, and a receiver of webhooks."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

import batuta
from batuta.flows.workflow import Flows
from batuta.server import Server
from batuta.webhooks.addresses import AddressPolicy
from tests.server.web import Response, Web

DEADLINE = 60.0
HERE = ("127.0.0.1", "localhost")

CHECK: dict[str, Any] = {
    "key": "check_overdue",
    "type": "condition",
    "config": {"rule": {"field": "amount", "operator": "greater_than", "value": 100}, "onFalse": "done"},
}
NOTIFY: dict[str, Any] = {"key": "notify", "type": "action", "config": {"actionType": "webhook"}}
DONE: dict[str, Any] = {"key": "done", "type": "end"}
SPRINT: dict[str, Any] = {
    "name": "Sprint 1 Test",
    "trigger_type": "invoice_overdue",
    "steps": [CHECK, NOTIFY, DONE],
}
"""The workflow of the document."""


def calling(url: str, **step: Any) -> dict[str, Any]:
    """The same, whose action calls a URL."""
    notify = NOTIFY | {"config": {"actionType": "webhook", "url": url}} | step
    return SPRINT | {"steps": [CHECK, notify, DONE]}


class Orkestr:
    """The API of one namespace, as its users call it."""

    def __init__(self, web: Web, client: batuta.Batuta) -> None:
        self.web, self.client = web, client

    async def post(self, path: str, body: Any = None, expect: int | Sequence[int] = (200, 201)) -> Any:
        return _checked(await self.web.post(path, {} if body is None else body), expect)

    async def patch(self, path: str, body: Any, expect: int | Sequence[int] = 200) -> Any:
        return _checked(await self.web.ask("PATCH", path, body), expect)

    async def get(self, path: str, expect: int | Sequence[int] = 200, **query: Any) -> Any:
        return _checked(await self.web.get(path, **query), expect)

    async def published(self, document: dict[str, Any] = SPRINT, **more: Any) -> Any:
        made = await self.post("/api/workflows", document)
        return await self.post(f"/api/workflows/{made['id']}/publish", more)

    async def event(self, payload: Any, type: str = "invoice_overdue", **more: Any) -> Any:
        return await self.post("/api/events", {"type": type, "payload": payload, **more})

    async def run_of(self, event: Any) -> Any:
        """The only run that the event has begun."""
        [run_id] = (await self.get(f"/api/events/{event['id']}"))["runs"]
        return run_id

    async def ended(self, run_id: str, *statuses: str) -> Any:
        wanted = statuses or ("COMPLETED", "FAILED", "CANCELLED")
        return await self.until(run_id, lambda run: run["status"] in wanted)

    async def until(self, run_id: str, holds: Callable[[Any], bool]) -> Any:
        async with asyncio.timeout(DEADLINE):
            while True:
                run = await self.get(f"/api/runs/{run_id}")
                if holds(run):
                    return run
                await asyncio.sleep(0.02)

    async def done(self, payload: Any, **more: Any) -> Any:
        """Send an event, and wait for the end of the run that it begins."""
        return await self.ended(await self.run_of(await self.event(payload, **more)))


def _checked(answer: Response, expect: int | Sequence[int]) -> Any:
    statuses = [expect] if isinstance(expect, int) else expect
    assert answer.status in statuses, answer
    return answer.json


@asynccontextmanager
async def orkestr(
    url: str, *, working: bool = True, namespace: str | None = None, **options: Any
) -> AsyncIterator[Orkestr]:
    """`working`: with a worker. `options`: of its Flows."""
    async with batuta.connect(url, namespace=namespace) as client:
        server = Server(client)
        web = Web(server.serve)
        web = web.with_headers(x_csrf_token=(await web.get("/api/v1/session")).json["csrf_token"])
        try:
            if not working:
                yield Orkestr(web, client)
                return
            async with at_work(client, **options):
                yield Orkestr(web, client)
        finally:
            await server.close()


@asynccontextmanager
async def at_work(client: batuta.Batuta, **options: Any) -> AsyncIterator[None]:
    flows = Flows(policy=AddressPolicy(HERE), workflows_of=client.flows.published, **options)
    queues = ["default", "flows-1"]
    try:
        async with client.worker(**flows.parts(), queues=queues):
            yield
    finally:
        await flows.close()


class Receiver:
    """The other side of webhooks: a real server on a port of its own, which notes what comes."""

    def __init__(self, answers: Sequence[int] = ()) -> None:
        """`answers`: the statuses of the first requests; then 200."""
        self._answers = list(answers)
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.held = asyncio.Event()
        self.held.set()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/hook"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.held.set()
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def keys(self) -> list[str]:
        return [headers["x-idempotency-key"] for headers, _ in self.requests]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            lines = [line.partition(":") for line in head.split("\r\n")[1:] if line]
            headers = {name.lower(): value.strip() for name, _, value in lines}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            self.requests.append((headers, body))
            status = self._answers.pop(0) if self._answers else 200
            await self.held.wait()
            said = b'{"id":"ours"}'
            writer.write(
                f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(said)}\r\n"
                f"connection: close\r\n\r\n".encode()
                + said
            )
            await writer.drain()
        except (OSError, EOFError):
            pass
        finally:
            writer.close()
            self._tasks.discard(task)
