"""The server as an ASGI application: by itself, or mounted in another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cached_property
from typing import Any

from starlette.applications import Starlette
from starlette.routing import BaseRoute
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from batuta.client import Batuta
from batuta.clock import SystemClock
from batuta.errors import InvalidInput
from batuta.journal.queues import Rate
from batuta.metrics import Metrics
from batuta.names import check_name
from batuta.redaction import Redactor, from_env
from batuta.serde import MAX_PAYLOAD
from batuta.server import bulk, dead_letters, openapi
from batuta.server.access.check import EVERY_NAMESPACE, AccessCheck, Decide, FromApp, Recognise, Signer
from batuta.server.access.request_limits import COSTLY_RATE, CostlyRequests
from batuta.server.access.sign_in import Credentials, LoopbackWithoutKeys
from batuta.server.http.call import Principal, Refused
from batuta.server.http.endpoint import Endpoint, route_path
from batuta.server.http.routing import Route, Router
from batuta.server.http.static_files import StaticFiles
from batuta.server.live import LiveFeeds
from batuta.server.operations import OperationBook
from batuta.server.pages import Page
from batuta.server.partners.cache import CacheWatch
from batuta.server.table import TABLE

MOST_NAMESPACES = 64
"""Namespaces that one server works in at a time: each has connections of its own."""
_MARKS_KEPT = 1.0
"""Seconds for which what a namespace says of redaction is taken as known."""

Connect = Callable[[str], Batuta]
"""A client for a namespace, not entered yet."""


class Server:
    """Routes, who may use them, and the clients that they are carried out with."""

    def __init__(
        self,
        client: Batuta,
        *,
        connect: Connect | None = None,
        ways: Sequence[Recognise] | None = None,
        secret: bytes | None = None,
        max_payload: int = MAX_PAYLOAD,
        table: Sequence[Route] = TABLE,
        metrics: Metrics | None = None,
        pages: Sequence[Page | Route | BaseRoute] = (),
        costly_rate: Rate | None = None,
    ) -> None:
        """`client` is open, or is entered by the lifespan of `application`. `connect`: for other namespaces; without
        it there are none. `ways`: how callers are recognised; unless told, by key and session, and, as long as there
        is no key, this machine may do everything. `metrics`: counts requests, and is shown at /metrics; the client
        should have the same as middleware. `costly_rate`: of administration and changes of many runs with one key."""
        self._client, self._connect = client, connect
        self.pages = [page for page in pages if isinstance(page, Page)]
        """Pages that the dashboard draws."""
        own = [page for page in pages if isinstance(page, Route)]
        self.table = (*table, *own, *(route for page in self.pages for route in page.routes()))
        self.max_payload = max_payload
        self._routes = [page for page in pages if not isinstance(page, Page | Route)]
        self.signer = Signer(secret)
        self.credentials = Credentials(client, self.signer) if ways is None else None
        if self.credentials is not None:
            ways = [self.credentials, LoopbackWithoutKeys(self.credentials)]
        self.auth = AccessCheck(list(ways or ()), self.signer, CostlyRequests(costly_rate or COSTLY_RATE))
        self.metrics = Metrics() if metrics is None else metrics
        self.operations = OperationBook((bulk.TASK, dead_letters.REPROCESS, dead_letters.DISCARD), client, self._of)
        self.live = LiveFeeds()
        self.cache = CacheWatch()
        self.draining = False
        self._others: dict[str, Batuta] = {}
        self._stack = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._redactor: Redactor | None = from_env()
        self._marks: dict[str, tuple[float, bool]] = {}
        self._redaction_changes = 0
        self._clock = SystemClock()
        self.endpoint = Endpoint(self, Router(self.table))
        self.files = StaticFiles()

    @property
    def namespace(self) -> str:
        """The server's own: where a credential for all of them works unless it says otherwise."""
        return self._client.namespace.name

    async def sign_in(self) -> str:
        """How callers sign in: `key`, `none` or `app`."""
        if self.credentials is None:
            return "app"
        return "key" if await self.credentials.any() else "none"

    async def client_for(self, principal: Principal, wanted: str | None, route: Route) -> Batuta:
        """The client of the namespace that the credential decides. Raises Refused."""
        if not route.namespaced:
            return self._client
        if principal.namespace != EVERY_NAMESPACE:
            if wanted is not None and wanted != principal.namespace:
                raise Refused(
                    403, "forbidden", f"the credential is not for namespace {wanted[:100]!r}: use another key"
                )
            return await self._of(principal.namespace)
        return await self._of(wanted if wanted is not None else self.namespace)

    async def _of(self, namespace: str) -> Batuta:
        if namespace == self.namespace:
            return self._client
        if (found := self._others.get(namespace)) is not None:
            return found
        check_name(namespace, "namespace")
        async with self._opening:
            if (found := self._others.get(namespace)) is not None:
                return found
            if self._connect is None or namespace == EVERY_NAMESPACE:
                raise Refused(403, "forbidden", f"this server works in namespace {self.namespace!r} alone")
            if len(self._others) >= MOST_NAMESPACES:
                detail = f"this server has {MOST_NAMESPACES} namespaces open and opens no more: ask another one"
                raise Refused(503, "too_many_namespaces", detail, retry_after=60)
            self._others[namespace] = await self._stack.enter_async_context(self._connect(namespace))
            return self._others[namespace]

    async def redactor_for(self, client: Batuta) -> Redactor | None:
        """The redactor of the client's namespace; None: nothing is hidden."""
        if self._redactor is not None:
            return self._redactor
        name, moment = client.namespace.name, self._clock.monotonic()
        known = self._marks.get(name)
        while known is None or moment - known[0] > _MARKS_KEPT:
            changes = self._redaction_changes
            read = (moment, await client.namespace.requires_redaction())
            if changes == self._redaction_changes:  # or else it may be what was so before
                known = self._marks[name] = read
        return Redactor() if known[1] else None

    def redaction_changed(self, client: Batuta) -> None:
        """Forget what the client's namespace said of redaction: this server changed it."""
        self._redaction_changes += 1
        self._marks.pop(client.namespace.name, None)

    @property
    def opened(self) -> list[Batuta]:
        """The clients of the namespaces that are open here."""
        return [self._client, *self._others.values()]

    @cached_property
    def openapi(self) -> dict[str, Any]:
        """The description of the table."""
        return openapi.document(self.table)

    def drain(self) -> None:
        """The server is about to end: streams end, and it is not ready for more requests."""
        self.draining = True
        self.live.ending.set()

    async def close(self) -> None:
        """End operations and streams, and close the clients that this server opened."""
        self.drain()
        await self.live.close()
        await self.endpoint.reads.close()
        await self.operations.close()
        await self.cache.close()
        await self._stack.aclose()

    @cached_property
    def application(self) -> Starlette:
        """The ASGI application. Its lifespan enters the client."""

        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            async with self._client:
                looking = asyncio.create_task(self.operations.keep_looking())
                try:
                    yield
                finally:
                    looking.cancel()
                    await self.close()

        return self.routed(lifespan)

    def routed(self, lifespan: Any = None) -> Starlette:
        """Routes of the application first, then everything else: also paths that no pattern of Starlette fits, such as
        ids with a line end."""
        found = Starlette(routes=self._routes, lifespan=lifespan)
        found.router.default = self.serve
        return found

    async def serve(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Routes of the table, and the files of the dashboard for every other path."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
        elif _first_word(route_path(scope)) in self._first_words:
            self.operations.look()  # mounted in another application, the server has no lifespan of its own
            await self.endpoint(scope, receive, send)
        else:
            await self.files(scope, receive, send)

    @cached_property
    def _first_words(self) -> frozenset[str]:
        """With which the paths of the table begin."""
        return frozenset(map(_first_word, (route.path for route in self.table)))


def _first_word(path: str) -> str:
    return path.strip("/").partition("/")[0]


def dashboard(
    client: Batuta,
    *,
    pages: Sequence[Page | Route | BaseRoute] = (),
    authenticate: Decide | None = None,
    secret: bytes | None = None,
    metrics: Metrics | None = None,
) -> Starlette:
    """The API and the dashboard for an application of your own: `app.mount("/batuta", dashboard(client))`.

    `client` is open as long as the application runs: the server neither opens nor closes it. `authenticate` tells who
    asks, from the request: a `Principal`, or None, which is 401; without it everybody whom the application lets
    through may do everything. `pages`: a `Page` stands in the menu of the dashboard, which draws it; a `Route` is a
    route of the API, and is let in, decoded and described as all others; routes of Starlette come before the
    dashboard's own. `secret`: 32 bytes or so that sign tokens; give the same to every process of the application.
    `metrics`: those that the client has as middleware, to be shown at `/metrics` with those of the store.
    """
    if not isinstance(client, Batuta):
        raise InvalidInput(f"{client!r} is no client: give what `async with batuta.connect(...) as client` gives")
    ways = [FromApp(client.namespace.name, authenticate)]
    return Server(client, ways=ways, secret=secret, metrics=metrics, pages=pages).routed()
