"""The client: starts runs, finds them, lists them, and makes workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, contextmanager
from datetime import datetime
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, cast, overload

from msgspec import Raw

from batuta.authoring.backend import Backend, Entering, RunPage, RunRef, StartRequest
from batuta.authoring.deadletters import DeadLetter, Letters
from batuta.authoring.definitions import Workflow
from batuta.authoring.enqueueing import JobRequest, callback_request, job_request, job_requests
from batuta.authoring.failures import to_failure
from batuta.authoring.handle import Batch, Handle
from batuta.authoring.jobs import Job, JobCall
from batuta.authoring.letters import start_request
from batuta.authoring.middleware import Middleware
from batuta.authoring.names import check_name, check_reason
from batuta.authoring.operating import AuditPage, AuditReport, OperatingBackend, Selection
from batuta.authoring.queues import Queue, QueueInfo, limit_changes
from batuta.authoring.quotas import Quotas
from batuta.authoring.retention import Retention, Retentions
from batuta.authoring.schedules import Schedule, Schedules
from batuta.authoring.starting import check_id, check_run_id, check_tags
from batuta.authoring.tokens import parse_token
from batuta.clock import SECOND
from batuta.errors import ActivityFailed, InvalidInput, MatchesEverything, WrongTransaction
from batuta.ids import RunId
from batuta.journal.acts import ActFilter
from batuta.journal.records import RunFilter, RunKind
from batuta.journal.states import RunState
from batuta.journal.store import Borrowed
from batuta.serde import MAX_PAYLOAD, decoder_for, encode

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
_Queues = list[QueueInfo]
"""Named here: in the class `list` is a verb."""


class Batuta:
    """A connection to one namespace. Made by `connect`; an async context manager."""

    def __init__(
        self,
        backend: Backend,
        opening: Callable[[], Coroutine[Any, Any, None]],
        closing: Callable[[], Coroutine[Any, Any, None]],
        max_payload: int = MAX_PAYLOAD,
    ) -> None:
        self._backend, self._opening, self._closing = backend, opening, closing
        self._max_payload = max_payload
        self.schedules = Schedules(backend.schedules, lambda ref: self._handle(ref, None))
        """Schedules: made, changed, paused, triggered."""
        self.letters = Letters(backend.letters)
        """Dead letters: listed, grouped, reprocessed, discarded."""
        self.retention = Retentions(backend.retention)
        """How long closed runs are kept."""
        self.quotas = Quotas(backend.quotas)
        """How much may be started in this namespace."""

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
            await self._backend.close()
        finally:
            await self._closing()

    @overload
    async def start(
        self, workflow: Workflow[..., R], /, *args: Any, id: str | None = None, transaction: Any = None, **options: Any
    ) -> Handle[R]: ...
    @overload
    async def start(
        self, workflow: str, /, *args: Any, id: str | None = None, transaction: Any = None, **options: Any
    ) -> Handle[Any]: ...
    async def start(
        self, workflow: Any, /, *args: Any, id: str | None = None, transaction: Any = None, **options: Any
    ) -> Handle[Any]:
        """Start a run; it is durable when this returns. `args` are the workflow's arguments. Raises QuotaExceeded.

        `id` is the caller's own name for it, unique in the namespace; when it is taken, `if_exists` decides: "return"
        (the default) gives that run, "reject" raises AlreadyStarted, "restart" begins anew if it is closed.
        Other options: queue, priority, delay, timeout (of the run), execution_timeout (of its chain), retry (of the
        whole run, when it fails), version (the definition's), tags, memo, headers, key (what the limits per key of its
        queue count by), expires (it times out when nobody has begun it by then). Times are seconds.
        `signal=(definition or name, value)`, or with a message id as the third, sends a signal to the run of that id,
        whether it is new or not, together with the start; raises RunClosed when that run is closed.
        `transaction`: as for `enqueue`.
        """
        request = start_request(workflow, args, id, options, self._max_payload)
        if transaction is not None:
            if request.signal is not None:
                raise InvalidInput("signal= and transaction= cannot be given together: send it when the run is there")
            return await self._within(transaction, [request], None, lambda refs: self._handle(refs[0], workflow))
        ref = await self._backend.start(request)
        return self._handle(ref, workflow)

    @overload
    async def enqueue(
        self, job: Job[..., R] | JobCall[R], /, *args: Any, transaction: Any = None, **options: Any
    ) -> Handle[R]: ...
    @overload
    async def enqueue(self, job: str, /, *args: Any, transaction: Any = None, **options: Any) -> Handle[Any]: ...
    async def enqueue(self, job: Any, /, *args: Any, transaction: Any = None, **options: Any) -> Handle[Any]:
        """Have a worker execute a job; it is durable when this returns. `args` are the job's arguments. Raises
        QuotaExceeded.

        Options (times are seconds): `delay`, or `at` (a datetime with a time zone): not before then. `priority`: higher
        goes first. `queue`, `id`, `tags`, `memo`, `headers`. `unique="k"`: while a job of this name and key is waiting
        or running, or was enqueued less than `unique_for` seconds ago, that one is given back instead. `debounce=5`,
        with `unique`: wait until there was no other call with that key for 5 seconds, and do what the last one said;
        `debounce_limit`: for so long at most. `key`: what the limits per key of the queue count by, and what it is fair
        between. `expires`: it times out when nobody has begun it for so long, from when it may begin on. `retry`,
        `timeout`, `total_timeout`, `heartbeat`: in place of the job's own.
        `transaction`: a connection or session of your own, on the same database, in whose transaction it is enqueued:
        it exists if, and only if, that commits. Raises WrongTransaction, TransactionFailed, and your driver's errors.
        """
        request = job_request(job, args, options, self._max_payload)
        if transaction is not None:
            return await self._within(transaction, [request], None, lambda refs: self._handle(refs[0], job))
        ref = await self._backend.enqueue(request)
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
        return batch_of(await self._backend.enqueue_many(requests, after))

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
        return self._backend.borrow(connection)

    async def _within(
        self,
        transaction: object,
        requests: Sequence[StartRequest | JobRequest],
        after: JobRequest | None,
        made: Callable[[Sequence[RunRef]], T],
    ) -> T:
        if isinstance(transaction, Deferred):
            transaction.entering = await self._backend.enter(transaction.given, requests, after)
            transaction.made = made
            return cast(T, None)
        entering = await self._backend.enter(transaction, requests, after)
        if not entering.suits_a_loop:
            raise WrongTransaction(
                f"{type(transaction).__qualname__} blocks, and would hold up this event loop: use an async connection "
                f"or session here, or batuta.sync where there is no event loop"
            )
        return made(await entering.write())

    @overload
    async def get(self, id: str, workflow: Workflow[..., R] | Job[..., R]) -> Handle[R]: ...
    @overload
    async def get(self, id: str, workflow: None = None) -> Handle[Any]: ...
    async def get(self, id: str, workflow: Workflow[..., Any] | Job[..., Any] | None = None) -> Handle[Any]:
        """The run of that id: the last one begun under it. With `workflow` (or a job), its result is of that type, and
        queries are answered with that code."""
        ref = await self._backend.find(check_id(id))
        return self._handle(ref, workflow)

    async def get_run(self, run_id: RunId | str) -> Handle[Any]:
        """Exactly that run, by its run id: also one that another run goes on from, under the same id."""
        return self._handle(await self._backend.find_run(check_run_id(run_id)), None)

    def _handle(self, ref: RunRef, workflow: Any) -> Handle[Any]:
        if isinstance(workflow, Workflow):
            return Handle(self._backend, ref, workflow.codec.result_decoder, workflow, self._max_payload)
        job = workflow if isinstance(workflow, Job) else None
        return Handle(self._backend, ref, _result_decoder(workflow), None, self._max_payload, job)

    async def list(self, /, *, cursor: str | None = None, limit: int = 50, **where: Any) -> RunPage:
        """Runs, newest first. Filters: state or states, workflow (or job: the name), queue, id_prefix, kind ("workflow"
        unless told; "job", "activity", "any"), key, tags, created_after, created_before (datetimes)."""
        return await self._backend.list_runs(run_filter(**where), cursor, _limit(limit))

    async def count(self, /, **where: Any) -> int:
        """How many runs match. Filters as in `list`."""
        return await self._backend.count_runs(run_filter(**where))

    def select(self, /, *, everything: bool = False, **where: Any) -> Selection:
        """Runs to do something to, all of them together: `await client.select(queue="mail").pause("down")`.

        Filters as in `list`; only workflows unless `kind`, or `job`, says otherwise. Raises MatchesEverything when
        nothing restricts them, unless `everything` is true.
        """
        if not everything and not any(value not in (None, "", (), [], {}) for value in where.values()):
            raise MatchesEverything("no filter is given: say everything=True if you mean every run of the namespace")
        return Selection(self._backend.operating, run_filter(**where))

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
            target=_text("target", target),
            actor=_text("actor", actor),
            verb=_text("verb", verb),
            since=_micros("since", since),
            until=_micros("until", until),
        )
        operating: OperatingBackend = self._backend.operating
        return await operating.audit(where, cursor, _limit(limit))

    async def verify_audit(self, expected: str | None = None) -> AuditReport:
        """Whether the audit log is as it was written. `expected`: the `head` of an earlier report, kept elsewhere."""
        operating: OperatingBackend = self._backend.operating
        return await operating.verify_audit(expected)

    async def queues(self) -> _Queues:
        """Every queue that was set up or paused, or that has open runs or workers."""
        return await self._backend.queues()

    async def pause_queue(self, name: str, note: str = "") -> None:
        """Let no worker begin anything more from this queue. What is running goes on."""
        await self._backend.pause_queue(check_name(name, "queue"), True, check_reason(note))

    async def resume_queue(self, name: str) -> None:
        """Let a paused queue go on."""
        await self._backend.pause_queue(check_name(name, "queue"), False, "")

    async def limit_queue(self, name: str, /, **limits: Any) -> None:
        """Set limits that hold for all workers of a queue together; those that are left out stay, None takes one away.

        `concurrency`: runs at once; `key_concurrency`: the same for each key. `rate`: how many begin in any period,
        such as "100/min" or Rate(100, 60); `key_rate`: the same for each key. Runs without a key count for no key.
        """
        await self._backend.limit_queue(check_name(name, "queue"), limit_changes(limits))

    async def complete(self, token: str, value: Any = None) -> None:
        """Give an activity its result from outside. `token` is its `activity_info().token`; it serves once.

        Raises InvalidToken, UnknownRun, RunClosed, LostAttempt (that attempt is over) and TokenUsed. A value that does
        not fit the activity's annotation is found by the worker, and is the activity's failure.
        """
        data = encode(value, "the result of an activity", self._max_payload)
        await self._backend.answer_activity(parse_token(token), Raw(data))

    async def fail(self, token: str, error: BaseException | str) -> None:
        """Have an activity's attempt fail from outside; it is tried again as its policy says. Raises as `complete`."""
        failure = to_failure(ActivityFailed(error) if isinstance(error, str) else error)
        await self._backend.answer_activity(parse_token(token), failure)

    async def heartbeat(self, token: str, details: Any = None) -> None:
        """A heartbeat of an activity that is to be completed from outside. Raises as `complete`."""
        data = encode(details, "the details of a heartbeat", self._max_payload)
        await self._backend.beat_activity(parse_token(token), Raw(data))

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
        **settings: Any,
    ) -> AbstractAsyncContextManager[Any]:
        """A worker for these workflows, activities and jobs (functions, or instances with decorated methods).

        `queues` are names, or `Queue(...)` with limits that are set when it starts. `schedules` are made when it starts
        if they are not there, and replaced if they are others; so are the rules of `retention`. `on_dead_letter` is
        called with each dead letter that this worker makes, after that is durable; a sync function in a thread.
        `middleware` is around what it executes, inside of that of `connect`. It runs while its context is open.
        `settings` are those of `batuta.settings.Settings`.
        """
        return self._backend.worker(
            workflows,
            [*activities, *jobs],
            queues,
            schedules,
            on_dead_letter=on_dead_letter,
            retention=retention,
            middleware=middleware,
            **settings,
        )


class Deferred:
    """A caller's transaction for the blocking client: all is made ready in its event loop, and the write is left to
    `finish`, in the thread that has the connection."""

    def __init__(self, given: object) -> None:
        self.given = given
        self.entering: Entering
        self.made: Callable[[Sequence[RunRef]], Any]

    def finish(self) -> Any:
        if not self.entering.suits_a_thread:
            raise WrongTransaction(
                f"{type(self.given).__qualname__} belongs to an event loop: use a blocking connection or session with "
                f"batuta.sync, or batuta.connect in the event loop"
            )
        writing = self.entering.write()
        try:
            writing.send(None)
        except StopIteration as end:
            return self.made(end.value)
        writing.close()
        raise AssertionError("a connection that blocks never suspends")


@contextmanager
def ended(borrowed: Borrowed) -> Iterator[None]:
    """Commit at the end of the block, or roll back when it raises."""
    try:
        yield
    except BaseException:
        borrowed.end(commit=False)
        raise
    borrowed.end(commit=True)


_ANYTHING = decoder_for(Any, "a result")


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
)


def run_filter(**where: Any) -> RunFilter:
    """Which runs, in the words of `list`. Raises InvalidInput for what is no filter, or cannot be one's value."""
    if unknown := where.keys() - set(_FILTERS):
        raise InvalidInput(f"{', '.join(sorted(unknown))} is no filter of runs: there are {', '.join(_FILTERS)}")
    what = "job" if where.get("job") is not None else "workflow"
    named = where.get(what)
    if what == "job" and where.get("workflow") is not None:
        raise InvalidInput("workflow= and job= cannot be given together: a run is of one of them")
    return RunFilter(
        states=_states(where.get("states", ()), where.get("state")),
        name=named.name if isinstance(named, Workflow | Job) else _text(what, named),
        queue=_text("queue", where.get("queue")),
        kind=_kind(where.get("kind", RunKind.JOB if what == "job" else RunKind.WORKFLOW)),
        flow_key=_text("key", where.get("key")),
        id_prefix=_text("id_prefix", where.get("id_prefix")),
        tags=tuple(sorted(check_tags(where.get("tags") or {}).items())),
        created_after=_micros("created_after", where.get("created_after")),
        created_before=_micros("created_before", where.get("created_before")),
    )


def _states(several: Iterable[str], one: str | None) -> tuple[RunState, ...]:
    try:
        wanted = [*([several] if isinstance(several, str) else several), *([one] if one is not None else [])]
        return tuple(RunState(each) for each in wanted)
    except (ValueError, TypeError) as error:
        raise InvalidInput(f"{error}: the states are {', '.join(RunState)}") from None


def _limit(limit: int) -> int:
    if type(limit) is not int or not 1 <= limit <= 1000:
        raise InvalidInput(f"limit={limit!r} must be a whole number from 1 to 1000: use the cursor for more")
    return limit


def _text(name: str, value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise InvalidInput(f"{name}={value!r} must be a string")


def _micros(name: str, moment: object) -> int | None:
    if moment is None:
        return None
    if not isinstance(moment, datetime):
        raise InvalidInput(f"{name}={moment!r} must be a datetime, such as datetime(2020, 1, 1, tzinfo=UTC)")
    return round(moment.timestamp() * SECOND)


def _kind(kind: Any) -> RunKind | None:
    try:
        return None if kind == "any" else RunKind(kind)
    except ValueError:
        raise InvalidInput(f"kind={kind!r} must be one of {', '.join(RunKind)}, any") from None


def _result_decoder(workflow: Any) -> Any:
    if isinstance(workflow, JobCall):
        workflow = workflow.job
    if isinstance(workflow, Job):
        return workflow.codec.result_decoder
    return _ANYTHING
