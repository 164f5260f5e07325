"""A client, and if you like a worker, that live as long as an ASGI application.

    app = FastAPI(lifespan=batuta.asgi.lifespan(url, worker=App(...)))     # Starlette, FastAPI
    app = batuta.asgi.wrap(app, url)                                       # any other ASGI application

Both give the client to requests as `request.state.batuta`, which is `scope["state"]["batuta"]`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

from batuta.app import App
from batuta.authoring.middleware import Middleware
from batuta.client import Batuta
from batuta.connect import Codecs, connect
from batuta.errors import BatutaError
from batuta.ids import new_trace_id
from batuta.problems import problem_of, send_problem, trace_id_of

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
Opening = Callable[[], AbstractAsyncContextManager[Batuta]]

log = logging.getLogger("batuta.asgi")

STATE = "batuta"
"""The name of the client in the application's state."""


def lifespan(
    url: str | None = None,
    *,
    namespace: str | None = None,
    migrate: bool = True,
    worker: App | None = None,
    middleware: Sequence[Middleware] = (),
    codec: Codecs = None,
    **settings: Any,
) -> Callable[[Any], AbstractAsyncContextManager[dict[str, Any]]]:
    """A `lifespan=` for Starlette and FastAPI: the client is open from startup to shutdown.

    With `worker`, its workflows and activities run in the application's process, too, with these `settings`; shutdown
    waits for activities in flight, within the setting `grace`. An unreachable database fails the startup. `middleware`
    goes around what the client starts and the worker executes. `codec`: as for `connect`.
    """
    opening = _opening(url, namespace, migrate, worker, middleware, codec, settings)

    @asynccontextmanager
    async def life(_app: Any) -> AsyncIterator[dict[str, Any]]:
        async with opening() as client:
            yield {STATE: client}

    return life


def wrap(
    app: Application,
    url: str | None = None,
    *,
    namespace: str | None = None,
    migrate: bool = True,
    worker: App | None = None,
    middleware: Sequence[Middleware] = (),
    codec: Codecs = None,
    **settings: Any,
) -> Application:
    """The same around any ASGI application, whether or not it knows the lifespan protocol."""
    return _Wrapped(app, _opening(url, namespace, migrate, worker, middleware, codec, settings))


def _opening(
    url: str | None,
    namespace: str | None,
    migrate: bool,
    worker: App | None,
    middleware: Sequence[Middleware],
    codec: Codecs,
    settings: dict[str, Any],
) -> Opening:
    make = partial(connect, url, namespace=namespace, migrate=migrate, middleware=middleware, codec=codec)
    make()  # a URL that cannot be used is found here

    @asynccontextmanager
    async def opening() -> AsyncIterator[Batuta]:
        async with make() as client:
            if worker is None:
                yield client
                return
            async with client.worker(
                workflows=worker.workflows,
                activities=worker.activities,
                jobs=worker.jobs,
                queues=worker.queues,
                schedules=worker.schedules,
                on_dead_letter=worker.on_dead_letter,
                retention=worker.retention,
                middleware=worker.middleware,
                webhooks=worker.webhooks,
                flows=worker.flows,
                subscriptions=worker.subscriptions,
                **settings,
            ):
                yield client

    return opening


class Problems:
    """Middleware that answers errors of Batuta as problem details: `app.add_middleware(batuta.asgi.Problems)`.

    Errors that are not Batuta's, and those that come after the answer has begun, are left alone."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except BatutaError as error:
            if begun:
                raise
            await _send_problem(error, scope, send)


async def _send_problem(error: BatutaError, scope: Scope, send: Send) -> None:
    came = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"traceparent"), None)
    trace_id = trace_id_of(came) or new_trace_id()
    problem = problem_of(error)
    if problem.status >= 500:
        log.error("a request failed, trace id %s", trace_id, exc_info=error, extra={"trace_id": trace_id})
    await send_problem(problem, trace_id, send)


class _Wrapped:
    def __init__(self, app: Application, opening: Opening) -> None:
        self._app, self._opening = app, opening
        self._client: Batuta | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
            return
        state = {STATE: self._client} if self._client is not None else {}
        await self._app({**scope, "state": {**scope.get("state", {}), **state}}, receive, send)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Ours opens before the application's own startup and closes after its shutdown."""
        await receive()  # the startup; it is all that can come first
        told = "startup"
        try:
            async with self._opening() as self._client:
                inner = _Inner(self._app, scope)
                try:
                    failure = await inner.tell("startup")
                    if failure is None:
                        await send({"type": "lifespan.startup.complete"})
                        told = "shutdown"
                        await receive()  # the shutdown
                        failure = await inner.tell("shutdown")
                finally:  # also when the server cancels the lifespan: the application ends before its client is closed
                    await inner.end()
        except Exception as error:
            log.exception("the application's %s failed", told)
            failure = f"{type(error).__name__}: {error}"
        finally:
            self._client = None
        if failure is not None:
            await send({"type": f"lifespan.{told}.failed", "message": failure})
        elif told == "shutdown":
            await send({"type": "lifespan.shutdown.complete"})


class _Inner:
    """The wrapped application's own lifespan, if it has one."""

    def __init__(self, app: Application, scope: Scope) -> None:
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self._answers: asyncio.Queue[Message] = asyncio.Queue()
        self._task = asyncio.ensure_future(app(scope, self._messages.get, self._answers.put))

    async def tell(self, event: str) -> str | None:
        """Send the application a lifespan event and wait for its answer: why it failed, or None.

        An application that ends or raises instead does not know the protocol; the specification allows that.
        """
        if self._task.done():
            return None
        self._messages.put_nowait({"type": f"lifespan.{event}"})
        answer = asyncio.ensure_future(self._answers.get())
        try:
            await asyncio.wait([answer, self._task], return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not answer.done():
                answer.cancel()
        if answer.done():
            said = answer.result()
        elif self._answers.empty():
            return None
        else:
            said = self._answers.get_nowait()
        return str(said.get("message", "")) if said["type"] == f"lifespan.{event}.failed" else None

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
