"""Calls activities: attempts, timeouts, retries, threads. What it is told to start is durable already."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, cast

from msgspec import UNSET, Raw, UnsetType, json

from batuta.authoring.activity.attempt import CompleteLater
from batuta.authoring.activity.transactional import Transaction
from batuta.authoring.definitions import Activity, ExecutionMode
from batuta.authoring.failures.conversion import answerable, to_failure
from batuta.clock import SECOND
from batuta.durations import human_duration
from batuta.engine.activities.call import (
    CANCELLED,
    OVERDUE,
    SHORT_WAIT,
    SOON,
    STOPPED,
    Call,
    CallingRun,
    GatesLapsed,
    fatal,
    last_beats,
)
from batuta.engine.activities.concurrency_slots import ConcurrencySlots
from batuta.engine.activities.deadlines import Deadlines
from batuta.engine.activities.external_completion import ExternalCompletion
from batuta.engine.activities.gates import Gates
from batuta.engine.activities.heartbeats import Heartbeats
from batuta.engine.activities.processes import Processes, Raised
from batuta.engine.activities.publisher import Publisher
from batuta.engine.activities.runner import Runner
from batuta.engine.activities.threads import DaemonExecutor, in_thread
from batuta.engine.machine.async_generators import TurnHooks
from batuta.engine.machine.core import PendingActivity
from batuta.engine.worker.database_clock import DatabaseClock
from batuta.engine.worker.lease import Lease
from batuta.errors import Interrupted, InvalidInput, LostAttempt, UnknownActivity, told
from batuta.failpoints import failpoint
from batuta.journal.entries import Body, EntryKind
from batuta.journal.failures import Failure
from batuta.journal.records import Attempt
from batuta.serde import encode
from batuta.settings import Settings

log = logging.getLogger("batuta.engine")

_SLICE = 128
_DONE, _FAILED = EntryKind.ACTIVITY_DONE, EntryKind.ACTIVITY_FAILED
_LOOP = ExecutionMode.LOOP  # members of an enum are looked up slowly


Within = Callable[
    [Call, tuple[Any, ...], dict[str, Any], Callable[[tuple[Any, ...], dict[str, Any]], Awaitable[Any]]], Awaitable[Any]
]
"""Calls the body of an attempt with middleware around it."""


class Transactions(Protocol):
    """Executes transactional activities."""

    def begin(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None: ...
    def of(self, call: Call) -> Transaction: ...


class Executor:
    """Runs activities of one worker, on its loop and in its threads."""

    def __init__(
        self,
        activities: Mapping[str, Activity[..., Any]],
        clock: DatabaseClock,
        settings: Settings,
        lease: Lease,
        permission: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self._activities = activities
        self.clock = clock
        self._settings = settings
        self.max_payload = settings.max_payload
        self._threads: DaemonExecutor | None = None
        self._processes: Processes | None = None
        self._slots = ConcurrencySlots(settings, self._admitted)
        self._elsewhere: dict[Call, None] = {}
        """Attempts in flight, but for those of the runner."""
        self._answers: deque[tuple[Call, bytes | Failure]] = deque()
        self.loop: asyncio.AbstractEventLoop
        self.beats = Heartbeats(lease.may_act, settings.max_payload)
        self.outside = ExternalCompletion(self)
        self._deadlines = Deadlines(clock, self._in_flight, self.beats, self._overdue)
        self.may_act, self.permission = lease.may_act, permission
        self._on_attempt: Callable[[Call], None] | None = None
        self.gates = Gates(self)
        self.within: Within | None = None
        """Middleware, for what does not go through the runner."""
        self._runner = Runner(lease, permission, self._end_well, self._end)
        self.turns = TurnHooks()
        self._transactions: Transactions
        self.publisher: Publisher

    def report_to(
        self, on_attempt: Callable[[Call], None] | None, on_beats: Callable[[Call, int], None] | None
    ) -> None:
        """Tell these of attempts that begin, and of their heartbeats. None: no middleware listens."""
        self._on_attempt = on_attempt
        self.beats.report_to(on_beats)

    def let_write(self, transactions: Transactions, publisher: Publisher) -> None:
        """Have these execute transactional activities, and write messages of the bus."""
        self._transactions, self.publisher = transactions, publisher

    # -- what the code of an attempt asks

    def heartbeat(self, call: Call, details: Any) -> None:
        self.beats.take(call, details)

    def checkpoint(self, call: Call, state: Any) -> Future[None]:
        return self.beats.checkpoint(call, state)

    def progress(self, call: Call, value: Any) -> None:
        self.beats.progress(call, value)

    def token(self, call: Call) -> bytes:
        return self.outside.ask(call)

    def transaction(self, call: Call) -> Transaction:
        return self._transactions.of(call)

    # -- life

    def open(self, loop: asyncio.AbstractEventLoop, context: contextvars.Context) -> None:
        """Every attempt gets a copy of the context: what one sets, no other sees."""
        self.loop, self._context = loop, context
        self._runner.open(loop, context)
        self.beats.open(loop)
        self._deadlines.open(loop)

    def close(self) -> None:
        """Forget all. Threads cannot be stopped; they end when their activity does."""
        for call in self._in_flight():
            self._lose(call, STOPPED)
        self._deadlines.close()
        self.gates.close()
        if self._threads is not None:
            self._threads.shutdown()
        if self._processes is not None:
            self._processes.close()

    # -- starting

    def start(self, run: CallingRun, seq: int, pending: PendingActivity, call: Call | None = None) -> None:
        """Begin a call, or have it wait for a free place. A `call` that is given has its place."""
        options, clock = pending.options, self.clock
        if call is None:
            activity = self._activities.get(pending.name)
            if activity is None:
                self._lack(run, seq, pending.name)
                return
            begun_at = (clock.standing or clock.now()) + run.ahead
            call = run.calls[seq] = Call(run, seq, pending, activity, 1, begun_at, SOON)
            if not self._slots.enter(call):
                call.started_at, call.task = 0, None
                self._limit_waiting(call)
                return
        if options.start_timeout is not None and self._started_too_late(call, options.start_timeout):
            return
        if options.gates and call.passes is None and not self.gates.let_in(call):
            return
        if options.once and not call.noted:
            self._note_start(call)
            return
        if options.timeout is not None or options.total_timeout is not None or options.heartbeat is not None:
            self._deadlines.watch(call, call.started_at)
        if self._on_attempt is not None:
            self._on_attempt(call)
        failpoint("activity.before")
        place = call.activity.execution_mode
        if place is _LOOP or (self.within is not None and place is not ExecutionMode.STORE):
            runner = self._runner
            runner.begun.append(call)
            if not runner.standing_by:
                runner.stand_by()
        else:
            self._execute_elsewhere(call, place)
        if self._deadlines.ticking is None:
            self._deadlines.begin()

    def _note_start(self, call: Call) -> None:
        """A `once` activity begins when its start is durable. It has its place, and its gates have let it in."""
        call.task, call.noted, call.noting = None, True, True
        if call.run.leaving:  # nothing of it is written any more
            self._begin_once(call)
        else:
            call.run.record_attempt(call.row(), lambda: self._begin_once(call))

    def _begin_once(self, call: Call) -> None:
        """Its start is durable. A later turn may have given up on it meanwhile."""
        if not call.noting:
            return
        call.noting = False
        if call.run.leaving or call.seq in call.run.machine.activities:
            self._launch(call)
        else:
            self._slots.leave(call)
            self.gates.drop(call)

    def stays_for(self, run: CallingRun) -> float:
        """Seconds that a call waits in memory."""
        return SHORT_WAIT if run.is_call else self._settings.keep_in_memory

    def resume(self, run: CallingRun, seq: int, attempts: Sequence[Attempt], *, answered: bool = False) -> None:
        """Go on with a call that was pending at the end of the journal. `answered`: its answer is in the inbox."""
        pending = run.machine.activities[seq]
        failures = [a for a in attempts if a.ended_at is not None]
        failed = max((a.number for a in failures), default=0)  # of many the store keeps some
        begun = [a for a in attempts if a.ended_at is None and a.number > failed]
        if answered or (begun and begun[-1].outside):
            self._resume_outside(run, seq, attempts, failed + 1)
            return
        if pending.options.once and begun:
            error = Interrupted(
                f"activity {pending.name!r} was begun once and its worker died: it may or may not have happened; "
                f"find out (its key is {pending.key or run.machine.key(seq, pending.name)}) before going on"
            )
            run.deliver(
                _FAILED, Body(seq, pending.name, error=to_failure(error), attempts=1, started_at=begun[0].started_at)
            )
            return
        due = max((a.next_at or 0 for a in failures), default=0)
        wait = (due - run.now()) / SECOND
        activity = self._activities.get(pending.name)
        if activity is None:
            self._lack(run, seq, pending.name)
            return
        call = run.calls[seq] = Call(run, seq, pending, activity, failed + 1, 0, None, bool(attempts))
        call.beats = last_beats(attempts)
        call.tokens = begun[-1].tokens if begun else None
        if wait <= 0:
            self._admit(call)
        else:
            call.next_at = due
            self.try_again_in(wait, call)
            run.be_patient()

    def _resume_outside(self, run: CallingRun, seq: int, attempts: Sequence[Attempt], number: int) -> None:
        """Its answer comes, or came, from outside: it is not executed again, and needs no code."""
        pending = run.machine.activities[seq]
        activity = cast(Any, self.activity(pending.name))
        call = run.calls[seq] = Call(run, seq, pending, activity, number, 0, None, number > 1)
        call.beats = last_beats(attempts)
        last = attempts[-1] if attempts else None
        open_row = last if last is not None and last.ended_at is None else None
        self.outside.resume(call, open_row or Attempt(seq=seq, number=number, started_at=pending.issued_at))
        run.be_patient()

    def activity(self, name: str) -> Activity[..., Any] | None:
        return self._activities.get(name)

    def _lack(self, run: CallingRun, seq: int, name: str) -> None:
        error = UnknownActivity(name, self._activities)
        log.warning("run %s will be handed back: %s", run.identity.id, told(error), extra=run.machine.logged)
        run.lack(seq, str(error))

    def wake_in(self, wait: float, work: Callable[[Call], None], call: Call) -> None:
        """Have the call looked at after a while, and not at the time that was set before."""
        if call.waking is not None:
            call.waking.cancel()
        call.waking = self.loop.call_later(wait, work, call, context=self._context)

    def try_again_in(self, wait: float, call: Call) -> None:
        """Have it begin again after a while."""
        self.wake_in(wait, self._again, call)

    def remind(self, run: CallingRun) -> None:
        """The run stays after all: retries that came due while it was leaving are due now."""
        now = run.now()
        for call in run.calls.values():
            if call.outside:
                self.outside.watch(call)
            elif call.next_at is not None and not call.over:
                call.unwritten = False
                self.try_again_in(max(0.0, (call.next_at - now) / SECOND), call)

    def _admit(self, call: Call) -> None:
        if call.over:
            return
        if self._slots.enter(call):
            self._launch(call)
        else:
            self._limit_waiting(call)

    def _admitted(self, call: Call) -> None:
        if call.run.pausing is not None:
            call.shelved = True
            self.loop.call_soon(self._slots.leave, call, context=self._context)
            return
        # Not here and now: this may be inside another activity's task, and in its context.
        self.loop.call_soon(self._launch, call, context=self._context)

    def unshelve(self, run: CallingRun) -> None:
        """The run goes on: calls that have had their turn meanwhile wait for a place once more."""
        for call in [call for call in run.calls.values() if call.shelved]:
            call.shelved = False
            self._admit(call)

    def _limit_waiting(self, call: Call) -> None:
        """A call that finds no place in time fails then, not when a place becomes free."""
        options = call.pending.options
        call.queued = True
        limits = [options.total_timeout] if options.total_timeout is not None else []
        if options.start_timeout is not None and not call.begun:
            limits.append(options.start_timeout)
        if limits:
            ends = call.run.counted_from(call.pending.issued_at) + int(min(limits) * SECOND)
            wait = (ends - call.run.now()) / SECOND
            call.waking = self.loop.call_later(
                wait, self._waited_too_long, call, ends, min(limits), context=self._context
            )

    def _waited_too_long(self, call: Call, ends: int, limit: float) -> None:
        if call.over or call.in_flight or call.run.leaving:
            return
        now = call.run.now()
        if now < ends:
            wait = (ends - now) / SECOND + 0.001
            call.waking = self.loop.call_later(wait, self._waited_too_long, call, ends, limit, context=self._context)
            return
        self.gates.drop(call)
        # Here and now: until it has its answer, a place that becomes free would begin it all the same.
        self._hand_over(deque([(call, call.too_late(limit))]), 1)

    def _launch(self, call: Call) -> None:
        """One attempt begins. It holds its slot until its code has ended."""
        if call.waking is not None:
            call.waking.cancel()
            call.waking = None
        if call.over or call.run.leaving:
            self._slots.leave(call)
            self.gates.drop(call)
            if not call.over:  # should the run stay after all, it is looked at again
                call.run.calls.pop(call.seq, None)
            return
        call.queued = False
        call.started_at = call.run.now()
        call.task = SOON
        self.start(call.run, call.seq, call.pending, call)

    def _execute_elsewhere(self, call: Call, place: ExecutionMode) -> None:
        self._elsewhere[call] = None
        try:
            args, kwargs = call.activity.codec.decode_args(call.pending.data)
        except Exception as error:  # noqa: BLE001 - whatever its types raise is its answer
            self._end(call, error)
            return
        if place is ExecutionMode.STORE:
            self._transactions.begin(call, args, kwargs)
            return
        if place is ExecutionMode.THREAD:
            call.task = self.loop.run_in_executor(self.thread_pool(), in_thread, call, self.may_act, args, kwargs)
        else:
            call.task = self.in_process(call)
        call.task.add_done_callback(lambda done: self._thread_ended(call, done))

    def _started_too_late(self, call: Call, limit: float) -> bool:
        if call.begun or call.started_at - call.run.counted_from(call.pending.issued_at) <= limit * SECOND:
            return False
        self.gates.drop(call)
        self.vacate(call)
        self._answer(call, call.too_late(limit))
        return True

    def thread_pool(self) -> DaemonExecutor:
        if self._threads is None:
            self._threads = DaemonExecutor("batuta-activity")
        return self._threads

    # -- middleware

    def surround(
        self,
        activities: Mapping[str, Activity[..., Any]],
        within: Within,
        choose: Callable[[Call], Callable[..., Any]] | None,
        alike: bool,
    ) -> None:
        """The same activities, with middleware around them, that call `in_thread` and `in_process` themselves."""
        self._activities, self.within = activities, within
        self._runner.choose_with(choose, alike)

    def in_thread(
        self,
        call: Call,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        context: contextvars.Context,
    ) -> asyncio.Future[Any]:
        """The attempt's own code, with what the middleware has set in its context."""
        return self.loop.run_in_executor(self.thread_pool(), in_thread, call, self.may_act, args, kwargs, fn, context)

    def in_process(self, call: Call) -> asyncio.Future[Any]:
        if self._processes is None:
            self._processes = Processes(self.beats, self.may_act)
        return self._processes.start(self.loop, call, self._settings.max_payload)

    # -- ending

    def _thread_ended(self, call: Call, done: asyncio.Future[Any]) -> None:
        if done.cancelled():
            self._end(call, asyncio.CancelledError())
        elif (error := done.exception()) is not None:
            self._end(call, error)
        elif call.activity.execution_mode is ExecutionMode.PROCESS:
            self._leave(call)
            self._answer(call, done.result())
        else:
            self._end_well(call, done.result())

    def _end_well(self, call: Call, value: Any) -> None:
        failpoint("activity.after")
        try:
            data = encode(value, call.activity.codec.output, self.max_payload)
        except InvalidInput as error:
            self._end(call, error)
            return
        self._leave(call)
        if not self._answers:
            self.loop.call_soon(self._deliver_answers, context=self._context)
        self._answers.append((call, data))

    def _end(self, call: Call, error: BaseException) -> None:
        """An attempt ended with an error. Decide: again, or give up."""
        error = answerable(error)
        self.gates.leave(call, None if isinstance(error, CompleteLater) else error)
        self._leave(call)
        if not call.over and isinstance(error, CompleteLater):
            self.outside.begin(call)
        elif not call.over and call.lost and isinstance(error, LostAttempt) and not call.pending.options.once:
            self._begin_anew(call, call.attempt)  # the lease was in doubt, and is renewed: nothing has failed
        else:
            self._failed(call, error)

    def _leave(self, call: Call) -> None:
        self.finish(call)
        self.vacate(call)

    def finish(self, call: Call) -> None:
        """The code of a transactional attempt has ended: no time limit holds for what comes now."""
        call.finished = True
        self._elsewhere.pop(call, None)
        self.gates.leave(call, None)
        if call.beats is not None:
            self.beats.finish(call)

    def fail(self, call: Call, error: BaseException) -> None:
        """A transactional attempt ended with an error, and nothing of it is left. It still has its place."""
        self.gates.leave(call, error)
        self.finish(call)
        self._failed(call, error)

    def _failed(self, call: Call, error: BaseException) -> None:
        if call.over:
            self._forgotten(call)
        elif isinstance(error, GatesLapsed):
            self._begin_late(call, error)
        else:
            failpoint("activity.failed")
            self.conclude(call, _failure(error))

    def _begin_late(self, call: Call, error: GatesLapsed) -> None:
        """Its gates are asked again."""
        if call.pending.options.once:  # its start is noted: if the run left memory, it would count as interrupted
            call.run.record_attempt(call.row(ended_at=call.run.now(), error=json.encode(_failure(error)).decode()))
            call.attempt += 1
        self.begin_later(call, 0)

    def vacate(self, call: Call) -> None:
        """The code of an attempt has ended: free its slot."""
        self._elsewhere.pop(call, None)
        self.gates.give_back(call)
        call.task = None  # task, context and call refer to each other: leave nothing for the collector
        self._slots.leave(call)

    def begin_anew(self, call: Call) -> None:
        """Nothing has failed, and nothing was done: the same attempt once more."""
        if not call.over and not call.run.leaving:
            self._begin_anew(call, call.attempt)

    def begin_later(self, call: Call, wait: float) -> None:
        """The same after a while, in which it is not at work: its run may leave."""
        call.started_at, call.next_at = 0, call.run.now() + int(wait * SECOND)
        self.try_again_in(wait, call)
        call.run.evict_when_draining()

    def conclude(self, call: Call, failure: Failure, message_id: str = "", *, outside: bool = False) -> None:
        """An attempt, which may have waited `outside`, failed for good or for now; the message that said so is read."""
        now = call.run.now()
        delay = call.again_in(failure, now)
        if delay is None:
            if call.run.is_call:
                call.run.gave_up(call.row(ended_at=now, error=json.encode(failure).decode()))
            if message_id:
                self.deliver(call, failure, message_id)
            else:
                self._answer(call, failure)
            return
        if message_id:
            call.run.consume(message_id)
        call.next_at = now + int(delay * SECOND)
        text = json.encode(failure).decode()
        call.unwritten = not call.run.leaving
        row = call.row(ended_at=now, next_at=call.next_at, error=text, outside=outside)
        call.run.record_attempt(row, lambda: self._written(call))
        log.info(
            "activity %s of run %s failed (attempt %d), again in %s: %s",
            call.pending.name,
            call.run.identity.id,
            call.attempt,
            human_duration(round(delay, 1)),
            failure.message,
        )
        self.try_again_in(delay, call)
        if delay > self.stays_for(call.run):
            call.run.call_waits()
        call.run.evict_when_draining()

    def _again(self, call: Call) -> None:
        """A retry is due."""
        call.waking = None
        if call.over or call.unwritten or call.next_at is None or call.run.leaving or call.run.pausing is not None:
            return  # `_written` comes back here
        now = call.run.now()
        if now < call.next_at:
            self.try_again_in((call.next_at - now) / SECOND + 0.001, call)
            return
        if call.gate:
            call.gate, call.next_at = "", None
            self._admit(call)
            return
        failpoint("activity.retry")
        self._begin_anew(call, call.attempt + 1 if call.started_at else call.attempt)

    def _written(self, call: Call) -> None:
        """Its failure is durable."""
        call.unwritten = False
        if call.next_at is not None and call.waking is None:  # it was due before, by the clock of then
            self.loop.call_soon(self._again, call, context=self._context)

    def _begin_anew(self, call: Call, attempt: int) -> None:
        call.over = True
        fresh = call.run.calls[call.seq] = call.successor(attempt)
        if call.pending.name in self._activities:
            self._admit(fresh)
        else:  # it was completed from outside, which needs no code
            self._lack(call.run, call.seq, call.pending.name)
            self._forgotten(fresh)

    def _answer(self, call: Call, answer: bytes | Failure) -> None:
        """Hand the answer to the run, from a callback of its own: a turn must not run inside a task."""
        if not self._answers:
            self.loop.call_soon(self._deliver_answers, context=self._context)
        self._answers.append((call, answer))

    def _deliver_answers(self) -> None:
        answers = self._answers
        tells = log.isEnabledFor(logging.DEBUG)
        if len(answers) == 1:
            self._hand_over(answers, 1, tells)
            return
        with self.turns:
            self._hand_over(answers, _SLICE, tells)
        if answers:
            self.loop.call_soon(self._deliver_answers)

    def _hand_over(self, answers: deque[tuple[Call, bytes | Failure]], most: int, tells: bool = False) -> None:
        """Run the turns that so many answers cause."""
        for _ in range(min(most, len(answers))):
            call, answer = answers.popleft()
            run = call.run
            try:
                if call.over:
                    self._forgotten(call)
                    continue
                call.over = True
                seq, name = call.seq, call.pending.name
                run.calls.pop(seq, None)
                if type(answer) is bytes:
                    run.deliver(_DONE, Body(seq, name, Raw(answer), UNSET, call.attempt, call.started_at))
                else:
                    failure = cast(Failure, answer)
                    run.deliver(_FAILED, Body(seq, name, UNSET, failure, call.attempt, call.started_at))
                if tells:
                    log.debug("executed activity %s seq %d of run %s", name, seq, run.identity.id)
            except Exception:
                log.exception("run %s is dropped and will be read again", run.identity.id, extra=run.machine.logged)
                run.drop()

    def deliver(self, call: Call, answer: Raw | UnsetType | Failure, message_id: str) -> None:
        """The answer came by a message, which its entry consumes."""
        call.over = True
        if call.waking is not None:
            call.waking.cancel()
        call.run.calls.pop(call.seq, None)
        body = Body(call.seq, call.pending.name, attempts=call.attempt, started_at=call.started_at)
        body.message_id = message_id
        if isinstance(answer, Failure):
            body.error = answer
        else:
            body.value = answer
        call.run.deliver(_FAILED if isinstance(answer, Failure) else _DONE, body)

    def _forgotten(self, call: Call) -> None:
        if call.run.calls.get(call.seq) is call:
            del call.run.calls[call.seq]
            call.run.call_over()

    # -- cancelling

    def cancel(self, run: CallingRun, seq: int) -> None:
        """The code does not wait for this call any more: ask it to end."""
        call = run.calls.get(seq)
        if call is None:
            return
        self._lose(call, CANCELLED)
        if not call.in_flight:
            self._forgotten(call)

    def cancel_all(self, run: CallingRun, why: str) -> None:
        """The run is gone."""
        for call in run.calls.values():
            self._lose(call, why)
        run.calls.clear()

    def _overdue(self, call: Call, failure: Failure) -> None:
        """The attempt is over for its run now; its place stays taken until its code has really ended."""
        self.gates.overdue(call, failure)
        self.conclude(self.supersede(call, OVERDUE), failure)

    def supersede(self, call: Call, why: str) -> Call:
        """Go on without the attempt's code, whatever it is doing."""
        twin = call.run.calls[call.seq] = call.successor(call.attempt)
        twin.started_at = call.started_at
        self._lose(call, why)
        return twin

    def _in_flight(self) -> list[Call]:
        return [*self._elsewhere, *self._runner.calls()]

    def at_work(self) -> dict[str, int]:
        """How many attempts of each activity or job are under way."""
        return Counter(call.pending.name for call in self._in_flight())

    def flush(self) -> None:
        """Have the last details of every heartbeat written."""
        for call in self._in_flight():
            self.beats.write(call)

    def _lose(self, call: Call, why: str) -> None:
        call.lost = why
        call.over = True
        if call.beats is not None:
            self.beats.lose(call)
        if call.task is None and (call.topic or call.passes is not None):
            self.gates.drop(call)  # it has not begun
        if call.noting:
            call.noting = False
            self._slots.leave(call)
        self._interrupt(call)

    def _interrupt(self, call: Call) -> None:
        if call.waking is not None:
            call.waking.cancel()
        if call.task is None or call.task.done():
            return
        if call.activity.execution_mode in (ExecutionMode.LOOP, ExecutionMode.STORE):
            call.task.cancel()
        elif call.activity.execution_mode is ExecutionMode.PROCESS and self._processes is not None:
            self._processes.kill(call)


def _failure(error: BaseException) -> Failure:
    """The failure that is kept of the error that ended an attempt."""
    if isinstance(error, Raised):
        return error.failure
    return fatal(to_failure(error)) if isinstance(error, InvalidInput) else to_failure(error)
