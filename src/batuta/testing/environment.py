"""The real engine, on a store of its own, in virtual time: for tests of workflows and jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from batuta.app import App
from batuta.authoring.deadletters import Letters
from batuta.authoring.definitions import Workflow, by_code
from batuta.authoring.handle import Batch, Handle
from batuta.authoring.jobs import Job, JobCall
from batuta.authoring.middleware import Middleware
from batuta.authoring.queues import Queue
from batuta.authoring.schedules import Schedule, Schedules
from batuta.client import Batuta
from batuta.clock import Clock, SystemClock
from batuta.engine.outgoing import backend_for
from batuta.engine.worker import Worker
from batuta.errors import InvalidInput
from batuta.journal.store import Store
from batuta.stores.memory import MemoryDatabase, MemoryStore
from batuta.testing.chance import SLOWEST, Chance, SlowAttempts, foreseen, slow_down
from batuta.testing.doubles import with_doubles
from batuta.testing.happened import Happening, what_happened
from batuta.testing.lacking import Lacking
from batuta.testing.stores import StoreName, quick_folder, sqlite_store
from batuta.testing.stuck import what_runs_wait_for
from batuta.testing.virtualtime import VirtualLoop

R = TypeVar("R")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PATIENCE = 20
"""How often runs are handed back for want of an activity before nobody is thought to have it."""


class Environment:
    """A client and a worker in one. An async context manager.

        @in_virtual_time
        async def test_it_ships_after_a_month():
            async with Environment(workflows=[order], activities=[double(ship, returns="shipped")]) as env:
                handle = await env.start(order, "sku-1")
                assert await handle.result() == "shipped"

    `activities` and `jobs` may hold doubles beside what they stand in for. `store` is "memory", or "sqlite" for a file
    that is gone at the end. `middleware` is that of a client. Other keywords are settings of the worker.
    On an ordinary event loop everything works too, only that a month takes a month.

    `seed`: attempts of activities, messages and starts of children take their time, `slowest` seconds at most, and the
    seed says how long: the same seed, the same order. `failing`: the share of attempts that fail and are made again.
    It needs virtual time.
    """

    def __init__(
        self,
        *,
        workflows: Sequence[Workflow[..., Any]] = (),
        activities: Sequence[object] = (),
        jobs: Sequence[object] = (),
        queues: Sequence[str | Queue] = ("default",),
        schedules: Sequence[Schedule] = (),
        store: StoreName = "memory",
        middleware: Sequence[Middleware] = (),
        seed: int | None = None,
        slowest: float = SLOWEST,
        failing: float = 0.0,
        **settings: Any,
    ) -> None:
        if store not in ("memory", "sqlite"):
            raise InvalidInput(f"store={store!r} is none that an environment can have: 'memory' or 'sqlite'")
        self._workflows, self._activities, self._queues = list(workflows), [*activities, *jobs], queues
        self._schedules = list(schedules)
        self._settings, self._middleware = settings, middleware
        self.chance = None if seed is None else Chance(seed, slowest, failing)
        """What the seed has drawn."""
        if seed is None and (slowest, failing) != (SLOWEST, 0.0):
            raise InvalidInput("slowest= and failing= say what a seed may do: give seed=, too")
        self._kind = store
        self._open = AsyncExitStack()
        self.store: Store
        """What the runs are in, for tests that look closer than a client does."""
        self.client: Batuta
        """A client as any other, for whatever this class has no verb for."""
        self.worker: Worker

    @classmethod
    def of(cls, app: App, *doubles: object, store: StoreName = "memory", **settings: Any) -> Self:
        """An environment with all that an App has, in which these doubles stand in for activities and jobs."""
        return cls(
            workflows=app.workflows,
            activities=[*app.activities, *doubles],
            jobs=app.jobs,
            queues=app.queues,
            schedules=app.schedules,
            retention=app.retention,
            store=store,
            middleware=app.middleware,
            **settings,
        )

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._clock: Clock = loop.clock if isinstance(loop, VirtualLoop) else SystemClock()
        if self.chance is not None:
            _need_virtual_time("a seed")
        self.store = await self._made_store(virtual=isinstance(loop, VirtualLoop))
        self._lacking = Lacking(self.store)
        middleware = self._middleware if self.chance is None else self._slowed_down(self.chance)
        self._backend = backend_for(self.store, self._clock, middleware)
        self.client = Batuta(self._backend, self.store.open, self.store.close)
        await self.client.__aenter__()
        try:
            if self.chance is not None:
                self._open.enter_context(foreseen())
            await self._begin()
        except BaseException:
            await self.client.__aexit__(None, None, None)
            await self._open.aclose()
            raise
        if isinstance(loop, VirtualLoop):
            loop.explainers.append(self._explain)
            self._open.callback(loop.explainers.remove, self._explain)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # What a failed test left behind is not worth waiting for.
        await self.worker.stop(grace=None if error is None else 0.001)
        await self.client.__aexit__(None, None, None)
        await self._open.aclose()

    async def _made_store(self, *, virtual: bool) -> Store:
        if self._kind == "memory":
            return self.make_store(MemoryDatabase(self._clock))
        folder = TemporaryDirectory(prefix="batuta-test-", dir=quick_folder(), ignore_cleanup_errors=True)
        store = sqlite_store(Path(self._open.enter_context(folder), "batuta.db"), self._clock, virtual=virtual)
        await store.migrate()
        return store

    def _slowed_down(self, chance: Chance) -> list[Middleware]:
        slow_down(self.store, chance)
        return [*self._middleware, SlowAttempts(chance)]

    def make_store(self, database: MemoryDatabase) -> MemoryStore:
        """The store of this environment, when it is in memory. To be overridden by those who want it to fail."""
        return MemoryStore(database)

    def _explain(self) -> list[str]:
        return what_runs_wait_for(self.store, by_code(self._workflows))

    async def happened(self) -> list[Happening]:
        """What happened to the runs so far, in order."""
        return await what_happened(self.store, {} if self.chance is None else self.chance.written)

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

    @overload
    async def enqueue(self, job: Job[..., R] | JobCall[R], /, *args: Any, **options: Any) -> Handle[R]: ...
    @overload
    async def enqueue(self, job: str, /, *args: Any, **options: Any) -> Handle[Any]: ...
    async def enqueue(self, job: Any, /, *args: Any, **options: Any) -> Handle[Any]:
        """`Batuta.enqueue`."""
        return await self.client.enqueue(job, *args, **options)

    async def enqueue_many(self, calls: Iterable[JobCall[Any]], /, *, on_done: JobCall[Any] | None = None) -> Batch:
        """`Batuta.enqueue_many`."""
        return await self.client.enqueue_many(calls, on_done=on_done)

    @overload
    async def run(self, work: Workflow[..., R], /, *args: Any, **options: Any) -> R: ...
    @overload
    async def run(self, work: Job[..., R], /, *args: Any, **options: Any) -> R: ...
    async def run(self, work: Any, /, *args: Any, **options: Any) -> Any:
        """Start a workflow, or enqueue a job, and wait for the result. Raises Stuck when a run lacks an activity that
        was not given."""
        return await self.result_of(await self.begin(work, *args, **options))

    async def result_of(self, handle: Handle[R], *, patience: int = _PATIENCE) -> R:
        """The result of a run. Raises Stuck when runs were handed back so many times for want of an activity: without
        another worker that has it, they would be handed back and taken again for ever."""
        return await self._lacking.watch(handle.result(), patience)

    @overload
    async def begin(self, work: Workflow[..., R], /, *args: Any, **options: Any) -> Handle[R]: ...
    @overload
    async def begin(self, work: Job[..., R], /, *args: Any, **options: Any) -> Handle[R]: ...
    async def begin(self, work: Any, /, *args: Any, **options: Any) -> Handle[Any]:
        """Start a workflow, or enqueue a job."""
        if isinstance(work, Job):
            return await self.client.enqueue(work, *args, **options)
        return await self.client.start(work, *args, **options)

    @overload
    async def get(self, id: str, workflow: Workflow[..., R] | Job[..., R]) -> Handle[R]: ...
    @overload
    async def get(self, id: str, workflow: None = None) -> Handle[Any]: ...
    async def get(self, id: str, workflow: Any = None) -> Handle[Any]:
        """`Batuta.get`: a run that a schedule or another run has begun, by its id."""
        return await self.client.get(id, workflow)

    @property
    def schedules(self) -> Schedules:
        """`Batuta.schedules`."""
        return self.client.schedules

    @property
    def letters(self) -> Letters:
        """`Batuta.letters`."""
        return self.client.letters

    # -- time

    @property
    def now(self) -> datetime:
        """The time in the environment, UTC."""
        return _EPOCH + timedelta(microseconds=self._clock.now())

    async def advance(self, time: float | timedelta) -> None:
        """Let that much time pass (seconds, or a timedelta), with all that is due in it.

        Threads at work do not hold it up, unless there is a seed.
        """
        seconds = time.total_seconds() if isinstance(time, timedelta) else time
        loop = asyncio.get_running_loop()
        if isinstance(loop, VirtualLoop):
            await loop.let_pass(seconds, threads_hold_time=self.chance is not None)
        else:
            await asyncio.sleep(seconds)

    async def settle(self) -> None:
        """Wait until nothing can happen any more without time passing. Virtual time only."""
        await _need_virtual_time("settle()").settled()

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

    async def take_over(self, downtime: float = 0.0) -> None:
        """The worker has dropped everything already. After `downtime` another one begins, and buries it."""
        dead = self.worker.session
        if dead is None:
            raise RuntimeError("there was no worker that could have died")
        await dead.abandoned()
        await asyncio.sleep(downtime)
        await self._begin()
        heir = self.worker.session
        if heir is None:
            raise RuntimeError("the next worker has not begun")
        async with self.store.heart(heir.info.worker_id) as heart:
            await heart.bury([dead.info.worker_id])

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
            self._workflows, with_doubles(self._activities), self._queues, self._schedules, **self._settings
        )
        await self.worker.start()


def _need_virtual_time(what: str) -> VirtualLoop:
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualLoop):
        raise RuntimeError(f"{what} needs virtual time: run the test with testing.run or @testing.in_virtual_time")
    return loop
