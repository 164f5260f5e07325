"""What tests of quotas have in common: work to be started, and clients of one database in memory."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from batuta import (
    Batuta,
    Middleware,
    QuotaExceeded,
    Signal,
    continue_as_new,
    job,
    run_child,
    workflow,
)
from batuta.engine.backend.middleware import backend_for
from batuta.errors import StoreUnavailable
from batuta.journal.quotas import Quota
from batuta.stores.memory import MemoryDatabase, MemoryStore
from batuta.testing import VirtualLoop

go: Signal[None] = Signal("go", None)


@workflow
async def waits() -> None:
    await go.wait()


@workflow
async def echo(text: str) -> str:
    return text


@workflow
async def parent(children: int) -> int:
    texts = [await run_child(echo, "x") for _ in range(children)]
    return len(texts)


@workflow
async def counts_down(rest: int) -> int:
    if rest:
        continue_as_new(rest - 1)
    return rest


@job
def note(text: str) -> str:
    return text


class CountingStore(MemoryStore):
    """Counts what is asked about quotas; can be away; is looked at again as seldom as one on a disk."""

    poll_seconds: float | None = 1.0

    def __init__(self, database: MemoryDatabase, namespace: str = "default") -> None:
        super().__init__(database, namespace)
        self.looks = self.spends = 0
        self.away = False
        self.opened: asyncio.Event | None = None

    async def quotas(self) -> list[Quota]:
        self.looks += 1
        if self.away:
            raise StoreUnavailable("away")
        if self.opened is not None:
            await self.opened.wait()
        return await super().quotas()

    async def spend_starts(self, count: int, quota: Quota, ago: int = 0) -> None:
        self.spends += 1
        if self.away:
            raise StoreUnavailable("away")
        if self.opened is not None:
            await self.opened.wait()
        await super().spend_starts(count, quota, ago)


class House:
    """Clients of one database in memory, as of several processes."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.clock = loop.clock
        self._database = MemoryDatabase(self.clock)
        self.open = AsyncExitStack()

    async def client(self, namespace: str = "default", *middleware: Middleware) -> Batuta:
        return await self.client_of(MemoryStore(self._database, namespace), *middleware)

    async def client_of(self, store: MemoryStore, *middleware: Middleware) -> Batuta:
        return await self.open.enter_async_context(self.unopened(store, *middleware))

    def unopened(self, store: MemoryStore, *middleware: Middleware) -> Batuta:
        return Batuta(backend_for(store, self.clock, middleware), store.open, store.close)

    def counting(self, namespace: str = "default") -> CountingStore:
        return CountingStore(self._database, namespace)

    async def worker(self, client: Batuta, **more: Any) -> None:
        await self.open.enter_async_context(
            client.worker(workflows=[waits, echo, parent, counts_down], jobs=[note], **more)
        )


async def started(client: Batuta, many: int) -> int:
    """How many of so many starts, one after the other, were let in."""
    let_in = 0
    for _ in range(many):
        try:
            await client.start(waits)
            let_in += 1
        except QuotaExceeded:
            pass
    return let_in


async def open_runs(client: Batuta) -> int:
    return await client.count(kind="any", states=["pending", "running", "waiting"])
