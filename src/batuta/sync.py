"""The blocking client for code that is not async, such as Django and Flask.

Each client has an event loop in its own thread. Any thread may use it. A forked process gets its own event loop and
connections.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures.thread import ThreadPoolExecutor  # which registers before us: last in, first out
from contextlib import AbstractAsyncContextManager, AbstractContextManager, closing, contextmanager, suppress
from functools import partial, wraps
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Self,
    TypeVar,
)

from batuta import client as aio
from batuta.authoring.client.bulk_operations import Selection as AsyncSelection
from batuta.authoring.client.bus import BusClient
from batuta.authoring.client.dead_letters import DeadLetters as AsyncDeadLetters
from batuta.authoring.client.handle import Handle as AsyncHandle
from batuta.authoring.client.quotas import Quotas as AsyncQuotas
from batuta.authoring.client.retention import Retentions as AsyncRetentions
from batuta.authoring.client.schedules import Schedule
from batuta.authoring.client.schedules import Schedules as AsyncSchedules
from batuta.authoring.client.workers import Workers as AsyncWorkers
from batuta.authoring.definitions import Workflow
from batuta.authoring.gates import Gate
from batuta.authoring.history.diff import Diff
from batuta.authoring.jobs import JobCall
from batuta.authoring.middleware import Middleware
from batuta.authoring.queues import Queue
from batuta.connect import Codecs
from batuta.connect import connect as connect_async
from batuta.durations import Duration
from batuta.errors import ClientError
from batuta.ids import RunId
from batuta.journal.dead_letters import DeadLetter
from batuta.journal.retention import Retention
from batuta.resilience.operators import Breakers as AsyncBreakers
from batuta.resilience.operators import Limits as AsyncLimits
from batuta.sync_verbs import Face, Part, blocking
from batuta.webhooks.manager import Webhooks as AsyncWebhooks

if TYPE_CHECKING:
    from batuta.sync_flows import Flows

A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def connect(
    url: str | None = None,
    *,
    namespace: str | None = None,
    migrate: bool = True,
    codec: Codecs = None,
    middleware: Sequence[Middleware] = (),
    actor: str | None = None,
) -> Client:
    """A blocking client for the database at `url`, which is read as `batuta.connect` reads it.

    It connects when it is first used, or when its context is entered, and closes at the end of its context or of the
    interpreter. `middleware` is called in the thread of its event loop, with the context of the caller. Raises
    InvalidURL, MissingExtra.
    """
    make = partial(
        connect_async, url, namespace=namespace, migrate=migrate, codec=codec, middleware=middleware, actor=actor
    )
    make()  # a URL that cannot be used is found here
    place = url or os.environ.get("BATUTA_DATABASE_URL") or ""
    return Client(make, survives_fork=not place.startswith("memory:"))


def handing(
    verb: Callable[Concatenate[A, P], Coroutine[Any, Any, AsyncHandle[R]]],
) -> Callable[Concatenate[Face[A], P], Handle[R]]:
    """As `blocking`, for a verb that gives a handle."""
    made = blocking(verb)

    @wraps(verb)
    def call(self: Face[A], /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        home = self._opened()
        return Handle(home, made(self, *args, **kwargs))

    return call


class Client:
    """A blocking connection to one namespace. Made by `connect`; a context manager. For any number of threads."""

    def __init__(self, make: Callable[[], aio.Batuta], *, survives_fork: bool = True) -> None:
        self._make = make
        self._survives_fork = survives_fork
        self._lock = threading.Lock()
        self._home: _Home | None = None
        self._why_not = ""
        """Set when it can no longer be used."""
        _clients.add(self)

    def __enter__(self) -> Self:
        self._opened()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and end the thread. Calls under way end with ClientError."""
        with self._lock:
            home, self._home = self._home, None
            self._why_not = "this client was closed: make another with batuta.sync.connect"
        if home is not None:
            home.thread.close()

    start = handing(aio.Batuta.start)
    """Start a run; it is durable when this returns. Arguments and options as of `Batuta.start`; `transaction` is a
    connection or session that blocks."""
    enqueue = handing(aio.Batuta.enqueue)
    """Have a worker execute a job; it is durable when this returns. Options as of `Batuta.enqueue`; `transaction` is a
    connection or session that blocks."""
    _enqueue_many = blocking(aio.Batuta.enqueue_many)

    def enqueue_many(
        self, calls: Iterable[JobCall[Any]], /, *, on_done: JobCall[Any] | None = None, transaction: Any = None
    ) -> Batch:
        """Enqueue all of these calls, or none. As `Batuta.enqueue_many`."""
        home = self._opened()
        made = self._enqueue_many(calls, on_done=on_done, transaction=transaction)
        batch = Batch(Handle(home, one) for one in made)
        batch.done = None if made.done is None else Handle(home, made.done)
        return batch

    publish = blocking(aio.Batuta.publish)
    """Publish a message; it is durable when this returns its id. As `Batuta.publish`; `transaction` is a connection or
    session that blocks."""
    publish_many = blocking(aio.Batuta.publish_many)
    """Publish many messages of one topic and key in one transaction, in order. As `Batuta.publish_many`."""

    @contextmanager
    def transaction(self, connection: object) -> Iterator[None]:
        """On SQLite: a transaction on your own `sqlite3` connection to the same file. As `Batuta.transaction`."""
        borrowed = self._opened().thread.client.borrow(connection)
        with closing(borrowed.begin()) as pauses:
            for pause in pauses:
                time.sleep(pause)
        with aio.ended(borrowed):
            yield

    get = handing(aio.Batuta.get)
    """The run of that id: the last one begun under it. With `workflow`, its result is of that type."""
    get_run = handing(aio.Batuta.get_run)
    """Exactly that run, by its run id. `workflow`: as for `get`."""
    list = blocking(aio.Batuta.list)
    count = blocking(aio.Batuta.count)
    count_states = blocking(aio.Batuta.count_states)
    audit = blocking(aio.Batuta.audit)
    verify_audit = blocking(aio.Batuta.verify_audit)
    queues = blocking(aio.Batuta.queues)
    pause_queue = blocking(aio.Batuta.pause_queue)
    resume_queue = blocking(aio.Batuta.resume_queue)
    limit_queue = blocking(aio.Batuta.limit_queue)
    complete = blocking(aio.Batuta.complete)
    fail = blocking(aio.Batuta.fail)
    heartbeat = blocking(aio.Batuta.heartbeat)

    def select(self, /, *, everything: bool = False, **where: Any) -> Selection:
        """Runs to do something to, all of them together. As `Batuta.select`."""
        found = self._opened().thread.client.select(everything=everything, **where)
        return Selection(self, lambda _: found)

    @property
    def bus(self) -> Bus:
        """Topics and subscriptions of the bus, and what waits to be delivered."""
        return Bus(self, lambda client: client.bus)

    @property
    def schedules(self) -> Schedules:
        """Schedules: made, changed, paused, triggered."""
        return Schedules(self, lambda client: client.schedules)

    @property
    def dead_letters(self) -> DeadLetters:
        """Dead letters: listed, grouped, reprocessed, discarded."""
        return DeadLetters(self, lambda client: client.dead_letters)

    @property
    def retention(self) -> Retentions:
        """How long closed runs are kept."""
        return Retentions(self, lambda client: client.retention)

    @property
    def workers(self) -> Workers:
        """Workers: host, queues, code, last heartbeat."""
        return Workers(self, lambda client: client.workers)

    @property
    def breakers(self) -> Breakers:
        """Circuit breakers: listed, and forced open, closed or off."""
        return Breakers(self, lambda client: client.breakers)

    @property
    def limits(self) -> Limits:
        """Limits towards partners: listed and changed."""
        return Limits(self, lambda client: client.limits)

    @property
    def flows(self) -> Flows:
        """Flows, their events, runs and secrets."""
        from batuta.sync_flows import Flows

        return Flows(self, lambda client: client.flows)

    @property
    def webhooks(self) -> Webhooks:
        """Webhooks to other people's endpoints."""
        return Webhooks(self, lambda client: client.webhooks)

    @property
    def quotas(self) -> Quotas:
        """How much may be started in this namespace."""
        return Quotas(self, lambda client: client.quotas)

    @contextmanager
    def gates(self, *gates: Gate, args: Sequence[Any] = ()) -> Iterator[None]:
        """Run a block behind gates: `with client.gates(breaker("bank")): ...`. See the async client's `gates`."""
        home = self._opened()
        block = home.thread.client.gates(*gates, args=args)
        home.thread.call(block.__aenter__)
        try:
            yield
        except BaseException as error:
            home.thread.call(partial(block.__aexit__, type(error), error, error.__traceback__))
            raise
        home.thread.call(partial(block.__aexit__, None, None, None))

    def worker(
        self,
        *,
        workflows: Sequence[Workflow[..., Any]] = (),
        activities: Sequence[object] = (),
        jobs: Sequence[object] = (),
        queues: Sequence[str | Queue] = ("default",),
        schedules: Sequence[Schedule] = (),
        on_dead_letter: Callable[[DeadLetter], Any] | None = None,
        retention: Sequence[Retention] = (),
        **settings: Any,
    ) -> AbstractContextManager[None]:
        """A worker in the client's thread, while the context is open. For development and small programs."""
        home = self._opened()
        worker = home.thread.client.worker(
            workflows=workflows,
            activities=activities,
            jobs=jobs,
            queues=queues,
            schedules=schedules,
            on_dead_letter=on_dead_letter,
            retention=retention,
            **settings,
        )
        return _Working(home, worker)

    def _ask(self, work: Callable[[aio.Batuta], Coroutine[Any, Any, T]]) -> T:
        home = self._opened()
        return home.thread.call(lambda: work(home.thread.client))

    def _opened(self) -> _Home:
        _refuse_in_event_loop()
        with self._lock:
            if self._why_not:
                raise ClientError(self._why_not)
            if self._home is None:
                self._home = _Home(self._make)
                try:
                    self._home.thread.open()
                except BaseException:
                    self._home = None
                    raise
            return self._home

    def _forked(self) -> None:
        """In the child: thread, loop and connections are the parent's, and the lock may be held for ever."""
        self._lock = threading.Lock()
        if self._home is not None:
            _of_parents.append(self._home)  # never touched again: closing it would disturb the parent
            self._home = None
            if not self._survives_fork:
                self._why_not = "memory:// belongs to the process that made it: a forked one cannot use it"


class Schedules(Part[AsyncSchedules]):
    """The schedules of a namespace, for blocking code: `client.schedules`."""

    create = blocking(AsyncSchedules.create)
    update = blocking(AsyncSchedules.update)
    get = blocking(AsyncSchedules.get)
    list = blocking(AsyncSchedules.list)
    delete = blocking(AsyncSchedules.delete)
    pause = blocking(AsyncSchedules.pause)
    resume = blocking(AsyncSchedules.resume)
    backfill = blocking(AsyncSchedules.backfill)
    next_times = blocking(AsyncSchedules.next_times)
    trigger = handing(AsyncSchedules.trigger)


class DeadLetters(Part[AsyncDeadLetters]):
    """The dead letters of a namespace, for blocking code: `client.dead_letters`."""

    list = blocking(AsyncDeadLetters.list)
    groups = blocking(AsyncDeadLetters.groups)
    count = blocking(AsyncDeadLetters.count)
    get = blocking(AsyncDeadLetters.get)
    reprocess = blocking(AsyncDeadLetters.reprocess)
    discard = blocking(AsyncDeadLetters.discard)


class Selection(Part[AsyncSelection]):
    """Runs that a filter finds, for blocking code: `client.select(...)`."""

    count = blocking(AsyncSelection.count)
    pause = blocking(AsyncSelection.pause)
    resume = blocking(AsyncSelection.resume)
    cancel = blocking(AsyncSelection.cancel)
    terminate = blocking(AsyncSelection.terminate)
    retry = blocking(AsyncSelection.retry)
    reset = blocking(AsyncSelection.reset)
    fork = blocking(AsyncSelection.fork)
    delete = blocking(AsyncSelection.delete)


class Retentions(Part[AsyncRetentions]):
    """How long closed runs of a namespace are kept, for blocking code: `client.retention`."""

    list = blocking(AsyncRetentions.list)
    set = blocking(AsyncRetentions.set)
    delete = blocking(AsyncRetentions.delete)
    prune = blocking(AsyncRetentions.prune)


class Workers(Part[AsyncWorkers]):
    """The workers of a namespace, for blocking code: `client.workers`."""

    list = blocking(AsyncWorkers.list)
    schemas = blocking(AsyncWorkers.schemas)
    schema = blocking(AsyncWorkers.schema)


class Breakers(Part[AsyncBreakers]):
    """Circuit breakers, for blocking code: `client.breakers`."""

    list = blocking(AsyncBreakers.list)
    get = blocking(AsyncBreakers.get)
    open = blocking(AsyncBreakers.open)
    close = blocking(AsyncBreakers.close)
    off = blocking(AsyncBreakers.off)
    forget = blocking(AsyncBreakers.forget)


class Limits(Part[AsyncLimits]):
    """Limits towards partners, for blocking code: `client.limits`."""

    list = blocking(AsyncLimits.list)
    get = blocking(AsyncLimits.get)
    change = blocking(AsyncLimits.change)
    reset = blocking(AsyncLimits.reset)
    hold = blocking(AsyncLimits.hold)
    release = blocking(AsyncLimits.release)
    sync = blocking(AsyncLimits.sync)
    forget = blocking(AsyncLimits.forget)


class Webhooks(Part[AsyncWebhooks]):
    """Webhooks to other people's endpoints, for blocking code: `client.webhooks`."""

    create = blocking(AsyncWebhooks.create)
    list = blocking(AsyncWebhooks.list)
    get = blocking(AsyncWebhooks.get)
    update = blocking(AsyncWebhooks.update)
    enable = blocking(AsyncWebhooks.enable)
    disable = blocking(AsyncWebhooks.disable)
    rotate = blocking(AsyncWebhooks.rotate)
    delete = blocking(AsyncWebhooks.delete)
    deliveries = blocking(AsyncWebhooks.deliveries)
    _send = blocking(AsyncWebhooks.send)

    def send(self, event: str, data: Any, *, transaction: Any = None, **options: Any) -> Sequence[Handle[Any]]:
        """Send an event to every enabled endpoint that takes its type. As `client.webhooks.send`; `transaction` is a
        connection or session that blocks."""
        home = self._opened()
        return [Handle(home, one) for one in self._send(event, data, transaction=transaction, **options)]

    test = handing(AsyncWebhooks.test)
    resend = handing(AsyncWebhooks.resend)


class Bus(Part[BusClient]):
    """The bus of a namespace, for blocking code: `client.bus`."""

    status = blocking(BusClient.status)
    messages = blocking(BusClient.messages)
    delete = blocking(BusClient.delete)
    prune = blocking(BusClient.prune)


class Quotas(Part[AsyncQuotas]):
    """How much may be started in a namespace, for blocking code: `client.quotas`."""

    list = blocking(AsyncQuotas.list)
    set = blocking(AsyncQuotas.set)
    delete = blocking(AsyncQuotas.delete)


class Handle(Generic[R]):
    """One run, for blocking code. Made by `start` and `get`."""

    def __init__(self, home: _Home, handle: AsyncHandle[R]) -> None:
        self._home, self._real = home, handle

    @property
    def id(self) -> str:
        return self._real.id

    @property
    def run_id(self) -> RunId:
        return self._real.run_id

    @property
    def is_new(self) -> bool | None:
        """Whether the call that gave this handle began the run; None: it was asked for with `get`."""
        return self._real.is_new

    def result(self, timeout: Duration | None = None) -> R:
        """The workflow's result, when it is there. Raises RunFailed (with the workflow's error as its cause),
        RunCancelled, RunTerminated or RunTimedOut; TimeoutError after `timeout` seconds (the run goes on); UnknownRun
        when it was deleted."""
        return self._ask(lambda handle: handle.result(timeout))

    signal = blocking(AsyncHandle.signal)
    """Send a signal; it is durable when this returns. `transaction` is a connection or session that blocks."""
    update = blocking(AsyncHandle.update)
    """Ask the run to do something, and wait for its answer."""
    query = blocking(AsyncHandle.query)
    """Ask about the run's state; its code must be in this process."""
    published = blocking(AsyncHandle.published)
    """The published value of that name, or all values by name."""
    cancel = blocking(AsyncHandle.cancel)
    pause = blocking(AsyncHandle.pause)
    resume = blocking(AsyncHandle.resume)
    retry = blocking(AsyncHandle.retry)
    delete = blocking(AsyncHandle.delete)
    reset = blocking(AsyncHandle.reset)

    def fork(self, id: str, **options: Any) -> Handle[R]:
        """Begin another run with what this one has done up to an entry; options as for the async handle."""
        return Handle(self._home, self._ask(lambda handle: handle.fork(id, **options)))

    terminate = blocking(AsyncHandle.terminate)
    describe = blocking(AsyncHandle.describe)
    attempts = blocking(AsyncHandle.attempts)
    progress = blocking(AsyncHandle.progress)
    journal = blocking(AsyncHandle.journal)
    timeline = blocking(AsyncHandle.timeline)

    def diff(self, other: Handle[Any] | None = None) -> Diff:
        """Compare this run with another one of the same workflow, or with the run that it was made from."""
        return self._ask(lambda handle: handle.diff(None if other is None else other._real))

    def _opened(self) -> _Home:
        _refuse_in_event_loop()
        return self._home

    def _ask(self, work: Callable[[AsyncHandle[R]], Coroutine[Any, Any, T]]) -> T:
        return self._opened().thread.call(lambda: work(self._real))

    def __repr__(self) -> str:
        return f"<run {self.id}>"


class Batch(list[Handle[Any]]):
    """The handles of jobs that were enqueued together, in the order of their calls."""

    done: Handle[Any] | None = None
    """Of the job that is called when all of them have ended, if there is one."""


class _Working(AbstractContextManager[None]):
    """A worker in the thread of a client. It ends with its context, or with the client, whose thread knows it."""

    def __init__(self, home: _Home, worker: AbstractAsyncContextManager[Any]) -> None:
        self._home, self._worker = home, worker

    def __enter__(self) -> None:
        thread = self._home.thread
        thread.call(lambda: thread.enter(self._worker))
        thread.working.add(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        thread = self._home.thread
        thread.working.discard(self)
        if not thread.closing and not thread.is_parents:
            thread.call(lambda: thread.leave(self._worker))


class _Home:
    """The event loop and thread of a client and its handles. It closes when none of them is left."""

    def __init__(self, make: Callable[[], aio.Batuta]) -> None:
        self.thread = _Thread(make)
        weakref.finalize(self, self.thread.stop).atexit = False  # `_close_all` does that


class _Thread:
    """An event loop in a thread, and the async client that lives there. Knows nothing of who uses it."""

    def __init__(self, make: Callable[[], aio.Batuta]) -> None:
        self._make = make
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self.closing = False
        self.calls: set[Future[Any]] = set()
        self.working: set[_Working] = set()
        self._workers: list[AbstractAsyncContextManager[Any]] = []
        self._up: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="batuta-sync", daemon=True)
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self.client: aio.Batuta

    @property
    def is_parents(self) -> bool:
        """Whether this process was forked since."""
        return self._pid != os.getpid()

    def open(self) -> None:
        """Connect. Raises the errors of the async client."""
        _threads.add(self)
        self._thread.start()
        self._up.result()

    def call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run `work` in the loop and wait for its end. Cancels it if the caller stops waiting (KeyboardInterrupt)."""
        if self.is_parents:
            raise ClientError("this handle is of another process: in a forked one, ask the client for it with get(id)")
        future = self._begin(work)
        try:
            return future.result()
        except CancelledError:
            raise ClientError("the client was closed during the call: whether it took effect is not known") from None
        except BaseException:
            future.cancel()
            raise
        finally:
            self.calls.discard(future)

    def _begin(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        with self._lock:  # nothing gets in behind the word to stop, where it would never be run
            if self.closing:
                raise ClientError("the client was closed: make another with batuta.sync.connect")
            future = asyncio.run_coroutine_threadsafe(_made_there(work), self._loop)
            self.calls.add(future)
            return future

    def close(self) -> None:
        """Have it closed, and wait for that."""
        if self.is_parents:
            return
        with self._lock:
            self.stop()
        if self._thread.ident is not None:
            self._thread.join()

    def stop(self) -> None:
        """Have it closed. For the garbage collector, too, which may come at any time and in any thread."""
        if self.closing or self.is_parents:
            return
        self.closing = True
        if self._up.done() and self._up.exception() is None:
            with suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(self._stop.set)

    # -- in the thread

    def _run(self) -> None:
        # Not asyncio.run: it needs a new thread to end its thread pool, which some Pythons refuse at their own end.
        loop = asyncio.new_event_loop()
        threads = ThreadPoolExecutor(thread_name_prefix="batuta-sync-io")
        loop.set_default_executor(threads)
        try:
            loop.run_until_complete(self._main())
        except BaseException as error:
            if self._up.done():
                raise
            self._up.set_exception(error)
        finally:
            loop.run_until_complete(_end_tasks())
            threads.shutdown()
            loop.close()
            self.working.clear()
            _threads.discard(self)

    async def _main(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self.client = self._make()
        async with self.client:
            self._up.set_result(None)
            if not self.closing:  # an earlier caller could not reach the event
                await self._stop.wait()
            for call in list(self.calls):
                call.cancel()
            for worker in list(self._workers):
                await self.leave(worker)

    async def enter(self, worker: AbstractAsyncContextManager[Any]) -> None:
        await worker.__aenter__()
        self._workers.append(worker)

    async def leave(self, worker: AbstractAsyncContextManager[Any]) -> None:
        """Stop a worker, once."""
        if worker in self._workers:
            self._workers.remove(worker)
            await worker.__aexit__(None, None, None)


async def _end_tasks() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


async def _made_there(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Make the coroutine in the loop: a coroutine that is never begun would warn."""
    return await work()


def _refuse_in_event_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise ClientError(
        "a blocking call inside an event loop would stop everything in it: use batuta.connect and await there, "
        "or asyncio.to_thread"
    )


_clients: weakref.WeakSet[Client] = weakref.WeakSet()
_threads: set[_Thread] = set()
"""Calls that have not ended."""
_of_parents: list[object] = []


def _close_all() -> None:
    for thread in list(_threads):
        thread.close()


def _fork_all() -> None:
    _of_parents.extend(_threads)
    _threads.clear()
    for client in list(_clients):
        client._forked()


# Before the interpreter ends its thread pools, which closing needs; an `atexit` function would come too late.
threading._register_atexit(_close_all)  # type: ignore[attr-defined]  # as concurrent.futures does
os.register_at_fork(after_in_child=_fork_all)
