"""Several clients and workers on one database, as several processes would be."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

from batuta import Batuta, Handle, RunState, Workflow
from batuta.authoring.middleware import Middleware
from batuta.clock import SystemClock
from batuta.engine.backend.middleware import backend_for
from batuta.engine.worker.worker import Worker
from batuta.journal.store import Store

PATIENCE = 20.0


class Arena:
    """A database, and who works on it. Each client has a store object of its own."""

    def __init__(self, make_store: Callable[[], Store]) -> None:
        self._make_store = make_store
        self._open = AsyncExitStack()
        self._stores: dict[Batuta, Store] = {}

    async def client(self, *middleware: Middleware) -> Batuta:
        store = self._make_store()
        await store.migrate()
        client = await self._open.enter_async_context(
            Batuta(backend_for(store, SystemClock(), middleware), store.open, store.close)
        )
        self._stores[client] = store
        return client

    async def worker(self, client: Batuta, *things: Any, **settings: Any) -> Worker:
        """A worker that runs until the test ends, unless it is stopped or killed."""
        workflows = [thing for thing in things if isinstance(thing, Workflow)]
        activities = [thing for thing in things if not isinstance(thing, Workflow)]
        chosen = {"heartbeat": 0.1, "grace": 5.0} | settings
        worker: Worker = client.worker(workflows=workflows, activities=activities, **chosen)  # type: ignore[assignment]  # of the native backend
        await self._open.enter_async_context(worker)
        return worker

    async def kill(self, client: Batuta, worker: Worker) -> None:
        """The worker's process dies, and somebody notices."""
        session = worker.session
        assert session is not None
        session.abandon()
        await session.abandoned()
        worker.session = None
        await self._stores[client].retire(session.info.worker_id)

    def store(self, client: Batuta) -> Store:
        return self._stores[client]

    async def close(self) -> None:
        await self._open.aclose()


async def until(condition: Callable[[], Awaitable[bool]], patience: float = PATIENCE) -> None:
    """Look until it is so."""
    async with asyncio.timeout(patience):
        while not await condition():
            await asyncio.sleep(0.005)


async def until_state(handle: Handle[Any], state: RunState) -> None:
    async def reached() -> bool:
        return (await handle.describe()).state is state

    await until(reached)
