"""The native backend: runs in a store, executed by workers of this package."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from msgspec import UNSET, json
from msgspec.structs import replace

from batuta.authoring.backend import (
    ClientMessage,
    RunRef,
    StartRequest,
)
from batuta.authoring.client.enqueue import JobRequest
from batuta.authoring.client.schedules import Schedule
from batuta.authoring.definitions import Workflow
from batuta.authoring.middleware import Middleware, check_middleware
from batuta.authoring.queues import Queue
from batuta.clock import Clock, SystemClock
from batuta.engine.backend.access.bus import NativeBus
from batuta.engine.backend.access.flows import NativeFlows
from batuta.engine.backend.access.store import NativeAccess
from batuta.engine.backend.actor import Actor
from batuta.engine.backend.batching import Starter, start_all, until_known
from batuta.engine.backend.bulk_operations import BulkOperations
from batuta.engine.backend.caller_transaction import ReadyWrite
from batuta.engine.backend.dead_letters import NativeDeadLetters
from batuta.engine.backend.external_completion import ExternalCompletions
from batuta.engine.backend.follow_chain import find_current
from batuta.engine.backend.id_conflicts import StartOf, given_run, start_in
from batuta.engine.backend.messaging import Messenger, as_message
from batuta.engine.backend.quotas import Guard
from batuta.engine.backend.runs import NativeRuns, ref_of
from batuta.engine.backend.schedule_api import NativeSchedules
from batuta.engine.backend.schedule_rules import Plan
from batuta.engine.backend.starts import JobRuns, job_run, last_run, new_run, unowned_run
from batuta.engine.forks.fork import ForkOperations
from batuta.engine.machine.headers import traced
from batuta.engine.worker.committer import MustQueue
from batuta.engine.worker.dead_letter_alerts import Hook
from batuta.engine.worker.middleware import listens, middleware_stack
from batuta.engine.worker.outage import Outage
from batuta.engine.worker.outside_closes import OutsideCloses
from batuta.engine.worker.pruner import prune_by_hand
from batuta.engine.worker.session import Session
from batuta.engine.worker.waiters import Waiters
from batuta.engine.worker.worker import Worker
from batuta.errors import (
    AlreadyStarted,
    BatutaError,
    DuplicateDefinition,
    InvalidSchedule,
    WorkflowBroken,
)
from batuta.failpoints import failpoint
from batuta.ids import RunId
from batuta.journal.entries import Body
from batuta.journal.records import (
    IfExists,
    Message,
    MessageKind,
    NewRun,
    Run,
    StartOutcome,
)
from batuta.journal.retention import Retention
from batuta.journal.store import Store
from batuta.settings import Settings

T = TypeVar("T")


class NativeBackend:
    """Implements `authoring.services.Backend` on a store."""

    def __init__(
        self,
        store: Store,
        clock: Clock | None = None,
        actor: str | Actor | None = None,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        self.home: asyncio.AbstractEventLoop | None = None
        self._store = store
        self._middleware = check_middleware(middleware)
        """Around everything that its workers do."""
        self.actor = actor if isinstance(actor, Actor) else Actor(actor)
        self._clock = clock or SystemClock()
        self._workers: list[Worker] = []
        self._waiters = Waiters(store, self._runs_here, Outage(self._clock.monotonic))
        self._starter = Starter(store)
        self._start_of = start_in(store)
        closes = OutsideCloses(store, [one for one in self._middleware if listens(one)])
        forking = ForkOperations(store, self.actor, self._code_here, closes)
        self.runs = NativeRuns(store, self.actor, self._waiters, forking, lambda: self.home, closes)
        self.messages = Messenger(store, self._waiters, self._code_here)
        self.completions = ExternalCompletions(store)
        self.schedules = NativeSchedules(store, self.actor)
        self.bulk = BulkOperations(store, self.actor, forking, self.runs.retry, closes)
        self.dead_letters = NativeDeadLetters(store, self.actor, self._code_here)
        self._guard = Guard(store, self._clock.monotonic)
        self.learn_quotas = self._guard.learn
        self.access = NativeAccess(store, self.actor, self._clock)
        self.bus = NativeBus(store, self.actor, self._clock)
        self.flows = NativeFlows(store, self.actor, self._clock, self._guard, self.schedules)

    # -- starting

    # None of these is a coroutine itself: an await is resumed through every coroutine that waits for it.

    def start(self, request: StartRequest) -> Coroutine[Any, Any, RunRef]:
        if self._guard.awake:
            return self._guard.let_in([request], partial(self._start, request))
        return self._start(request)

    def enqueue(self, request: JobRequest) -> Coroutine[Any, Any, RunRef]:
        if self._guard.awake:
            return self._guard.let_in([request], partial(self._enqueue, request))
        return self._enqueue(request)

    def enqueue_many(
        self, requests: Sequence[JobRequest], after: JobRequest | None
    ) -> Coroutine[Any, Any, list[RunRef]]:
        if self._guard.awake:
            return self._guard.let_in(_every(requests, after), partial(self._enqueue_many, requests, after))
        return self._enqueue_many(requests, after)

    def enter(
        self, transaction: object, requests: Sequence[StartRequest | JobRequest], after: JobRequest | None
    ) -> Coroutine[Any, Any, ReadyWrite]:
        if self._guard.awake:
            return self._guard.let_in(_every(requests, after), partial(self._enter, transaction, requests, after))
        return self._enter(transaction, requests, after)

    def _start(self, request: StartRequest) -> Coroutine[Any, Any, RunRef]:
        new, body = new_run(request)
        if request.signal is not None:
            return self._start_with(request.signal, request.headers, new, body)
        session = self._session_for(new)
        return self._write(new, body) if session is None else self._start_here(session, new, body, self._write)

    async def _start_with(self, signal: ClientMessage, headers: dict[str, str], new: NewRun, body: Body) -> RunRef:
        new.start = json.encode(body).decode()
        signal.headers = traced(headers)
        message = as_message(MessageKind.SIGNAL, signal)
        if new.if_exists is IfExists.SAME:
            return await self._start_same_with(message, new)
        run, is_new = await self._store.start(new, message)
        return ref_of(run, is_new)

    async def _start_same_with(self, message: Message, new: NewRun) -> RunRef:
        """The run of the id is compared first, and then sent the message by its run id: no other can get it."""
        rejecting = replace(new, if_exists=IfExists.REJECT)
        while True:
            try:
                run, is_new = await self._store.start(rejecting, message)
                return ref_of(run, is_new)
            except AlreadyStarted:
                pass
            current = await find_current(self._store, new.id)
            if current is not None:  # else it was deleted just now
                ref = await given_run(new, current, None, self._start_of)
                await self._store.send(current.run_id, message)
                return ref

    async def _write(self, new: NewRun, body: Body) -> RunRef:
        """Let it wait in its queue."""
        new.start = json.encode(body).decode()
        return await self._started(new, await self._starter.add(new))

    async def _enqueue(self, request: JobRequest) -> RunRef:
        new = job_run(request, await self._now_for([request]))
        session = self._session_for(new)
        if session is None:
            return await self._write_job(new)
        return await self._start_here(session, new, json.decode(new.start, type=Body), self._write_job)

    async def _write_job(self, new: NewRun, _: Body | None = None) -> RunRef:
        return await self._started(new, await until_known(lambda: self._starter.add(new)))

    async def _started(self, new: NewRun, outcome: tuple[Run, bool], start_of: StartOf | None = None) -> RunRef:
        run, is_new = outcome
        if is_new or new.if_exists is not IfExists.SAME:
            return ref_of(run, is_new)
        return await given_run(new, run, None, start_of or self._start_of)

    async def _enqueue_many(self, requests: Sequence[JobRequest], after: JobRequest | None) -> list[RunRef]:
        now = await self._now_for(_every(requests, after))
        runs, last = JobRuns(requests, now), None if after is None else last_run(after, len(requests), now)
        if not runs:
            return [] if last is None else [await self._write_job(last)]
        failpoint("enqueue.before")
        outcomes = await until_known(lambda: start_all(self._store, runs, last))
        failpoint("enqueue.after")
        return await self._refs_of(_every(runs, last), outcomes)

    async def _refs_of(
        self, runs: Sequence[NewRun], outcomes: Sequence[StartOutcome], start_of: StartOf | None = None
    ) -> list[RunRef]:
        """The runs of a batch. Raises what became of the first that has none."""
        refs: list[RunRef] = []
        for place, (new, outcome) in enumerate(zip(runs, outcomes, strict=True)):
            try:
                if isinstance(outcome, Exception):
                    raise outcome
                refs.append(await self._started(new, outcome, start_of))
            except BatutaError as error:
                error.add_note(f"this error is about call {place} of the batch; the others may have been enqueued")
                raise
        return refs

    async def _enter(
        self, transaction: object, requests: Sequence[StartRequest | JobRequest], after: JobRequest | None
    ) -> ReadyWrite:
        now = await self._now_for(_every(requests, after))
        runs = [unowned_run(one, now) for one in requests]
        last = None if after is None else last_run(after, len(runs), now)
        if last is not None and not runs:
            runs, last = [last], None
        messages = [_start_signal(one) if isinstance(one, StartRequest) else None for one in requests]
        caller = await self._store.enter(transaction, runs)

        async def write() -> list[RunRef]:
            outcomes = await caller.start_many(runs, last) if runs else []
            refs = await self._refs_of(_every(runs, last), outcomes, caller.start_of)
            for ref, message in zip(refs, messages, strict=False):
                if message is not None:
                    await caller.send(ref.run_id, ref.id, message)
            return refs

        return ReadyWrite(caller, write)

    async def prune(self, *, dry_run: bool) -> int:
        return await prune_by_hand(self._store, self.actor, dry_run=dry_run)

    async def _now_for(self, requests: Sequence[StartRequest | JobRequest]) -> int:
        """The store's time, if some of them are to begin at a time."""
        timed = any(isinstance(one, JobRequest) and one.at is not None for one in requests)
        return await self._store.now() if timed else 0

    async def _start_here(
        self, session: Session, new: NewRun, body: Body, write: Callable[[NewRun, Body], Coroutine[Any, Any, RunRef]]
    ) -> RunRef:
        """Have a worker of this process begin the run at once. When it cannot, `write` it into its queue."""
        owned = new if not new.expires else replace(new, expires=0)  # it begins now
        try:
            return RunRef(new.id, new.run_id, await session.start_here(owned, body), new.run_id, True)
        except WorkflowBroken:
            body.commands = []  # its first turn cannot be run: let it be seen parked, with the reason
        except MustQueue:
            body.commands = []
            session.avoid(new.queue)
        except AlreadyStarted:
            run = await self._store.get(new.id)
            arguments = body.value if body.value is not UNSET else None
            return await given_run(new, run, arguments, self._start_of)
        return await write(new, body)

    def _session_for(self, new: NewRun) -> Session | None:
        """A worker of this process that may begin the run at once."""
        if new.delay or new.debounce or (new.if_exists is not _RETURN and new.if_exists in _NOT_OWNED):
            return None
        for worker in self._workers:
            session = worker.session
            if session is not None and session.takes(new.queue, new.code):
                return session
        return None

    def worker(
        self,
        workflows: Sequence[Workflow[..., Any]],
        activities: Sequence[object],
        queues: Sequence[str | Queue],
        schedules: Sequence[Schedule] = (),
        on_dead_letter: Hook | None = None,
        retention: Sequence[Retention] = (),
        middleware: Sequence[Middleware] = (),
        **settings: Any,
    ) -> Worker:
        chosen = Settings.from_env(**settings)
        return Worker(
            self._store,
            workflows,
            activities,
            queues,
            chosen,
            self._clock,
            self._workers,
            self._waiters,
            self._plans(schedules),
            on_dead_letter=on_dead_letter,
            retention=retention,
            middleware=middleware_stack([*self._middleware, *check_middleware(middleware)]),
        )

    def _plans(self, schedules: Sequence[Schedule]) -> dict[str, Plan]:
        found: dict[str, Plan] = {}
        for schedule in schedules:
            if not isinstance(schedule, Schedule):
                raise InvalidSchedule(f"{schedule!r} is not a Schedule(id, when, workflow, ...)")
            if schedule.id in found:
                raise DuplicateDefinition(f"two schedules are named {schedule.id!r}: give one another id")
            found[schedule.id] = self.schedules.plan(schedule)
        return found

    async def open(self) -> None:
        await self._guard.open()

    async def close(self) -> None:
        self._waiters.close()
        await self._guard.close()

    def _runs_here(self, run_id: RunId) -> bool:
        return any(worker.session is not None and run_id.int in worker.session.runs for worker in self._workers)

    def _code_here(self, code: str) -> Workflow[..., Any] | None:
        return next((worker.code[code] for worker in self._workers if code in worker.code), None)


_RETURN, _NOT_OWNED = IfExists.RETURN, (IfExists.RESTART, IfExists.RENEW)


def _every(requests: Sequence[T], after: T | None) -> Sequence[T]:
    return requests if after is None else [*requests, after]


def _start_signal(request: StartRequest) -> Message | None:
    if request.signal is None:
        return None
    request.signal.headers = traced(request.headers)
    return as_message(MessageKind.SIGNAL, request.signal)
