"""The real engine, on its own store, in virtual time: for tests of workflows and jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self, TypeVar, TypeVarTuple, Unpack, overload

from batuta.app import App
from batuta.authoring.call_options import check_wait
from batuta.authoring.client.dead_letters import DeadLetters
from batuta.authoring.client.enqueue import EnqueueOptions
from batuta.authoring.client.handle import Batch, Handle
from batuta.authoring.client.schedules import Schedule, Schedules
from batuta.authoring.client.start import StartOptions
from batuta.authoring.definitions import Workflow, by_code
from batuta.authoring.jobs import Job, JobCall
from batuta.authoring.middleware import Middleware
from batuta.authoring.queues import Queue
from batuta.bus.subscriptions import Subscription
from batuta.bus.worker import DeliveringWorker, delivery_jobs
from batuta.client import Batuta
from batuta.clock import Clock, SystemClock
from batuta.durations import Duration
from batuta.engine.backend.middleware import backend_for
from batuta.engine.worker.worker import Worker
from batuta.errors import InvalidInput
from batuta.journal.store import Store
from batuta.stores.memory import MemoryDatabase, MemoryStore
from batuta.testing.doubles import with_doubled_handlers, with_doubles
from batuta.testing.events import Happening, what_happened
from batuta.testing.missing_activities import Lacking
from batuta.testing.random_delays import SLOWEST, Chance, SlowAttempts, foreseen, slow_down
from batuta.testing.stores import AnyStoreName, quick_folder, sqlite_store
from batuta.testing.stuck import what_runs_wait_for
from batuta.testing.virtualtime import VirtualLoop

R = TypeVar("R")
Ts = TypeVarTuple("Ts")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PATIENCE = 20
"""How often runs are released because of a missing activity before the test gives up."""


class Environment:
    """A client and a worker in one. An async context manager.

        @in_virtual_time
        async def test_it_ships_after_a_month():
            async with Environment(workflows=[order], activities=[double(ship, returns="shipped")]) as env:
                handle = await env.start(order, "sku-1")
                assert await handle.result() == "shipped"

    `activities` and `jobs` may hold doubles beside what they stand in for, or for the jobs that `subscriptions` have.
    `store` is "memory", "sqlite" for a file
    that is gone at the end, or "postgres" for a database that is (see `batuta.testing.servers`). `middleware` is that
    of a client. Other keywords are settings of the worker. On an ordinary event loop everything works too, only that a
    month takes a month.

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
        subscriptions: Sequence[Subscription] = (),
        store: AnyStoreName = "memory",
        middleware: Sequence[Middleware] = (),
        seed: int | None = None,
        slowest: Duration = SLOWEST,
        failing: float = 0.0,
        **settings: Any,
    ) -> None:
        if store not in ("memory", "sqlite", "postgres"):
            raise InvalidInput(
                f"store={store!r} is none that an environment can have: 'memory', 'sqlite' or 'postgres'"
            )
        if store == "postgres" and seed is not None:
            raise InvalidInput("seed= cannot be given with store='postgres': a server answers in an order of its own")
        self._workflows, self._activities, self._queues = list(workflows), [*activities, *jobs], queues
        self._schedules, self._subscriptions = list(schedules), list(subscriptions)
        self._settings, self._middleware = settings, middleware
        self.chance = None if seed is None else Chance(seed, slowest, failing)
        """The random choices of the seed."""
        if seed is None and (slowest, failing) != (SLOWEST, 0.0):
            raise InvalidInput("slowest= and failing= say what a seed may do: give seed=, too")
        self._kind = store
        self._open = AsyncExitStack()
        self.url = ""
        """The URL of its database, for connections of your own; empty in memory."""
        self.store: Store
        """The store of the runs, for tests that need more than a client."""
        self.client: Batuta
        """An ordinary client, for everything that this class has no method for."""
        self.worker: Worker

    @classmethod
    def of(cls, app: App, *doubles: object, store: AnyStoreName = "memory", **settings: Any) -> Self:
        """An environment with all that an App has, in which these doubles stand in for activities and jobs."""
        return cls(
            workflows=app.workflows,
            activities=[*app.activities, *doubles],
            jobs=app.jobs,
            queues=app.queues,
            schedules=app.schedules,
            subscriptions=app.subscriptions,
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
        # Do not wait for the leftovers of a failed test.
        await self._running.stop(grace=None if error is None else 0.001)
        await self.client.__aexit__(None, None, None)
        await self._open.aclose()

    async def _made_store(self, *, virtual: bool) -> Store:
        if self._kind == "memory":
            return self.make_store(MemoryDatabase(self._clock))
        if self._kind == "postgres":
            return self._postgres_store(virtual=virtual)
        folder = TemporaryDirectory(prefix="batuta-test-", dir=quick_folder(), ignore_cleanup_errors=True)
        file = Path(self._open.enter_context(folder), "batuta.db")
        store = sqlite_store(file, self._clock, virtual=virtual)
        self.url = f"sqlite:///{file}"
        await store.migrate()
        return store

    def _postgres_store(self, *, virtual: bool) -> Store:
        from batuta.testing import postgres  # which needs a driver, and a server

        self.url = self._open.enter_context(postgres.fresh_database(virtual=virtual))
        return postgres.postgres_store(self.url, self._clock, virtual=virtual)

    def _slowed_down(self, chance: Chance) -> list[Middleware]:
        slow_down(self.store, chance)
        return [*self._middleware, SlowAttempts(chance)]

    def make_store(self, database: MemoryDatabase) -> MemoryStore:
        """The store of this environment, when it is in memory. Override it to make it fail."""
        return MemoryStore(database)

    def _explain(self) -> list[str]:
        if self._kind == "postgres":
            from batuta.testing.postgres import Snapshot

            return what_runs_wait_for(Snapshot(self.url), by_code(self._workflows))
        return what_runs_wait_for(self.store, by_code(self._workflows))

    async def happened(self) -> list[Happening]:
        """Events of the runs so far, in order."""
        return await what_happened(self.store, {} if self.chance is None else self.chance.written)

    @property
    def workflows(self) -> list[Workflow[..., Any]]:
        """Those of the present worker."""
        return list(self._workflows)

    # -- runs

    @overload
    async def start(
        self,
        workflow: Callable[[*Ts], Coroutine[Any, Any, R]],
        /,
        *args: *Ts,
        id: str | None = None,
        **options: Unpack[StartOptions],
    ) -> Handle[R]: ...
    @overload
    async def start(
        self, workflow: str, /, *args: Any, id: str | None = None, **options: Unpack[StartOptions]
    ) -> Handle[Any]: ...
    async def start(self, workflow: Any, /, *args: Any, id: str | None = None, **options: Any) -> Handle[Any]:  # type: ignore[misc]  # mypy does not see that *Any takes *Ts
        """`Batuta.start`."""
        return await self.client.start(workflow, *args, id=id, **options)

    @overload
    async def enqueue(
        self, job: Callable[[*Ts], Coroutine[Any, Any, R]], /, *args: *Ts, **options: Unpack[EnqueueOptions]
    ) -> Handle[R]: ...
    @overload
    async def enqueue(self, job: JobCall[R], /, **options: Unpack[EnqueueOptions]) -> Handle[R]: ...
    @overload
    async def enqueue(self, job: str, /, *args: Any, **options: Unpack[EnqueueOptions]) -> Handle[Any]: ...
    async def enqueue(self, job: Any, /, *args: Any, **options: Any) -> Handle[Any]:  # type: ignore[misc]  # mypy does not see that *Any takes *Ts
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
        """The result of a run.

        Raises Stuck when runs were released too often because of a missing activity: without another worker that has
        it, they would be released and claimed for ever.
        """
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
    def dead_letters(self) -> DeadLetters:
        """`Batuta.dead_letters`."""
        return self.client.dead_letters

    # -- time

    @property
    def now(self) -> datetime:
        """The time in the environment, UTC."""
        return _EPOCH + timedelta(microseconds=self._clock.now())

    async def advance(self, time: Duration) -> None:
        """Let that much time pass (seconds, or a timedelta), with all that is due in it.

        Threads at work do not hold it up, unless there is a seed.
        """
        seconds = check_wait("time", time)
        loop = asyncio.get_running_loop()
        if isinstance(loop, VirtualLoop):
            await loop.let_pass(seconds, threads_hold_time=self.chance is not None)
        else:
            await asyncio.sleep(seconds)

    async def settle(self) -> None:
        """Wait until nothing more can happen without time passing. Virtual time only."""
        await _need_virtual_time("settle()").settled()

    # -- mishaps

    async def crash(self) -> None:
        """Kill the worker's process: everything that was not durable is lost. Another worker finds it dead and takes
        over.

        As after kill -9, each of its runs counts a death; after five deaths without progress a run is parked as
        poisoned.
        """
        session = self.worker.session
        if session is None:
            raise RuntimeError("there is no worker to crash: it is registering anew")
        session.abandon()
        await self.take_over()

    async def take_over(self, downtime: Duration = 0.0) -> None:
        """The worker has dropped everything already. After `downtime` another one begins, and buries it."""
        dead = self.worker.session
        if dead is None:
            raise RuntimeError("there was no worker that could have died")
        if isinstance(self._running, DeliveringWorker):
            self._running.abandon()
        await dead.abandoned()
        await asyncio.sleep(check_wait("downtime", downtime))
        await self._begin()
        heir = self.worker.session
        if heir is None:
            raise RuntimeError("the next worker has not begun")
        async with self.store.heartbeat(heir.info.worker_id) as heartbeat:
            await heartbeat.reap([dead.info.worker_id])

    async def deploy(
        self,
        workflows: Sequence[Workflow[..., Any]] | None = None,
        activities: Sequence[object] | None = None,
        schedules: Sequence[Schedule] | None = None,
        subscriptions: Sequence[Subscription] | None = None,
        **settings: Any,
    ) -> None:
        """Stop the worker gracefully and start one with other code. Code or settings that are refused leave it as it
        was."""
        before = self._workflows, self._activities, self._schedules, self._subscriptions, self._settings
        self._workflows = self._workflows if workflows is None else list(workflows)
        self._activities = self._activities if activities is None else list(activities)
        self._schedules = self._schedules if schedules is None else list(schedules)
        self._subscriptions = self._subscriptions if subscriptions is None else list(subscriptions)
        self._settings = self._settings | settings
        try:
            worker, running = self._new_worker()
        except BaseException:
            self._workflows, self._activities, self._schedules, self._subscriptions, self._settings = before
            raise
        await self._running.stop()
        await self._start(worker, running)

    async def _begin(self) -> None:
        await self._start(*self._new_worker())

    def _new_worker(self) -> tuple[Worker, Worker | DeliveringWorker]:
        """A worker, and what runs it: the same, or one that delivers messages, too."""
        subscriptions = with_doubled_handlers(self._subscriptions, self._activities)
        deliveries = delivery_jobs(subscriptions, self.client)
        activities = [*with_doubles(self._activities), *deliveries.values()]
        worker = self._backend.worker(self._workflows, activities, self._queues, self._schedules, **self._settings)
        if not subscriptions:
            return worker, worker
        return worker, DeliveringWorker(worker, self._backend, subscriptions, deliveries)

    async def _start(self, worker: Worker, running: Worker | DeliveringWorker) -> None:
        self.worker, self._running = worker, running
        await running.start()


def _need_virtual_time(what: str) -> VirtualLoop:
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualLoop):
        raise RuntimeError(f"{what} needs virtual time: run the test with testing.run or @testing.in_virtual_time")
    return loop
