"""The application: routes of keys and claims beside those of Batuta's server, and the worker that hears responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.routing import BaseRoute

from batuta import Retry
from batuta.bus import Message, subscribe
from batuta.server import Page, Route, Server
from batuta.server.http.connections import Connection
from pixdict.connect.keys.requests import RESPONSES, Response
from pixdict.core.claims import claim_routes
from pixdict.core.keys import key_routes
from pixdict.core.lookups import lookup_routes
from pixdict.core.service import Core
from pixdict.directory.server import listen

QUEUE, SUBSCRIPTION = "dict-core", "dict-core"
_RETRY = Retry(attempts=5, first=0.2, factor=2.0, longest=5.0)


def core_server(core: Core, *, pages: Sequence[Page | Route | BaseRoute] = (), **options: Any) -> Server:
    """The server with the routes of keys and claims: they need its API keys and scopes. `options` are those of
    `batuta.server.Server`. Close it, and `core`, at the end."""
    return Server(core.client, pages=[*key_routes(core), *claim_routes(core), *lookup_routes(core), *pages], **options)


def core_app(core: Core, *, pages: Sequence[Page | Route | BaseRoute] = (), **options: Any) -> Starlette:
    """The same as an ASGI application. The client of `core` is open as long as it runs."""
    return core_server(core, pages=pages, **options).routed()


def core_worker(core: Core, **settings: Any) -> AbstractAsyncContextManager[Any]:
    """Hears the responses of connect. Each process with `core_app` has one; they share the responses."""

    async def take(message: Message[Response]) -> None:
        await core.take(message)

    heard = subscribe(RESPONSES, take, name=SUBSCRIPTION, from_start=True, queue=QUEUE, retry=_RETRY)
    return core.client.worker(queues=[QUEUE], subscriptions=[heard], **settings)


@asynccontextmanager
async def serve_core(
    core: Core,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    pages: Sequence[Page | Route | BaseRoute] = (),
    **options: Any,
) -> AsyncIterator[str]:
    """Serve it while the context is open, and give its address. Port 0: any that is free. Raises OSError."""
    server = core_server(core, pages=pages, **options)
    with listen(host, port) as listening:
        config = uvicorn.Config(
            server.routed(),
            interface="asgi3",
            lifespan="off",
            http=Connection,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=1,
            ws="none",
        )
        running = _Embedded(config)
        serving = asyncio.create_task(running.serve(sockets=[listening]))
        try:
            while not running.started and not serving.done():  # uvicorn has no event for it
                await asyncio.wait({serving}, timeout=0.01)
            yield f"http://{host}:{listening.getsockname()[1]}"
        finally:
            server.drain()
            running.should_exit = True
            await asyncio.wait({serving})
            await server.close()
            await core.close()


class _Embedded(uvicorn.Server):
    """Without handlers of signals: the program that it is a part of has its own."""

    @contextmanager
    def capture_signals(self) -> Any:
        yield
