"""The native backend: runs in a store, executed by workers of this package."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from msgspec import UNSET, Raw, json
from msgspec.structs import replace

from batuta.authoring.backend import (
    Answer,
    AttemptView,
    Code,
    Description,
    Ending,
    JournalLine,
    Letter,
    RunPage,
    RunRef,
    StartRequest,
    as_datetime,
)
from batuta.authoring.definitions import Workflow
from batuta.authoring.diffs import Diff
from batuta.authoring.enqueueing import JobRequest
from batuta.authoring.forks import Edits
from batuta.authoring.middleware import Middleware, check_middleware
from batuta.authoring.queues import Queue, QueueInfo
from batuta.authoring.retention import Retention
from batuta.authoring.schedules import Schedule
from batuta.authoring.timeline import Timeline
from batuta.authoring.tokens import AttemptRef
from batuta.clock import Clock, SystemClock
from batuta.engine.acting import Actor
from batuta.engine.alerts import Hook
from batuta.engine.around import around_of
from batuta.engine.closing import close_from_outside
from batuta.engine.committer import MustQueue
from batuta.engine.completing import Completing
from batuta.engine.completion import Completion
from batuta.engine.enqueueing import JobRuns, job_run, last_run, needs_clock
from batuta.engine.following import last_of_chain
from batuta.engine.forking import Forking
from batuta.engine.guests import Entering
from batuta.engine.headers import traced
from batuta.engine.histories import all_attempts, diff, timeline
from batuta.engine.operating import Operating
from batuta.engine.queues import change_limits, queue_info
from batuta.engine.quotas import Guard, NativeQuotas
from batuta.engine.relations import CANCEL_AGAIN
from batuta.engine.reprocessing import NativeLetters
from batuta.engine.retention import NativeRetention
from batuta.engine.session import Session
from batuta.engine.slots import Plan
from batuta.engine.starter import Starter, until_known
from batuta.engine.starts import new_run, unowned_run
from batuta.engine.takers import needs_taker, why_held, why_nobody_takes
from batuta.engine.talking import Messenger, as_message
from batuta.engine.timetable import NativeSchedules
from batuta.engine.waiters import Waiters
from batuta.engine.worker import Worker
from batuta.errors import (
    AlreadyStarted,
    DuplicateDefinition,
    InvalidSchedule,
    NotParked,
    PayloadSealed,
    RunClosed,
    StoreUnavailable,
    WorkflowBroken,
)
from batuta.failpoints import failpoint
from batuta.ids import RunId, new_message_id
from batuta.journal.acts import Act, Verb
from batuta.journal.entries import Body, Command, CommandKind, Entry, EntryKind, decode_body
from batuta.journal.failures import Failure
from batuta.journal.queues import QueueView
from batuta.journal.records import (
    PAUSES,
    Attempt,
    IfExists,
    Message,
    MessageKind,
    NewRun,
    Run,
    RunFilter,
    StartOutcome,
)
from batuta.journal.states import CLAIMABLE, CLOSED, RunState
from batuta.journal.store import Borrowed, Store
from batuta.settings import Settings

T = TypeVar("T")


class NativeBackend:
    """Implements `authoring.backend.Backend` on a store."""

    def __init__(
        self,
        store: Store,
        clock: Clock | None = None,
        actor: str | None = None,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        self.home: asyncio.AbstractEventLoop | None = None
        self._store = store
        self._middleware = check_middleware(middleware)
        """Around everything that its workers do."""
        self.actor = Actor(actor)
        self._clock = clock or SystemClock()
        self._workers: list[Worker] = []
        self._waiters = Waiters(store, self._runs_here)
        self._starter = Starter(store)
        self._completing = Completing(store)
        self._messenger = Messenger(store, self._waiters, self._code_here)
        self._forking = Forking(store, self._act, self._code_here)
        self.schedules = NativeSchedules(store, unowned_run, self.actor)
        self.operating = Operating(store, self.actor, self._forking, self.retry)
        self.letters = NativeLetters(store, self._act, self._code_here)
        self.retention = NativeRetention(store, self.actor)
        self._guard = Guard(store, self._clock.monotonic)
        self.quotas = NativeQuotas(store, self.actor, self._guard)

    # -- starting

    # None of these is a coroutine itself: what is awaited is resumed through every one that waits for it.

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
    ) -> Coroutine[Any, Any, Entering]:
        if self._guard.awake:
            return self._guard.let_in(_every(requests, after), partial(self._enter, transaction, requests, after))
        return self._enter(transaction, requests, after)

    def _start(self, request: StartRequest) -> Coroutine[Any, Any, RunRef]:
        new, body = new_run(request)
        if request.signal is not None:
            return self._start_with(request.signal, request.headers, new, body)
        session = self._session_for(new)
        return self._write(new, body) if session is None else self._start_here(session, new, body, self._write)

    async def _start_with(self, signal: Letter, headers: dict[str, str], new: NewRun, body: Body) -> RunRef:
        new.start = json.encode(body).decode()
        signal.headers = traced(headers)
        run, _ = await self._store.start(new, as_message(MessageKind.SIGNAL, signal))
        return _ref(run)

    async def _write(self, new: NewRun, body: Body) -> RunRef:
        """Let it wait in its queue."""
        new.start = json.encode(body).decode()
        return _ref(await self._starter.start(new))

    async def _enqueue(self, request: JobRequest) -> RunRef:
        new = job_run(request, await self._now_for([request]))
        session = self._session_for(new)
        if session is None:
            return await self._write_job(new)
        return await self._start_here(session, new, json.decode(new.start, type=Body), self._write_job)

    async def _write_job(self, new: NewRun, _: Body | None = None) -> RunRef:
        return _ref(await until_known(lambda: self._starter.start(new)))

    async def _enqueue_many(self, requests: Sequence[JobRequest], after: JobRequest | None) -> list[RunRef]:
        now = await self._now_for(_every(requests, after))
        runs, last = JobRuns(requests, now), None if after is None else last_run(after, len(requests), now)
        if not runs:
            return [] if last is None else [_ref(await until_known(lambda: self._starter.start(last)))]
        failpoint("enqueue.before")
        outcomes = await until_known(lambda: self._store.start_many(runs, last))
        failpoint("enqueue.after")
        return [_ref_of(place, outcome) for place, outcome in enumerate(outcomes)]

    async def _enter(
        self, transaction: object, requests: Sequence[StartRequest | JobRequest], after: JobRequest | None
    ) -> Entering:
        now = await self._now_for([one for one in _every(requests, after) if isinstance(one, JobRequest)])
        runs = [job_run(one, now) if isinstance(one, JobRequest) else unowned_run(one) for one in requests]
        last = None if after is None else last_run(after, len(runs), now)
        if last is not None and not runs:
            runs, last = [last], None
        return Entering(await self._store.enter(transaction, runs), runs, last, _ref_of)

    def borrow(self, connection: object) -> Borrowed:
        return self._store.borrow(connection)

    async def _now_for(self, requests: Sequence[JobRequest]) -> int:
        return await self._store.now() if needs_clock(requests) else 0

    async def _start_here(
        self, session: Session, new: NewRun, body: Body, write: Callable[[NewRun, Body], Coroutine[Any, Any, RunRef]]
    ) -> RunRef:
        """Have a worker of this process begin the run at once. When it cannot, `write` it into its queue."""
        owned = new if not new.expires else replace(new, expires=0)  # it begins now
        try:
            return RunRef(new.id, new.run_id, await session.start_here(owned, body), new.run_id)
        except WorkflowBroken:
            body.commands = []  # its first turn cannot be run: let it be seen parked, with the reason
        except MustQueue:
            body.commands = []
            session.avoid(new.queue)
        except AlreadyStarted:
            if new.if_exists is IfExists.RETURN:
                return await self.find(new.id)
            raise AlreadyStarted(new.id, str((await self._store.get(new.id)).state)) from None
        return await write(new, body)

    def _session_for(self, new: NewRun) -> Session | None:
        """A worker of this process that may begin the run at once."""
        if new.delay or new.debounce or new.if_exists in _NOT_OWNED:
            return None
        for worker in self._workers:
            if worker.session is not None and worker.session.takes(new.queue, new.code):
                return worker.session
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
            around=around_of([*self._middleware, *check_middleware(middleware)]),
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

    # -- results

    async def find(self, id: str) -> RunRef:
        run = await self._store.get(id)
        return RunRef(run.id, run.run_id, chain_id=run.chain_id)

    async def find_run(self, run_id: RunId) -> RunRef:
        return _ref(await self._store.get_run(run_id))

    async def ending(self, ref: RunRef) -> Ending:
        local: Completion | None = ref.local
        if local is not None:
            if local.unknown:
                waiter = local.known(self.home or asyncio.get_running_loop())
                try:
                    await waiter
                except BaseException:
                    local.give_up(waiter)
                    raise
            end = local.end
            if end is not None and end[0] is _COMPLETED and (outcome := end[1]) is not None:
                return Ending(ref.id, _COMPLETED, outcome.value if outcome.value is not UNSET else None)
        while True:
            ending = await self._ending_of(ref)
            if ending.state is RunState.COMPLETED:
                return ending
            last = await last_of_chain(self._store, ref.run_id)
            if last.run_id == ref.run_id:
                return ending
            ref = RunRef(ref.id, last.run_id)

    async def _ending_of(self, ref: RunRef) -> Ending:
        """Of this one run, which may continue as another."""
        local: Completion | None = ref.local
        known = local.end if local is not None else None
        if known is None or known[1] is None:
            known = await self._waiters.closed(ref.run_id)
        if known is not None and known[1] is not None:
            return _ending(ref.id, known[0], known[1], "")
        run, last = await self._store.outcome(ref.run_id)
        return _ending(run.id, run.state, _closing_command(last), run.reason)

    def _runs_here(self, run_id: RunId) -> bool:
        return any(worker.session is not None and run_id in worker.session.runs for worker in self._workers)

    def _code_here(self, code: str) -> Workflow[..., Any] | None:
        return next((worker.code[code] for worker in self._workers if code in worker.code), None)

    # -- messages

    async def signal(self, ref: RunRef, letter: Letter) -> None:
        await self._messenger.signal(ref, letter)

    async def update(self, ref: RunRef, letter: Letter) -> Answer:
        return await self._messenger.update(ref, letter)

    async def query(self, ref: RunRef, name: str, arguments: bytes, workflow: Workflow[..., Any] | None) -> Raw:
        return await self._messenger.query(ref, name, arguments, workflow)

    async def published(self, ref: RunRef) -> dict[str, Raw]:
        return await self._messenger.published(ref)

    # -- ending runs from outside

    async def cancel(self, ref: RunRef, reason: str, *, again: bool) -> bool:
        # One name for all: asking twice, or repeating a call whose answer was lost, must not cancel the clean-up.
        message = Message(message_id=f"cancel:{ref.run_id}", kind=MessageKind.CANCEL, name=reason)
        if again:
            message.message_id, message.body = f"cancel:{new_message_id()}", CANCEL_AGAIN
        act = self.actor.act(Verb.CANCEL, reason, detail={"again": True} if again else None)
        if await self._store.send(ref.run_id, message, act):
            await self._store.end_unbegun([ref.run_id], reason)  # nothing of it need run, nor its queue go on
            return True
        run = await last_of_chain(self._store, ref.run_id)
        if run.state in CLOSED:
            raise RunClosed(run.id, str(run.state))
        if run.run_id == ref.run_id:
            await self._store.end_unbegun([run.run_id], reason)  # whoever asked before may not have come so far
            return False
        message.message_id = f"cancel:{run.run_id}"  # that one was asked, and continued as this one
        return await self._store.send(run.run_id, message, act)

    async def terminate(self, ref: RunRef, reason: str) -> None:
        for _ in range(100):
            current = await last_of_chain(self._store, ref.run_id)
            run, last = await self._store.outcome(current.run_id)
            if run.state is RunState.CONTINUED:
                continue
            if run.state in CLOSED:
                raise RunClosed(run.id, str(run.state))
            act = self.actor.act(Verb.TERMINATE, reason)
            if await close_from_outside(self._store, run, last, EntryKind.TERMINATED, reason, act):
                return
        raise StoreUnavailable(f"run {ref.id!r} moved on a hundred times while it was to be terminated: try again")

    async def pause(self, ref: RunRef, reason: str) -> bool:
        return await self.operating.pause(ref, reason)

    async def resume(self, ref: RunRef, reason: str) -> bool:
        return await self.operating.resume(ref, reason)

    async def delete(self, ref: RunRef, reason: str) -> int:
        return await self.operating.delete(ref, reason)

    async def retry(self, ref: RunRef, reason: str = "", detail: dict[str, Any] | None = None) -> RunRef:
        """`detail`: more for the audit log."""
        run = await last_of_chain(self._store, ref.run_id)
        if run.state in CLOSED:
            return _ref(await self._forking.retry(run, reason, detail))
        if not await self._store.unpark(run.run_id, self._act(Verb.RETRY, reason, detail)):
            raise NotParked(run.id, str((await self._store.get_run(run.run_id)).state))
        return _ref(run)

    async def reset(self, ref: RunRef, to: int, edits: Edits, code: Code | None, reason: str) -> RunRef:
        return _ref(await self._forking.reset(ref.run_id, to, edits, code, reason))

    async def fork(self, ref: RunRef, id: str, at: int | None, edits: Edits, code: Code | None, reason: str) -> RunRef:
        return _ref(await self._forking.fork(ref, id, at, edits, code, reason))

    def _act(self, verb: Verb, reason: str = "", detail: dict[str, Any] | None = None) -> Act:
        return self.actor.act(verb, reason, detail=detail)

    # -- activities completed from outside

    async def answer_activity(self, ref: AttemptRef, answer: Raw | Failure) -> None:
        body = Body(error=answer) if isinstance(answer, Failure) else Body(value=answer)
        await self._completing.answer(ref, body)

    async def beat_activity(self, ref: AttemptRef, details: Raw) -> None:
        await self._completing.beat(ref, Body(value=details))

    # -- reading

    async def describe(self, ref: RunRef) -> Description:
        run = await last_of_chain(self._store, ref.run_id)
        attempts = await self._store.attempts(run.run_id)
        described = _description(run, attempts)
        described.reason = await self._reason(run)
        return described

    async def _reason(self, run: Run) -> str:
        """Its own, and why nobody takes it."""
        if not needs_taker(run):
            return run.reason
        why = why_nobody_takes(run, await self._store.workers()) or await self._why_held(run)
        return "; ".join(filter(None, (run.reason, why)))

    async def _why_held(self, run: Run) -> str:
        if run.state not in CLAIMABLE or run.wake_at is None or run.wake_at > await self._store.now():
            return ""
        return next((why_held(run, view) for view in await self._store.queues() if view.name == run.queue), "")

    async def attempts(self, ref: RunRef) -> list[AttemptView]:
        run = await last_of_chain(self._store, ref.run_id)
        try:
            return await all_attempts(self._store, run)
        except PayloadSealed:
            return _views(await self._store.attempts(run.run_id))

    async def timeline(self, ref: RunRef) -> Timeline:
        run = await self._store.get_run(ref.run_id)
        found = await timeline(self._store, run)
        found.reason = await self._reason(run)
        return found

    async def diff(self, left: RunRef | None, right: RunRef) -> Diff:
        return await diff(self._store, None if left is None else left.run_id, right.run_id)

    # -- queues

    async def queues(self) -> list[QueueInfo]:
        return [queue_info(view) for view in await self._store.queues()]

    async def pause_queue(self, name: str, paused: bool, note: str) -> None:
        verb = Verb.PAUSE_QUEUE if paused else Verb.RESUME_QUEUE
        before = next((view for view in await self._store.queues() if view.name == name), QueueView(name=name))
        was, is_now = {"paused": before.paused, "note": before.note}, {"paused": paused, "note": note}
        if was != is_now:
            await self._store.pause_queue(name, paused, note, self.actor.act(verb, note, before=was, after=is_now))

    async def limit_queue(self, name: str, changes: dict[str, Any]) -> None:
        await change_limits(self._store, name, changes, self.actor)

    async def journal(self, ref: RunRef) -> list[JournalLine]:
        lines: list[JournalLine] = []
        while page := await self._store.journal(ref.run_id, lines[-1].ord if lines else -1):
            lines.extend(_line(entry) for entry in page)
        if not lines:
            await self._store.get_run(ref.run_id)  # has it none, or is it not there?
        return lines

    async def list_runs(self, where: RunFilter, cursor: str | None, limit: int) -> RunPage:
        page = await self._store.list_runs(where, cursor, limit)
        return RunPage([_description(run, []) for run in page.runs], page.cursor)

    async def count_runs(self, where: RunFilter) -> int:
        return await self._store.count_runs(where)


_NOT_OWNED = (IfExists.RESTART, IfExists.RENEW)
_COMPLETED, _COMPLETE = RunState.COMPLETED, CommandKind.COMPLETE


def _every(requests: Sequence[T], after: T | None) -> Sequence[T]:
    return requests if after is None else [*requests, after]


def _ref(run: Run) -> RunRef:
    return RunRef(run.id, run.run_id, chain_id=run.chain_id)


def _ref_of(place: int, outcome: StartOutcome) -> RunRef:
    """Raises what became of one of a batch, if that is an error."""
    if not isinstance(outcome, Exception):
        return _ref(outcome[0])
    outcome.add_note(f"this is of call {place} of the batch; the others may have been enqueued")
    raise outcome


def _closing_command(last: Entry | None) -> Command | None:
    if last is None:
        return None
    commands = decode_body(last).commands
    return commands[-1] if commands else None


def _ending(id: str, state: RunState, outcome: Command | None, reason: str) -> Ending:
    ending = Ending(id, state, reason=reason)
    if outcome is not None and outcome.kind is _COMPLETE:
        ending.value = outcome.value if outcome.value is not UNSET else None
    elif outcome is not None and outcome.kind is CommandKind.FAIL:
        ending.error = outcome.error if outcome.error is not UNSET else None
    return ending


def _description(run: Run, attempts: Sequence[Attempt]) -> Description:
    return Description(
        id=run.id,
        run_id=run.run_id,
        workflow=run.name,
        kind=run.kind,
        state=run.state,
        reason=run.reason,
        queue=run.queue,
        priority=run.priority,
        entries=run.head + 1,
        worker=run.owner,
        created_at=as_datetime(run.created_at),
        closed_at=as_datetime(run.closed_at),
        wake_at=as_datetime(run.wake_at),
        deadline=as_datetime(run.deadline),
        deaths=run.deaths,
        key=run.flow_key,
        expires_at=as_datetime(run.expires_at),
        paused_at=as_datetime(run.paused_at),
        version=run.version,
        tags=json.decode(run.tags),
        memo=json.decode(run.memo),
        forked_from=run.forked_from,
        forked_at=run.forked_at if run.forked_from is not None else None,
        attempts=_views(attempts),
    )


def _views(attempts: Sequence[Attempt]) -> list[AttemptView]:
    return [
        AttemptView(
            seq=attempt.seq,
            number=attempt.number,
            started_at=as_datetime(attempt.started_at),
            ended_at=as_datetime(attempt.ended_at),
            next_at=as_datetime(attempt.next_at),
            error=attempt.error,
            details=attempt.details,
            outside=attempt.outside and attempt.ended_at is None,
        )
        for attempt in attempts
        if attempt.number and attempt.seq != PAUSES  # number 0: what the last heartbeat of a run before has said
    ]


def _line(entry: Entry) -> JournalLine:
    return JournalLine(ord=entry.ord, kind=entry.kind, at=as_datetime(entry.at), body=decode_body(entry))
