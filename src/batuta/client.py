"""The client: starts runs, finds them, lists them, and makes workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, contextmanager
from datetime import datetime
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, TypeVarTuple, Unpack, overload
from urllib.parse import quote

from msgspec import Raw

from batuta.authoring.activity.tokens import parse_token
from batuta.authoring.backend import RunPage, RunRef, StartRequest
from batuta.authoring.client.api_keys import ApiKeys
from batuta.authoring.client.bulk_operations import AuditPage, AuditReport, Selection
from batuta.authoring.client.bus import BusClient
from batuta.authoring.client.caller_transaction import within
from batuta.authoring.client.dead_letters import DeadLetters
from batuta.authoring.client.enqueue import EnqueueOptions, JobRequest, callback_request, job_request, job_requests
from batuta.authoring.client.handle import Batch, Handle
from batuta.authoring.client.idempotency import IdempotencyKeys
from batuta.authoring.client.messages import Draft, new_message
from batuta.authoring.client.namespace import Namespace
from batuta.authoring.client.queues import Queues
from batuta.authoring.client.quotas import Quotas
from batuta.authoring.client.requests import start_request
from batuta.authoring.client.retention import Retentions
from batuta.authoring.client.schedules import Schedule, Schedules
from batuta.authoring.client.start import StartOptions, check_id, check_run_id, check_tags
from batuta.authoring.client.workers import Workers
from batuta.authoring.definitions import Workflow
from batuta.authoring.failures.conversion import to_failure
from batuta.authoring.gates import Gate
from batuta.authoring.jobs import Job, JobCall
from batuta.authoring.middleware import Middleware
from batuta.authoring.queues import Queue
from batuta.authoring.services import Backend
from batuta.authoring.workflow.context import refuse_in_workflow
from batuta.bus.broker import Broker
from batuta.bus.relay import Relay
from batuta.bus.subscriptions import Subscription
from batuta.bus.worker import DeliveringWorker, delivery_jobs, put_subscription
from batuta.clock import SECOND
from batuta.errors import LONGEST_WORDS, ActivityFailed, ClientError, InvalidInput, MatchesEverything
from batuta.ids import RunId, new_run_id
from batuta.journal.audit import ActFilter
from batuta.journal.dead_letters import DeadLetter
from batuta.journal.queues import QueueInfo, limit_changes
from batuta.journal.records import RunFilter, RunKind
from batuta.journal.retention import Retention
from batuta.journal.states import RunState
from batuta.journal.store import Borrowed
from batuta.names import check_filter, check_length, check_name, check_page_size, check_reason
from batuta.resilience.operators import Breakers, Limits
from batuta.resilience.outside import ClientGates
from batuta.serde import encode
from batuta.settings import Settings

if TYPE_CHECKING:
    from batuta.flows.calls.flows import Flows
    from batuta.flows.workflow import Flows as WorkerFlows
    from batuta.webhooks.client import SafeHttpClient
    from batuta.webhooks.manager import Webhooks

R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_Queues = Sequence[QueueInfo]
"""Named here: in the class `list` is a verb."""


class Batuta:
    """A connection to one namespace. Made by `connect`; an async context manager."""

    def __init__(
        self,
        backend: Backend,
        opening: Callable[[], Coroutine[Any, Any, None]],
        closing: Callable[[], Coroutine[Any, Any, None]],
        settings: Settings | None = None,
        broker: Broker | None = None,
    ) -> None:
        self._backend, self._opening, self._closing = backend, opening, closing
        self._settings, self._broker = settings or Settings(), broker
        self._max_payload = self._settings.max_payload
        self.schedules = Schedules(backend.schedules, lambda ref: self._handle(ref, None))
        """Schedules: made, changed, paused, triggered."""
        self.dead_letters = DeadLetters(backend.access.store, backend.dead_letters)
        """Dead letters: listed, grouped, reprocessed, discarded."""
        self.retention = Retentions(backend)
        """How long closed runs are kept."""
        self.workers = Workers(backend.access)
        """Workers: host, queues, code, last heartbeat."""
        self._queues = Queues(backend.access)
        self.quotas = Quotas(backend)
        """How much may be started in this namespace."""
        self.api_keys = ApiKeys(backend.access)
        """Keys of the server: made, listed, rotated, revoked."""
        self.idempotency = IdempotencyKeys(backend.access)
        """Idempotency keys of requests: listed and deleted."""
        self.breakers = Breakers(backend.access)
        """Circuit breakers: listed, and forced open, closed or off."""
        self.limits = Limits(backend.access)
        """Limits towards partners: listed and changed."""
        self._gates = ClientGates(backend.access)
        self.bus = BusClient(backend.bus, broker)
        """Topics and subscriptions of the bus, and what waits to be delivered."""
        self.namespace = Namespace(backend.access)
        """The namespace itself: its name, whether it can be used, who acts there."""

    # Imported by the first use: `import batuta` does without them.
    @cached_property
    def webhooks(self) -> Webhooks:
        """Webhooks to other people's endpoints."""
        from batuta.webhooks.manager import Webhooks

        return Webhooks(self, self._backend.access)

    @cached_property
    def flows(self) -> Flows:
        """Flows: JSON documents, the events that start them, and their runs."""
        from batuta.flows.calls.flows import Flows

        return Flows(self, self._backend.flows)

    async def __aenter__(self) -> Self:
        await self._opening()
        self._backend.home = asyncio.get_running_loop()
        try:
            await self._backend.open()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._gates.close()
            if self._broker is not None:
                await self._broker.close()
            if "webhooks" in vars(self):
                await self.webhooks.close()
            await self._backend.close()
        finally:
            await self._closing()

    @property
    def _in_use(self) -> Backend:
        """The backend of an open client, outside workflow code."""
        refuse_in_workflow()
        if self._backend.home is None:
            raise ClientError("this client is not open: use it inside `async with connect(...) as client:`")
        return self._backend

    def gates(self, *gates: Gate, args: Sequence[Any] = ()) -> AbstractAsyncContextManager[None]:
        """Run a block behind gates, in code that is no activity: `async with client.gates(breaker("bank")): ...`.

        It waits until all let it in, and tells them how it ended. `args`: for keys and weights that are functions.
        Raises GateRefused (BreakerOpen, LimitReached) for a gate that does not wait, GateFailed and UnknownPartner.
        """
        return self._gates.through(gates, tuple(args), {})

    @overload
    async def start(
        self,
        workflow: Callable[[*Ts], Coroutine[Any, Any, R]],
        /,
        *args: *Ts,
        id: str | None = None,
        transaction: Any = None,
        **options: Unpack[StartOptions],
    ) -> Handle[R]: ...
    @overload
    async def start(
        self,
        workflow: str,
        /,
        *args: Any,
        id: str | None = None,
        transaction: Any = None,
        **options: Unpack[StartOptions],
    ) -> Handle[Any]: ...
    async def start(  # type: ignore[misc]  # mypy does not see that *Any takes *Ts
        self, workflow: Any, /, *args: Any, id: str | None = None, transaction: Any = None, **options: Any
    ) -> Handle[Any]:
        """Start a run; it is durable when this returns. `args` are the workflow's arguments. Raises QuotaExceeded.

        `id` is the caller's own name for it, unique in the namespace. If it is taken, `if_exists` decides: "return"
        (the default) returns that run, "same" returns it if it was started with the same arguments and raises
        AlreadyStarted otherwise, "reject" raises AlreadyStarted, "restart" begins a new run if it is closed. The
        handle's `is_new` says whether this call began the run. A run of another workflow raises WrongWorkflow.

        Other options: queue, priority, delay, timeout (of the run), execution_timeout (of its chain), retry (of the
        whole run, when it fails), version (the definition's), tags, memo, headers, key (for the limits per key of its
        queue), expires (it times out if no worker has taken it by then). Times are seconds or a timedelta.

        `signal=(definition or name, value)`, optionally with a message id as the third item, sends a signal to the run
        of that id, new or not, together with the start; raises RunClosed when that run is closed. `transaction`: as for
        `enqueue`.
        """
        request = start_request(workflow, args, id, options, self._max_payload)
        if transaction is not None:
            return await self._within(transaction, [request], None, lambda refs: self._handle(refs[0], workflow))
        ref = await self._in_use.start(request)
        return self._handle(ref, workflow)

    @overload
    async def enqueue(
        self,
        job: Callable[[*Ts], Coroutine[Any, Any, R]],
        /,
        *args: *Ts,
        transaction: Any = None,
        **options: Unpack[EnqueueOptions],
    ) -> Handle[R]: ...
    @overload
    async def enqueue(
        self, job: JobCall[R], /, *, transaction: Any = None, **options: Unpack[EnqueueOptions]
    ) -> Handle[R]: ...
    @overload
    async def enqueue(
        self, job: str, /, *args: Any, transaction: Any = None, **options: Unpack[EnqueueOptions]
    ) -> Handle[Any]: ...
    async def enqueue(self, job: Any, /, *args: Any, transaction: Any = None, **options: Any) -> Handle[Any]:  # type: ignore[misc]  # mypy does not see that *Any takes *Ts
        """Enqueue a job; it is durable when this returns. `args` are the job's arguments. Raises QuotaExceeded.

        Options (times are seconds or a timedelta): `delay`, or `at` (a datetime with a time zone): do not begin before.
        `priority`: higher goes first. `queue`, `id`, `if_exists` (as for `start`), `tags`, `memo`, `headers`.
        `unique="k"`: return the job of this name and key that is waiting or running, or was enqueued less than
        `unique_for` seconds ago, instead of adding one. `debounce=5`, with `unique`: begin after 5 seconds without
        another call with that key, and use the last call; `debounce_limit`: the longest delay. `key`: for the limits
        per key and the fairness of the queue. `expires`: time out if no worker has taken it within that time from when
        it may begin. `retry`, `timeout`, `total_timeout`, `heartbeat`: instead of the job's own.

        `transaction`: your own connection or session on the same database. The job exists if, and only if, its
        transaction commits. Raises WrongTransaction, TransactionFailed, and your driver's errors.
        """
        request = job_request(job, args, options, self._max_payload)
        if transaction is not None:
            return await self._within(transaction, [request], None, lambda refs: self._handle(refs[0], job))
        ref = await self._in_use.enqueue(request)
        return self._handle(ref, job)

    async def enqueue_many(
        self, calls: Iterable[JobCall[Any]], /, *, on_done: JobCall[Any] | None = None, transaction: Any = None
    ) -> Batch:
        """Enqueue all of these calls, or, when one of them cannot be, none: `[send.call("a"), send.call("b")]`.

        `on_done` is called when all of them have ended, well or not: `batch_info()` tells it. Calls have the options of
        `enqueue`, by `.with_options(...)`. `transaction`: as there.
        """
        calls = list(calls)
        requests = job_requests(calls, self._max_payload)
        after = callback_request(on_done, self._max_payload)

        def batch_of(refs: Sequence[RunRef]) -> Batch:
            batch = Batch(self._handle(ref, call) for ref, call in zip(refs, calls, strict=False))
            batch.done = None if on_done is None else self._handle(refs[-1], on_done)
            return batch

        if transaction is not None:
            return await self._within(transaction, requests, after, batch_of)
        return batch_of(await self._in_use.enqueue_many(requests, after))

    async def publish(
        self,
        topic: str,
        payload: Any,
        *,
        key: str = "",
        id: str | None = None,
        type: str | None = None,
        transaction: Any = None,
    ) -> str:
        """Publish a message; it is durable when this returns its id. Every subscription of the topic gets it.

        `key`: messages of one key are delivered one after the other, in order. `id`: a second message of the topic with
        this id is not published. `type`: of the event; without it the topic. `transaction`: as for `enqueue`. Raises
        InvalidInput, TooLarge, and the errors of the store.
        """
        draft = Draft(topic=topic, payload=payload, key=key, id=id, type=type)
        return await self._publish([draft], transaction, lambda ids: ids[0])

    async def publish_many(
        self, topic: str, payloads: Iterable[Any], *, key: str = "", transaction: Any = None
    ) -> Sequence[str]:
        """Publish many messages of one topic and key in one transaction, in order. Returns their ids."""
        drafts = [Draft(topic=topic, payload=one, key=key) for one in payloads]
        return await self._publish(drafts, transaction, lambda ids: ids)

    async def _publish(self, drafts: Sequence[Draft], transaction: object, result: Callable[[Sequence[str]], T]) -> T:
        bus = self._backend.bus
        made = {"source": f"/batuta/{quote(bus.namespace)}", "via": self._settings.broker}
        now = await bus.now()
        messages = [new_message(one, str(new_run_id()), self._max_payload, time=now, **made) for one in drafts]
        ids = [message.id for message in messages]
        if transaction is not None:
            return await within(transaction, lambda given: bus.enter(given, messages), lambda _: result(ids))
        await bus.publish(messages)
        return result(ids)

    @asynccontextmanager
    async def transaction(self, connection: object) -> AsyncIterator[None]:
        """On SQLite: a transaction on your own `sqlite3` connection to the same file, under the lock of all writers.

        It commits at the end of the block, or rolls back when that raises; give the connection as `transaction=` in it.
        Raises WrongTransaction; StoreUnavailable when others write for too long.
        """
        borrowed = self.borrow(connection)
        with closing(borrowed.begin()) as pauses:
            for pause in pauses:
                await asyncio.sleep(pause)
        with ended(borrowed):
            yield

    def borrow(self, connection: object) -> Borrowed:
        """For `transaction`, here and in the blocking client."""
        return self._backend.access.store.borrow(connection)

    async def _within(
        self,
        transaction: object,
        requests: Sequence[StartRequest | JobRequest],
        after: JobRequest | None,
        made: Callable[[Sequence[RunRef]], T],
    ) -> T:
        return await within(transaction, lambda given: self._backend.enter(given, requests, after), made)

    @overload
    async def get(self, id: str, workflow: Workflow[..., R] | Job[..., R]) -> Handle[R]: ...
    @overload
    async def get(self, id: str, workflow: None = None) -> Handle[Any]: ...
    async def get(self, id: str, workflow: Workflow[..., Any] | Job[..., Any] | None = None) -> Handle[Any]:
        """The run of that id: the last one begun under it. With `workflow` (or a job), its result is of that type, and
        queries are answered with that code. Raises UnknownRun; WrongWorkflow when the run is of another one."""
        _check_definition(workflow)
        ref = await self._in_use.runs.find(check_id(id), workflow)
        return self._handle(ref, workflow)

    async def get_run(
        self, run_id: RunId | str, workflow: Workflow[..., Any] | Job[..., Any] | None = None
    ) -> Handle[Any]:
        """Exactly that run, by its run id, also when a newer run has its id. `workflow`: as for `get`."""
        _check_definition(workflow)
        return self._handle(await self._in_use.runs.find_run(check_run_id(run_id), workflow), workflow)

    def _handle(self, ref: RunRef, workflow: Any) -> Handle[Any]:
        code = workflow.job if isinstance(workflow, JobCall) else workflow
        return Handle(self._backend, ref, None if isinstance(code, str) else code, self._max_payload)

    async def list(self, /, *, cursor: str | None = None, limit: int = 50, **where: Any) -> RunPage:
        """Runs, newest first. Filters: state or states, workflow (or job: the name), queue, id_prefix, kind ("workflow"
        unless told; "job", "activity", "any"), key, tags, created_after, created_before (datetimes), retrying (True, or
        how many tries have failed at least: runs that try an activity again), parent (a run id) and waiting_for.

        `waiting_for`: open runs that wait for an activity or child of that name. The journals of some hundred runs are
        read for each page: it may hold fewer than `limit`, and there is more while it has a cursor.
        """
        name = check_filter("waiting_for", where.pop("waiting_for", None))
        return await self._in_use.runs.list(run_filter(**where), cursor, check_page_size(limit), name)

    async def count(self, /, **where: Any) -> int:
        """How many runs match. Filters as in `list`, but for waiting_for."""
        return await self._in_use.access.store.count_runs(run_filter(**where))

    async def count_states(self, /, **where: Any) -> dict[RunState, int]:
        """The same by state; states without any run are left out."""
        return await self._in_use.access.store.count_states(run_filter(**where))

    def select(self, /, *, everything: bool = False, **where: Any) -> Selection:
        """Runs to do something to, all of them together: `await client.select(queue="mail").pause("down")`.

        Filters as in `list`; only workflows unless `kind`, or `job`, says otherwise. Raises MatchesEverything when
        nothing restricts them, unless `everything` is true.
        """
        if not everything and not any(value not in (None, "", (), [], {}) for value in where.values()):
            raise MatchesEverything("no filter is given: use everything=True to select every run of the namespace")
        return Selection(self._backend.bulk, run_filter(**where))

    async def audit(
        self,
        *,
        target: str | None = None,
        actor: str | None = None,
        verb: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> AuditPage:
        """What operators did, newest first. `target`: the id of a run, or the name of a queue or schedule."""
        where = ActFilter(
            target=check_filter("target", target),
            actor=check_filter("actor", actor),
            verb=check_filter("verb", verb),
            since=_micros("since", since),
            until=_micros("until", until),
        )
        return await self._backend.bulk.audit(where, cursor, check_page_size(limit))

    async def verify_audit(self, expected: str | None = None) -> AuditReport:
        """Whether the audit log is unchanged. `expected`: the `head` of an earlier report, kept elsewhere."""
        return await self._backend.bulk.verify_audit(expected)

    async def queues(self) -> _Queues:
        """Every queue that was set up or paused, or that has open runs or workers."""
        return await self._queues.list()

    async def pause_queue(self, name: str, reason: str = "") -> None:
        """Pause the queue: workers begin nothing more from it. Running work goes on."""
        await self._queues.pause(check_name(name, "queue"), True, check_reason(reason))

    async def resume_queue(self, name: str) -> None:
        """Resume a paused queue."""
        await self._queues.pause(check_name(name, "queue"), False)

    async def limit_queue(self, name: str, /, **limits: Any) -> None:
        """Set limits for all workers of a queue together. Limits that are left out stay, None removes one.

        `concurrency`: runs at once; `key_concurrency`: the same for each key. `rate`: how many may begin per period,
        such as "100/min" or Rate(100, 60); `key_rate`: the same for each key. Runs without a key count for no key.
        """
        await self._queues.limit(check_name(name, "queue"), limit_changes(limits))

    async def complete(self, token: str, value: Any = None) -> None:
        """Give an activity its result from outside. `token` is its `activity_info().token`; it serves once.

        Raises InvalidToken, UnknownRun, RunClosed, LostAttempt (that attempt is over) and TokenUsed. A value that does
        not fit the activity's annotation is found by the worker, and is the activity's failure.
        """
        data = encode(value, "the result of an activity", self._max_payload)
        await self._backend.completions.answer(parse_token(token), Raw(data))

    async def fail(self, token: str, error: BaseException | str) -> None:
        """Have an activity's attempt fail from outside; it is tried again as its policy says. Raises as `complete`,
        and TooLarge for words that are too long; an exception that says too much is cut."""
        if isinstance(error, str):
            check_length(error, "the error of an activity", LONGEST_WORDS)
        failure = to_failure(ActivityFailed(error) if isinstance(error, str) else error)
        await self._backend.completions.answer(parse_token(token), failure)

    async def heartbeat(self, token: str, details: Any = None) -> None:
        """A heartbeat of an activity that is to be completed from outside. Raises as `complete`."""
        data = encode(details, "the details of a heartbeat", self._max_payload)
        await self._backend.completions.beat(parse_token(token), Raw(data))

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
        middleware: Sequence[Middleware] = (),
        webhooks: bool | SafeHttpClient = False,
        subscriptions: Sequence[Subscription] = (),
        flows: bool | WorkerFlows = False,
        **settings: Any,
    ) -> AbstractAsyncContextManager[Any]:
        """A worker for these workflows, activities and jobs (functions, or instances with decorated methods).

        `queues` are names, or `Queue(...)` with limits that the worker sets when it starts. It then also creates
        missing `schedules` and replaces changed ones, and sets the rules of `retention`. It calls `on_dead_letter` with
        each dead letter that it makes, after that is durable; a sync function in a thread. `middleware` goes around
        what it executes, inside the middleware of `connect`. `webhooks`: it delivers webhooks, with a client of your
        own if you give one. `subscriptions`, made with `batuta.bus.subscribe`, get the messages of topics. `flows`:
        it runs flows, also those that are published later; give a `batuta.flows.workflow.Flows` for its options. The
        worker runs while its context is open. `settings` are those of `batuta.settings.Settings`.
        """
        if flows:
            own: dict[str, Any] = {"workflows": workflows, "activities": activities, "jobs": jobs, "queues": queues}
            own |= {"schedules": schedules, "retention": retention, "webhooks": webhooks, "middleware": middleware}
            own |= {"on_dead_letter": on_dead_letter, "subscriptions": subscriptions}
            return self.flows.worker(None if flows is True else flows, **own, **settings)
        deliveries = delivery_jobs(subscriptions, self)
        relay = None if self._broker is None else Relay(self._backend, self._broker)
        relaying = [] if relay is None else relay.jobs()
        settings = {"bus": self._settings.bus} | settings
        worker: Any = self._backend.worker(
            workflows,
            [*activities, *jobs, *self._deliverers(webhooks), *deliveries.values(), *relaying],
            queues if relay is None else [*queues, relay.queue],
            schedules,
            on_dead_letter=on_dead_letter,
            retention=retention,
            middleware=middleware,
            **settings,
        )
        if not subscriptions and relay is None:
            found: AbstractAsyncContextManager[Any] = worker
            return found
        return DeliveringWorker(worker, self._backend, subscriptions, deliveries, relay, self._broker)

    async def keep_for(self, subscription: Subscription) -> None:
        """Keep what is published from now on for a subscription that a worker will have. Raises InvalidInput when
        another subscription has its name."""
        via = "" if self._broker is None else self._broker.name
        await put_subscription(self._backend, subscription, via)

    def _deliverers(self, webhooks: bool | SafeHttpClient) -> Sequence[object]:
        if webhooks is False:
            return ()
        from batuta.webhooks.manager import delivering

        return delivering(self.webhooks, webhooks)


@contextmanager
def ended(borrowed: Borrowed) -> Iterator[None]:
    """Commit at the end of the block, or roll back when it raises."""
    try:
        yield
    except BaseException:
        borrowed.end(commit=False)
        raise
    borrowed.end(commit=True)


def _check_definition(workflow: object) -> None:
    if workflow is not None and not isinstance(workflow, Workflow | Job):
        raise InvalidInput(f"{workflow!r} is not a workflow or job: give its definition, or leave it out")


_FILTERS = (
    "state",
    "states",
    "workflow",
    "job",
    "queue",
    "id_prefix",
    "kind",
    "key",
    "tags",
    "created_after",
    "created_before",
    "retrying",
    "parent",
)


_MOST_TRIES = 2**31 - 1


def run_filter(**where: Any) -> RunFilter:
    """A run filter from the arguments of `list`. Raises InvalidInput for an unknown filter or an invalid value."""
    if "waiting_for" in where:
        raise InvalidInput("waiting_for= is a filter of list only: use the ids of its pages")
    if unknown := where.keys() - set(_FILTERS):
        raise InvalidInput(f"{', '.join(sorted(unknown))} is not a filter of runs: there are {', '.join(_FILTERS)}")
    what = "job" if where.get("job") is not None else "workflow"
    named = where.get(what)
    if what == "job" and where.get("workflow") is not None:
        raise InvalidInput("workflow= and job= cannot be combined: a run belongs to one of them")
    return RunFilter(
        states=_states(where.get("states", ()), where.get("state")),
        name=named.name if isinstance(named, Workflow | Job) else check_filter(what, named),
        queue=check_filter("queue", where.get("queue")),
        kind=_kind(where.get("kind", RunKind.JOB if what == "job" else RunKind.WORKFLOW)),
        flow_key=check_filter("key", where.get("key")),
        id_prefix=check_filter("id_prefix", where.get("id_prefix")),
        tags=tuple(sorted(check_tags(where.get("tags") or {}).items())),
        created_after=_micros("created_after", where.get("created_after")),
        created_before=_micros("created_before", where.get("created_before")),
        retrying=_retrying(where.get("retrying")),
        parent=None if (parent := where.get("parent")) is None else check_run_id(parent),
    )


def _retrying(tries: object) -> int:
    if tries is None or isinstance(tries, bool):
        return int(bool(tries))
    if not isinstance(tries, int) or not 0 <= tries <= _MOST_TRIES:
        raise InvalidInput(f"retrying={tries!r} must be True, or the least number of failed attempts")
    return tries


def _states(several: Iterable[str], one: str | None) -> tuple[RunState, ...]:
    try:
        wanted = [*([several] if isinstance(several, str) else several), *([one] if one is not None else [])]
        return tuple(RunState(each) for each in wanted)
    except (ValueError, TypeError) as error:
        raise InvalidInput(f"{error}: the states are {', '.join(RunState)}") from None


def _micros(name: str, moment: object) -> int | None:
    if moment is None:
        return None
    if not isinstance(moment, datetime):
        raise InvalidInput(f"{name}={moment!r} must be a datetime, such as datetime(2020, 1, 1, tzinfo=UTC)")
    try:
        return round(moment.timestamp() * SECOND)
    except (OverflowError, ValueError, OSError):
        raise InvalidInput(f"{name}={moment!r} is too far away for this machine's zone: give one with a zone") from None


def _kind(kind: Any) -> RunKind | None:
    try:
        return None if kind == "any" else RunKind(kind)
    except ValueError:
        raise InvalidInput(f"kind={kind!r} must be one of {', '.join(RunKind)}, any") from None
