"""Calls activities: attempts, timeouts, retries, threads. What it is told to start is durable already."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from msgspec import Raw, json

from batuta.authoring.context import ActivityInfo, current_activity
from batuta.authoring.definitions import Activity
from batuta.authoring.failures import to_failure
from batuta.clock import SECOND
from batuta.engine.dbclock import DatabaseClock
from batuta.engine.machine import PendingActivity, turns
from batuta.engine.runner import Runner
from batuta.errors import ActivityTimeout, Interrupted, InvalidInput, UnknownActivity
from batuta.failpoints import failpoint
from batuta.ids import jitter
from batuta.journal.entries import Body, EntryKind
from batuta.journal.failures import Failure
from batuta.journal.records import Attempt
from batuta.settings import Settings

if TYPE_CHECKING:
    from batuta.engine.live import LiveRun

log = logging.getLogger("batuta.engine")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SLICE = 128
_TICK = 1.0
_DONE, _FAILED = EntryKind.ACTIVITY_DONE, EntryKind.ACTIVITY_FAILED


class Call:
    """One activity call of one run, over all its attempts."""

    __slots__ = (
        "activity",
        "attempt",
        "begun",
        "deadline",
        "next_at",
        "noted",
        "over",
        "pending",
        "run",
        "seq",
        "started_at",
        "task",
        "waking",
    )

    def __init__(
        self, run: LiveRun, seq: int, pending: PendingActivity, activity: Activity[..., Any], attempt: int
    ) -> None:
        self.run, self.seq, self.pending, self.activity, self.attempt = run, seq, pending, activity, attempt
        self.task: asyncio.Future[Any] | None = None
        self.waking: asyncio.TimerHandle | None = None
        self.started_at = 0
        self.deadline: int | None = None
        self.next_at: int | None = None
        """When the next attempt is due, while the call waits for it."""
        self.begun = attempt > 1
        """An attempt has been begun before, here or elsewhere: it did start in time."""
        self.over = False
        """Its answer is given, or nobody wants it."""
        self.noted = False
        """Its start is in the attempts table."""

    def info(self) -> ActivityInfo:
        run = self.run
        return ActivityInfo(
            key=run.machine.key(self.seq, self.pending.name),
            name=self.pending.name,
            attempt=self.attempt,
            run_id=run.run_id,
            id=run.identity.id,
            seq=self.seq,
            started_at=_EPOCH + timedelta(microseconds=self.started_at),
        )

    def row(self, **more: Any) -> Attempt:
        return Attempt(seq=self.seq, number=self.attempt, started_at=self.started_at, **more)


class Executor:
    """Runs activities of one worker, on its loop and in its threads."""

    def __init__(
        self,
        activities: Mapping[str, Activity[..., Any]],
        clock: DatabaseClock,
        settings: Settings,
        may_act: Callable[[], bool],
        permission: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self._activities = activities
        self._clock = clock
        self._settings = settings
        self._threads: ThreadPoolExecutor | None = None
        self._free = {True: settings.max_activities, False: settings.threads}
        self._queued: dict[bool, deque[Call]] = {True: deque(), False: deque()}
        self._in_flight: dict[Call, None] = {}
        self._answers: deque[tuple[Call, bytes | Failure]] = deque()
        self._loop: asyncio.AbstractEventLoop
        self._ticking: asyncio.TimerHandle | None = None
        self._may_act = may_act
        self._tells = False
        self._runner = Runner(may_act, permission, self._end_well, self._end)

    def open(self, loop: asyncio.AbstractEventLoop, context: contextvars.Context) -> None:
        """Every attempt gets a copy of the context: what one sets, no other sees."""
        self._loop, self._context = loop, context
        self._runner.open(loop, context)

    def close(self) -> None:
        """Forget all. Threads cannot be stopped; they end when their activity does."""
        for call in list(self._in_flight):
            call.over = True
            self._interrupt(call)
        if self._ticking is not None:
            self._ticking.cancel()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    # -- starting

    def start(self, run: LiveRun, seq: int, pending: PendingActivity, attempt: int = 1, *, begun: bool = False) -> None:
        """Begin a call, or have it wait for a free place. `begun`: an attempt of it has been begun before."""
        call = self._call(run, seq, pending, attempt)
        if call is None:
            return
        call.begun = begun
        if pending.options.once:
            call.started_at = self._clock.now()
            call.noted = True
            run.record_attempt(call.row(), lambda: self._begin_once(call))
        else:
            self._admit(call)

    def _begin_once(self, call: Call) -> None:
        """Its start is durable. A later turn may have given up on it meanwhile."""
        if call.seq in call.run.machine.activities and not call.run.leaving:
            self._admit(call)

    def resume(self, run: LiveRun, seq: int, attempts: Sequence[Attempt]) -> None:
        """Go on with a call that was pending at the end of the tape."""
        pending = run.machine.activities[seq]
        failures = [a for a in attempts if a.ended_at is not None]
        begun = [a for a in attempts if a.ended_at is None and a.number > len(failures)]
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
        wait = (due - self._clock.now()) / SECOND
        attempt = len(failures) + 1
        if wait <= 0:
            self.start(run, seq, pending, attempt, begun=bool(attempts))
            return
        call = self._call(run, seq, pending, attempt)
        if call is not None:
            call.next_at = due
            self._try_again_in(wait, call)

    def _call(self, run: LiveRun, seq: int, pending: PendingActivity, attempt: int) -> Call | None:
        """A call of the run; None when this worker does not have the activity."""
        activity = self._activities.get(pending.name)
        if activity is None:
            error = UnknownActivity(pending.name, self._activities)
            log.warning("run %s will be handed back: %s", run.identity.id, error)
            run.lack(seq, str(error))
            return None
        call = run.calls[seq] = Call(run, seq, pending, activity, attempt)
        return call

    def _try_again_in(self, wait: float, call: Call) -> None:
        call.waking = self._loop.call_later(wait, self._again, call, context=self._context)

    def _admit(self, call: Call) -> None:
        if call.over:
            return
        kind = call.activity.is_async
        if self._free[kind] > 0:
            self._free[kind] -= 1
            self._launch(call)
        else:
            self._queued[kind].append(call)
            self._limit_waiting(call)

    def _limit_waiting(self, call: Call) -> None:
        """A call that finds no place in time fails then, not when a place becomes free."""
        options = call.pending.options
        limits = [options.total_timeout] if options.total_timeout is not None else []
        if options.start_timeout is not None and not call.begun:
            limits.append(options.start_timeout)
        if limits:
            ends = call.pending.issued_at + int(min(limits) * SECOND)
            wait = (ends - self._clock.now()) / SECOND
            call.waking = self._loop.call_later(
                wait, self._waited_too_long, call, ends, min(limits), context=self._context
            )

    def _waited_too_long(self, call: Call, ends: int, limit: float) -> None:
        if call.over or call in self._in_flight or call.run.leaving:
            return
        now = self._clock.now()
        if now < ends:
            wait = (ends - now) / SECOND + 0.001
            call.waking = self._loop.call_later(wait, self._waited_too_long, call, ends, limit, context=self._context)
            return
        self._answer(call, _fatal(_timeout(call, "did not start within", limit)))

    def _launch(self, call: Call) -> None:
        """One attempt begins. It holds its place until it has really come to an end."""
        if call.waking is not None:
            call.waking.cancel()
            call.waking = None
        if call.over:
            self._leave_place(call)
            return
        now = call.started_at = self._clock.now()
        options = call.pending.options
        waited = now - call.pending.issued_at
        if options.start_timeout is not None and not call.begun and waited > options.start_timeout * SECOND:
            self._leave_place(call)
            self._answer(call, _fatal(_timeout(call, "did not start within", options.start_timeout)))
            return
        self._in_flight[call] = None
        self._set_deadline(call, now)
        failpoint("activity.before")
        try:
            args, kwargs = call.activity.codec.decode_args(call.pending.data)
        except InvalidInput as error:
            self._end(call, error)
            return
        if call.activity.is_async:
            self._runner.begin(call, args, kwargs)
        else:
            call.task = self._loop.run_in_executor(self._pool(), _in_thread, call, self._may_act, args, kwargs)
            call.task.add_done_callback(lambda done: self._thread_ended(call, done))
        if self._ticking is None:
            self._ticking = self._loop.call_later(_TICK, self._tick)

    def _set_deadline(self, call: Call, now: int) -> None:
        options = call.pending.options
        if options.timeout is None and options.total_timeout is None:
            return
        ends = []
        if options.timeout is not None:
            ends.append(now + int(options.timeout * SECOND))
        if options.total_timeout is not None:
            ends.append(call.pending.issued_at + int(options.total_timeout * SECOND))
        call.deadline = min(ends)
        wait = (call.deadline - now) / SECOND
        if wait < _TICK:  # the tick is too coarse for it
            self._loop.call_later(max(wait, 0.0), self._check_deadline, call, call.attempt)

    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._settings.threads, thread_name_prefix="batuta-activity")
        return self._threads

    # -- ending

    def _thread_ended(self, call: Call, done: asyncio.Future[Any]) -> None:
        if done.cancelled():
            self._end(call, asyncio.CancelledError())
        elif (error := done.exception()) is not None:
            self._end(call, error)
        else:
            self._end_well(call, done.result())

    def _end_well(self, call: Call, value: Any) -> None:
        failpoint("activity.after")
        try:
            data = call.activity.codec.encode_result(value, self._settings.max_payload)
        except InvalidInput as error:
            self._end(call, error)
            return
        del self._in_flight[call]
        call.task = None  # task, context and call refer to each other: leave nothing for the collector
        self._leave_place(call)
        self._answer(call, data)

    def _end(self, call: Call, error: BaseException) -> None:
        """An attempt ended with an error. Decide: again, or give up."""
        self._in_flight.pop(call, None)
        call.task = None
        self._leave_place(call)
        if call.over:
            self._forgotten(call)
            return
        failpoint("activity.failed")
        self._conclude(call, _fatal(to_failure(error)) if isinstance(error, InvalidInput) else to_failure(error))

    def _conclude(self, call: Call, failure: Failure) -> None:
        """An attempt failed for good or for now."""
        delay = self._delay(call, failure)
        now = self._clock.now()
        if delay is None:
            self._answer(call, failure)
            return
        call.next_at = now + int(delay * SECOND)
        text = json.encode(failure).decode()
        call.run.record_attempt(call.row(ended_at=now, next_at=call.next_at, error=text))
        log.info(
            "activity %s of run %s failed (attempt %d), again in %.1f s: %s",
            call.pending.name,
            call.run.identity.id,
            call.attempt,
            delay,
            failure.message,
        )
        self._try_again_in(delay, call)
        if delay > self._settings.keep_in_memory:
            call.run.wait_for_retry(call.next_at)
        call.run.hand_back_when_draining()

    def _delay(self, call: Call, failure: Failure) -> float | None:
        options = call.pending.options
        if options.once or not failure.retryable or failure.kind in options.retry.never:
            return None
        delay = options.retry.delay(call.attempt, jitter())
        if delay is not None and options.total_timeout is not None:
            end = call.pending.issued_at + options.total_timeout * SECOND
            if self._clock.now() + delay * SECOND >= end:
                return None
        return delay

    def _again(self, call: Call) -> None:
        """A retry is due."""
        if call.over or call.next_at is None or call.run.leaving:
            return
        now = self._clock.now()
        if now < call.next_at:
            self._try_again_in((call.next_at - now) / SECOND + 0.001, call)
            return
        failpoint("activity.retry")
        fresh = Call(
            call.run, call.seq, call.pending, call.activity, call.attempt + 1 if call.started_at else call.attempt
        )
        call.over = True
        fresh.begun = True
        call.run.calls[call.seq] = fresh
        self._admit(fresh)

    def _answer(self, call: Call, answer: bytes | Failure) -> None:
        """Hand the answer to the run, from a callback of its own: a turn must not run inside a task."""
        if not self._answers:
            self._loop.call_soon(self._deliver_answers, context=self._context)
        self._answers.append((call, answer))

    def _deliver_answers(self) -> None:
        answers = self._answers
        self._tells = log.isEnabledFor(logging.DEBUG)
        with turns():
            for _ in range(min(_SLICE, len(answers))):
                call, answer = answers.popleft()
                try:
                    self._deliver_answer(call, answer)
                except Exception:
                    log.exception("run %s is dropped and will be read again", call.run.identity.id)
                    call.run.drop()
        if answers:
            self._loop.call_soon(self._deliver_answers)

    def _deliver_answer(self, call: Call, answer: bytes | Failure) -> None:
        if call.over:
            self._forgotten(call)
            return
        call.over = True
        run, seq, name = call.run, call.seq, call.pending.name
        run.calls.pop(seq, None)
        if isinstance(answer, bytes):
            run.deliver(_DONE, Body(seq, name, Raw(answer), attempts=call.attempt, started_at=call.started_at))
        else:
            run.deliver(_FAILED, Body(seq, name, error=answer, attempts=call.attempt, started_at=call.started_at))
        if self._tells:
            log.debug("executed activity %s seq %d of run %s", name, seq, run.identity.id)

    def _forgotten(self, call: Call) -> None:
        if call.run.calls.get(call.seq) is call:
            del call.run.calls[call.seq]
            call.run.call_over()

    def _leave_place(self, call: Call) -> None:
        kind = call.activity.is_async
        queued = self._queued[kind]
        while queued:
            following = queued.popleft()
            if not following.over:
                # Not here and now: this may be inside another activity's task, and in its context.
                self._loop.call_soon(self._launch, following, context=self._context)
                return
        self._free[kind] += 1

    # -- cancelling

    def cancel(self, run: LiveRun, seq: int) -> None:
        """Nobody waits for this call any more: ask it to end."""
        call = run.calls.get(seq)
        if call is None:
            return
        call.over = True
        self._interrupt(call)
        if call not in self._in_flight:
            self._forgotten(call)

    def cancel_all(self, run: LiveRun) -> None:
        """The run is gone."""
        for call in run.calls.values():
            call.over = True
            self._interrupt(call)
        run.calls.clear()

    def _interrupt(self, call: Call) -> None:
        if call.waking is not None:
            call.waking.cancel()
        if call.task is not None and call.activity.is_async and not call.task.done():
            call.task.cancel()

    # -- time

    def _tick(self) -> None:
        """Once a second while anything is in flight: timeouts, and a note of what takes long."""
        self._ticking = self._loop.call_later(_TICK, self._tick) if self._in_flight else None
        now = self._clock.now()
        for call in list(self._in_flight):
            if call.deadline is not None and now >= call.deadline:
                self._check_deadline(call, call.attempt)
            elif call.deadline is not None and call.deadline - now < _TICK * SECOND:
                self._loop.call_later((call.deadline - now) / SECOND, self._check_deadline, call, call.attempt)
            if not call.noted and not call.over and now - call.started_at >= _TICK * SECOND:
                call.noted = True
                call.run.record_attempt(call.row())

    def _check_deadline(self, call: Call, attempt: int) -> None:
        if call.over or call.attempt != attempt or call not in self._in_flight or call.deadline is None:
            return
        now = self._clock.now()
        if now < call.deadline:
            self._loop.call_later((call.deadline - now) / SECOND + 0.001, self._check_deadline, call, attempt)
            return
        # The attempt is over for its run now; its place stays taken until its code has really ended.
        run = call.run
        twin = Call(run, call.seq, call.pending, call.activity, call.attempt)
        twin.started_at = call.started_at
        run.calls[call.seq] = twin
        call.over = True
        self._interrupt(call)
        options = call.pending.options
        total = options.total_timeout is not None and now >= call.pending.issued_at + options.total_timeout * SECOND
        limit = options.total_timeout if total else options.timeout
        failure = _timeout(twin, "took longer than its", limit or 0)
        failure.retryable = not total
        self._conclude(twin, failure)


def _in_thread(call: Call, may_act: Callable[[], bool], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    while not may_act():
        if call.over:
            raise asyncio.CancelledError
        time.sleep(0.05)
    context = contextvars.Context()
    context.run(current_activity.set, call.info)
    return context.run(call.activity.fn, *args, **kwargs)


def _timeout(call: Call, what: str, seconds: float) -> Failure:
    return to_failure(ActivityTimeout(f"activity {call.pending.name!r} {what} {seconds:g} s (attempt {call.attempt})"))


def _fatal(failure: Failure) -> Failure:
    """After which no other attempt is made."""
    failure.retryable = False
    return failure
