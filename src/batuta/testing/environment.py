"""The real engine, on a store in memory, in virtual time: for tests of workflows."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from batuta.authoring.definitions import Workflow
from batuta.authoring.handle import Handle
from batuta.authoring.queues import Queue
from batuta.authoring.schedules import Schedule
from batuta.client import Batuta
from batuta.clock import Clock, SystemClock
from batuta.engine.native import NativeBackend
from batuta.engine.worker import Worker
from batuta.stores.memory import MemoryDatabase, MemoryStore
from batuta.testing.virtualtime import VirtualLoop

R = TypeVar("R")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Environment:
    """A client and a worker in one. An async context manager.

        @in_virtual_time
        async def test_it_ships_after_a_month():
            async with Environment(workflows=[order], activities=[double(ship, lambda sku: "shipped")]) as env:
                handle = await env.start(order, "sku-1")
                assert await handle.result() == "shipped"

    On an ordinary event loop everything works too, only that a month takes a month.
    """

    def __init__(
        self,
        *,
        workflows: Sequence[Workflow[..., Any]] = (),
        activities: Sequence[object] = (),
        jobs: Sequence[object] = (),
        queues: Sequence[str | Queue] = ("default",),
        schedules: Sequence[Schedule] = (),
        **settings: Any,
    ) -> None:
        self._workflows, self._activities, self._queues = list(workflows), [*activities, *jobs], queues
        self._schedules = list(schedules)
        self._settings = settings
        self.store: MemoryStore
        self.client: Batuta
        self.worker: Worker

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._clock: Clock = loop.clock if isinstance(loop, VirtualLoop) else SystemClock()
        self.store = self.make_store(MemoryDatabase(self._clock))
        self._backend = NativeBackend(self.store, self._clock)
        self.client = Batuta(self._backend, self.store.open, self.store.close)
        await self.client.__aenter__()
        await self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # What a failed test left behind is not worth waiting for.
        await self.worker.stop(grace=None if error is None else 0.001)
        await self.client.__aexit__(None, None, None)

    def make_store(self, database: MemoryDatabase) -> MemoryStore:
        """The store of this environment. To be overridden by those who want it to fail."""
        return MemoryStore(database)

    @property
    def workflows(self) -> list[Workflow[..., Any]]:
        """Those of the present worker."""
        return list(self._workflows)

    # -- runs

    @overload
    async def start(
        self, workflow: Workflow[..., R], /, *args: Any, id: str | None = None, **options: Any
    ) -> Handle[R]: ...
    @overload
    async def start(self, workflow: str, /, *args: Any, id: str | None = None, **options: Any) -> Handle[Any]: ...
    async def start(self, workflow: Any, /, *args: Any, id: str | None = None, **options: Any) -> Handle[Any]:
        """`Batuta.start`."""
        return await self.client.start(workflow, *args, id=id, **options)

    async def run(self, workflow: Workflow[..., R], /, *args: Any, **options: Any) -> R:
        """Start, and wait for the result."""
        handle = await self.client.start(workflow, *args, **options)
        return await handle.result()

    # -- time

    @property
    def now(self) -> datetime:
        """The time in the environment, UTC."""
        return _EPOCH + timedelta(microseconds=self._clock.now())

    async def advance(self, seconds: float) -> None:
        """Let that much time pass, with all that is due in it. Threads at work do not hold it up."""
        loop = asyncio.get_running_loop()
        if isinstance(loop, VirtualLoop):
            await loop.let_pass(seconds)
        else:
            await asyncio.sleep(seconds)

    async def settle(self) -> None:
        """Wait until nothing can happen any more without time passing. Virtual time only."""
        loop = asyncio.get_running_loop()
        if not isinstance(loop, VirtualLoop):
            raise RuntimeError("settle() needs virtual time: run the test with testing.run or @testing.in_virtual_time")
        await loop.settled()

    # -- mishaps

    async def crash(self) -> None:
        """The worker's process is killed: what was not durable is gone. Another worker takes over."""
        session = self.worker.session
        if session is None:
            raise RuntimeError("there is no worker to crash: it is registering anew")
        session.abandon()
        await session.abandoned()
        await self.store.retire(session.info.worker_id)
        await self._begin()

    async def deploy(
        self,
        workflows: Sequence[Workflow[..., Any]] | None = None,
        activities: Sequence[object] | None = None,
        schedules: Sequence[Schedule] | None = None,
        **settings: Any,
    ) -> None:
        """Stop the worker gracefully and start one with other code."""
        await self.worker.stop()
        self._workflows = self._workflows if workflows is None else list(workflows)
        self._activities = self._activities if activities is None else list(activities)
        self._schedules = self._schedules if schedules is None else list(schedules)
        self._settings = self._settings | settings
        await self._begin()

    async def _begin(self) -> None:
        self.worker = self._backend.worker(
            self._workflows, self._activities, self._queues, self._schedules, **self._settings
        )
        await self.worker.start()
