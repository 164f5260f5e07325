"""Calls activities: attempts, timeouts, retries, threads. What it is told to start is durable already."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

from msgspec import UNSET, Raw, UnsetType, json

from batuta import failpoints
from batuta.authoring.attempt import CompleteLater
from batuta.authoring.definitions import Activity, Place
from batuta.authoring.failures import to_failure
from batuta.clock import SECOND
from batuta.engine.calls import CANCELLED, OVERDUE, SHORT_WAIT, SOON, STOPPED, Call, fatal, last_beats, timeout
from batuta.engine.dbclock import DatabaseClock
from batuta.engine.deadlines import Deadlines, again_in
from batuta.engine.generators import Turns
from batuta.engine.heartbeats import Heartbeats
from batuta.engine.outside import Outside
from batuta.engine.pausing import counted_from
from batuta.engine.pending import PendingActivity
from batuta.engine.places import Places
from batuta.engine.processes import Processes, Raised
from batuta.engine.runner import Runner
from batuta.engine.threads import in_thread
from batuta.errors import Interrupted, InvalidInput, LostAttempt, UnknownActivity
from batuta.failpoints import failpoint
from batuta.journal.entries import Body, EntryKind
from batuta.journal.failures import Failure
from batuta.journal.records import Attempt
from batuta.serde import SIMPLE, encode, encode_simple
from batuta.settings import Settings

if TYPE_CHECKING:
    from batuta.engine.around import Within
    from batuta.engine.jobs import CallRun
    from batuta.engine.lease import Lease
    from batuta.engine.live import LiveRun
    from batuta.engine.transactions import Transactions

log = logging.getLogger("batuta.engine")

_SLICE = 128
_DONE, _FAILED = EntryKind.ACTIVITY_DONE, EntryKind.ACTIVITY_FAILED
_LOOP = Place.LOOP  # members of an enum are looked up slowly


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
        self._max_payload = settings.max_payload
        self._threads: ThreadPoolExecutor | None = None
        self._processes: Processes | None = None
        self._places = Places(settings, self._admitted)
        self._on_loop = self._places.on_loop
        self._elsewhere: dict[Call, None] = {}
        """What is in flight, but for what the runner has."""
        self._answers: deque[tuple[Call, bytes | Failure]] = deque()
        self._loop: asyncio.AbstractEventLoop
        self.beats = Heartbeats(clock, lease.may_act, settings.max_payload)
        self.outside = Outside(self)
        self._deadlines = Deadlines(clock, self._in_flight, self.beats, self._overdue)
        self.may_act, self.permission = lease.may_act, permission
        self.within: Within | None = None
        """Middleware, for what does not go through the runner."""
        self._runner = Runner(lease, permission, self._end_well, self._end)
        self.turns = Turns()
        self.transactions: Transactions

    def open(self, loop: asyncio.AbstractEventLoop, context: contextvars.Context) -> None:
        """Every attempt gets a copy of the context: what one sets, no other sees."""
        self._loop, self._context = loop, context
        self._runner.open(loop, context)
        self.beats.loop = loop
        self._deadlines.open(loop)

    def close(self) -> None:
        """Forget all. Threads cannot be stopped; they end when their activity does."""
        for call in self._in_flight():
            self._lose(call, STOPPED)
        self._deadlines.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        if self._processes is not None:
            self._processes.close()

    # -- starting

    def start(self, run: LiveRun, seq: int, pending: PendingActivity, call: Call | None = None) -> None:
        """Begin a call, or have it wait for a free place. A `call` that is given has its place."""
        options, clock, gate = pending.options, self.clock, self._on_loop
        if call is None:
            activity = self._activities.get(pending.name)
            if activity is None:
                self._lack(run, seq, pending.name)
                return
            call = run.calls[seq] = Call(run, seq, pending, activity, 1, clock.standing or clock.now(), SOON)
            if options.once:
                call.task = None
                self._begin(call)
                return
            if activity.place is _LOOP and activity.limit is None and gate.free > 0:
                gate.free -= 1  # as `Places.enter` does it: once for every step
            elif not self._places.enter(call):
                call.started_at, call.task = 0, None
                self._limit_waiting(call)
                return
        if options.start_timeout is not None and self._started_too_late(call, options.start_timeout):
            return
        if options.timeout is not None or options.total_timeout is not None or options.heartbeat is not None:
            self._deadlines.watch(call, call.started_at)
        if failpoints.armed is not None:
            failpoint("activity.before")
        place = call.activity.place
        if place is _LOOP or (self.within is not None and place is not Place.STORE):
            runner = self._runner
            runner.begun.append(call)
            if not runner.standing_by:
                runner.stand_by()
        else:
            self._execute_elsewhere(call, place)
        if self._deadlines.ticking is None:
            self._deadlines.begin()

    def _begin(self, call: Call) -> None:
        if call.pending.options.once:
            call.started_at = self.clock.now()
            call.noted = True
            call.run.record_attempt(call.row(), lambda: self._begin_once(call))
        else:
            self._admit(call)

    def _begin_once(self, call: Call) -> None:
        """Its start is durable. A later turn may have given up on it meanwhile."""
        if call.run.leaving:
            call.run.calls.pop(call.seq, None)  # should the run stay after all, it is looked at again
        elif call.seq in call.run.machine.activities:
            self._admit(call)

    def resume(self, run: LiveRun, seq: int, attempts: Sequence[Attempt], *, answered: bool = False) -> None:
        """Go on with a call that was pending at the end of the tape. `answered`: its answer is in the inbox."""
        pending = run.machine.activities[seq]
        failures = [a for a in attempts if a.ended_at is not None]
        begun = [a for a in attempts if a.ended_at is None and a.number > len(failures)]
        if answered or (begun and begun[-1].outside):
            self._resume_outside(run, seq, attempts, len(failures) + 1)
            return
        if pending.options.once and begun:
            error = Interrupted(
                f"activity {pending.name!r} was begun once and its worker died: it may or may not have happened; "
                f"find out (its key is {run.machine.key(seq, pending.name)}) before going on"
            )
            run.deliver(
                _FAILED, Body(seq, pending.name, error=to_failure(error), attempts=1, started_at=begun[0].started_at)
            )
            return
        due = max((a.next_at or 0 for a in failures), default=0)
        wait = (due - self.clock.now()) / SECOND
        activity = self._activities.get(pending.name)
        if activity is None:
            self._lack(run, seq, pending.name)
            return
        call = run.calls[seq] = Call(run, seq, pending, activity, len(failures) + 1, 0, None, bool(attempts))
        call.beats = last_beats(attempts)
        if wait <= 0:
            self._begin(call)
        else:
            call.next_at = due
            self._try_again_in(wait, call)
            run.patient = True

    def _resume_outside(self, run: LiveRun, seq: int, attempts: Sequence[Attempt], number: int) -> None:
        """Its answer comes, or came, from outside: it is not executed again, and needs no code."""
        pending = run.machine.activities[seq]
        activity = cast(Any, self.activity(pending.name))
        call = run.calls[seq] = Call(run, seq, pending, activity, number, 0, None, number > 1)
        call.beats = last_beats(attempts)
        last = attempts[-1] if attempts else None
        open_row = last if last is not None and last.ended_at is None else None
        self.outside.resume(call, open_row or Attempt(seq=seq, number=number, started_at=pending.issued_at))
        run.patient = True

    def activity(self, name: str) -> Activity[..., Any] | None:
        return self._activities.get(name)

    def _lack(self, run: LiveRun, seq: int, name: str) -> None:
        error = UnknownActivity(name, self._activities)
        log.warning("run %s will be handed back: %s", run.identity.id, error)
        run.lack(seq, str(error))

    def later(self, wait: float, work: Callable[[Call], None], call: Call) -> asyncio.TimerHandle:
        return self._loop.call_later(wait, work, call, context=self._context)

    def _try_again_in(self, wait: float, call: Call) -> None:
        call.waking = self.later(wait, self._again, call)

    def remind(self, run: LiveRun) -> None:
        """The run stays after all: retries that came due while it was leaving are due now."""
        now = self.clock.now()
        for call in run.calls.values():
            if call.outside:
                self.outside.watch(call)
            elif call.next_at is not None and not call.over:
                if call.waking is not None:
                    call.waking.cancel()
                self._try_again_in(max(0.0, (call.next_at - now) / SECOND), call)

    def _admit(self, call: Call) -> None:
        if call.over:
            return
        if self._places.enter(call):
            self._launch(call)
        else:
            self._limit_waiting(call)

    def _admitted(self, call: Call) -> None:
        if call.run.pausing is not None:
            call.shelved = True
            self._loop.call_soon(self._places.leave, call, context=self._context)
            return
        # Not here and now: this may be inside another activity's task, and in its context.
        self._loop.call_soon(self._launch, call, context=self._context)

    def unshelve(self, run: LiveRun) -> None:
        """The run goes on: calls that have had their turn meanwhile wait for a place once more."""
        for call in [call for call in run.calls.values() if call.shelved]:
            call.shelved = False
            self._admit(call)

    def _limit_waiting(self, call: Call) -> None:
        """A call that finds no place in time fails then, not when a place becomes free."""
        options = call.pending.options
        call.queued = not options.once  # of which the start is written already
        limits = [options.total_timeout] if options.total_timeout is not None else []
        if options.start_timeout is not None and not call.begun:
            limits.append(options.start_timeout)
        if limits:
            ends = counted_from(call.run, call.pending.issued_at) + int(min(limits) * SECOND)
            wait = (ends - self.clock.now()) / SECOND
            call.waking = self._loop.call_later(
                wait, self._waited_too_long, call, ends, min(limits), context=self._context
            )

    def _waited_too_long(self, call: Call, ends: int, limit: float) -> None:
        if call.over or call.in_flight or call.run.leaving:
            return
        now = self.clock.now()
        if now < ends:
            wait = (ends - now) / SECOND + 0.001
            call.waking = self._loop.call_later(wait, self._waited_too_long, call, ends, limit, context=self._context)
            return
        # Here and now: until it has its answer, a place that becomes free would begin it all the same.
        self._hand_over(deque([(call, fatal(timeout(call, "start", "did not start within", limit)))]), 1)

    def _launch(self, call: Call) -> None:
        """One attempt begins. It holds its place until it has really come to an end."""
        if call.waking is not None:
            call.waking.cancel()
            call.waking = None
        if call.over or call.run.leaving:
            self._places.leave(call)
            if not call.over:  # should the run stay after all, it is looked at again
                call.run.calls.pop(call.seq, None)
            return
        call.queued = False
        call.started_at = self.clock.now()
        call.task = SOON
        self.start(call.run, call.seq, call.pending, call)

    def _execute_elsewhere(self, call: Call, place: Place) -> None:
        self._elsewhere[call] = None
        try:
            args, kwargs = call.activity.codec.decode_args(call.pending.data)
        except Exception as error:  # noqa: BLE001 - whatever its types raise is its answer
            self._end(call, error)
            return
        if place is Place.STORE:
            self.transactions.begin(call, args, kwargs)
            return
        if place is Place.THREAD:
            call.task = self._loop.run_in_executor(self.thread_pool(), in_thread, call, self.may_act, args, kwargs)
        else:
            call.task = self.in_process(call)
        call.task.add_done_callback(lambda done: self._thread_ended(call, done))

    def _started_too_late(self, call: Call, limit: float) -> bool:
        if call.begun or call.started_at - counted_from(call.run, call.pending.issued_at) <= limit * SECOND:
            return False
        self.vacate(call)
        self._answer(call, fatal(timeout(call, "start", "did not start within", limit)))
        return True

    def thread_pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._settings.threads, thread_name_prefix="batuta-activity")
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
        self._runner.choose, self._runner.alike = choose, alike

    def in_thread(
        self,
        call: Call,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        context: contextvars.Context,
    ) -> asyncio.Future[Any]:
        """The attempt's own code, with what the middleware has set in its context."""
        return self._loop.run_in_executor(self.thread_pool(), in_thread, call, self.may_act, args, kwargs, fn, context)

    def in_process(self, call: Call) -> asyncio.Future[Any]:
        if self._processes is None:
            self._processes = Processes(self._settings.processes, self.beats, self.may_act)
        return self._processes.start(self._loop, call, self._settings.max_payload)

    # -- ending

    def _thread_ended(self, call: Call, done: asyncio.Future[Any]) -> None:
        if done.cancelled():
            self._end(call, asyncio.CancelledError())
        elif (error := done.exception()) is not None:
            self._end(call, error)
        elif call.activity.place is Place.PROCESS:
            self._leave(call)
            self._answer(call, done.result())
        else:
            self._end_well(call, done.result())

    def _end_well(self, call: Call, value: Any) -> None:
        if failpoints.armed is not None:
            failpoint("activity.after")
        activity, gate, data = call.activity, self._on_loop, b""
        if type(value) in SIMPLE:  # what `encode` begins with, here: that is a call less in every step
            try:
                data = encode_simple(value)
            except (OverflowError, UnicodeError):  # told below
                data = b""
        if not data or len(data) > self._max_payload:
            try:
                data = encode(value, activity.codec.output, self._max_payload)
            except InvalidInput as error:
                self._end(call, error)
                return
        if activity.place is _LOOP and activity.limit is None and call.beats is None and not gate.row:
            gate.free += 1  # as `_leave` does it: once for every step
            call.task = None
        else:
            self._leave(call)
        if not self._answers:
            self._loop.call_soon(self._deliver_answers, context=self._context)
        self._answers.append((call, data))

    def _end(self, call: Call, error: BaseException) -> None:
        """An attempt ended with an error. Decide: again, or give up."""
        self._leave(call)
        if call.over:
            self._forgotten(call)
            return
        if isinstance(error, CompleteLater):
            self.outside.begin(call)
            return
        failpoint("activity.failed")
        if call.lost and isinstance(error, LostAttempt) and not call.pending.options.once:
            self._begin_anew(call, call.attempt)  # the lease was in doubt, and is renewed: nothing has failed
            return
        self.conclude(call, _failure(error))

    def _leave(self, call: Call) -> None:
        self.finish(call)
        self.vacate(call)

    def finish(self, call: Call) -> None:
        """The code of a transactional attempt has ended: no time limit holds for what comes now."""
        call.finished = True
        self._elsewhere.pop(call, None)
        if call.beats is not None:
            self.beats.finish(call)

    def fail(self, call: Call, error: BaseException) -> None:
        """A transactional attempt ended with an error, and nothing of it is left. It still has its place."""
        self.finish(call)
        if call.over:
            self._forgotten(call)
            return
        failpoint("activity.failed")
        self.conclude(call, _failure(error))

    def vacate(self, call: Call) -> None:
        """An attempt has really come to an end."""
        self._elsewhere.pop(call, None)
        call.task = None  # task, context and call refer to each other: leave nothing for the collector
        self._places.leave(call)

    def begin_anew(self, call: Call) -> None:
        """Nothing has failed, and nothing was done: the same attempt once more."""
        if not call.over and not call.run.leaving:
            self._begin_anew(call, call.attempt)

    def begin_later(self, call: Call, wait: float) -> None:
        """The same after a while, in which it is not at work: its run may leave."""
        call.started_at, call.next_at = 0, self.clock.now() + int(wait * SECOND)
        self._try_again_in(wait, call)
        call.run.hand_back_when_draining()

    def conclude(self, call: Call, failure: Failure, message_id: str = "", *, outside: bool = False) -> None:
        """An attempt, which may have waited `outside`, failed for good or for now; the message that said so is read."""
        now = self.clock.now()
        delay = again_in(call, failure, now)
        if delay is None:
            if call.run.is_call:
                cast("CallRun", call.run).gave_up(call, failure, now)
            if message_id:
                self.deliver(call, failure, message_id)
            else:
                self._answer(call, failure)
            return
        if message_id:
            call.run.consume(message_id)
        call.next_at = now + int(delay * SECOND)
        text = json.encode(failure).decode()
        call.run.record_attempt(call.row(ended_at=now, next_at=call.next_at, error=text, outside=outside))
        log.info(
            "activity %s of run %s failed (attempt %d), again in %.1f s: %s",
            call.pending.name,
            call.run.identity.id,
            call.attempt,
            delay,
            failure.message,
        )
        self._try_again_in(delay, call)
        if delay > (SHORT_WAIT if call.run.is_call else self._settings.keep_in_memory):
            call.run.call_waits()
        call.run.hand_back_when_draining()

    def _again(self, call: Call) -> None:
        """A retry is due."""
        if call.over or call.next_at is None or call.run.leaving or call.run.pausing is not None:
            return
        now = self.clock.now()
        if now < call.next_at:
            self._try_again_in((call.next_at - now) / SECOND + 0.001, call)
            return
        failpoint("activity.retry")
        self._begin_anew(call, call.attempt + 1 if call.started_at else call.attempt)

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
            self._loop.call_soon(self._deliver_answers, context=self._context)
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
            self._loop.call_soon(self._deliver_answers)

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
                log.exception("run %s is dropped and will be read again", run.identity.id)
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

    def cancel(self, run: LiveRun, seq: int) -> None:
        """Nobody waits for this call any more: ask it to end."""
        call = run.calls.get(seq)
        if call is None:
            return
        self._lose(call, CANCELLED)
        if not call.in_flight:
            self._forgotten(call)

    def cancel_all(self, run: LiveRun, why: str) -> None:
        """The run is gone."""
        for call in run.calls.values():
            self._lose(call, why)
        run.calls.clear()

    def _overdue(self, call: Call, failure: Failure) -> None:
        """The attempt is over for its run now; its place stays taken until its code has really ended."""
        self.conclude(self.supersede(call, OVERDUE), failure)

    def supersede(self, call: Call, why: str) -> Call:
        """Go on without the attempt's code, whatever it is doing."""
        twin = call.run.calls[call.seq] = call.successor(call.attempt)
        twin.started_at = call.started_at
        self._lose(call, why)
        return twin

    def _in_flight(self) -> list[Call]:
        return [*self._elsewhere, *self._runner.calls()]

    def flush(self) -> None:
        """Have the last details of every heartbeat written."""
        for call in self._in_flight():
            self.beats.write(call)

    def _lose(self, call: Call, why: str) -> None:
        call.lost = why
        call.over = True
        if call.beats is not None:
            self.beats.lose(call)
        self._interrupt(call)

    def _interrupt(self, call: Call) -> None:
        if call.waking is not None:
            call.waking.cancel()
        if call.task is None or call.task.done():
            return
        if call.activity.place in (Place.LOOP, Place.STORE):
            call.task.cancel()
        elif call.activity.place is Place.PROCESS and self._processes is not None:
            self._processes.kill(call)


def _failure(error: BaseException) -> Failure:
    """What remains of what an attempt ended with."""
    if isinstance(error, Raised):
        return error.failure
    return fatal(to_failure(error)) if isinstance(error, InvalidInput) else to_failure(error)
