"""Events, made of what a commit has made durable, for middleware that listens."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from operator import attrgetter
from typing import Any, cast

from msgspec import UNSET, Struct, json

from batuta.authoring.middleware import Middleware
from batuta.clock import SECOND
from batuta.engine.activities.call import Call, Effect
from batuta.engine.run.owned_run import OwnedRun
from batuta.engine.worker.database_clock import DatabaseClock
from batuta.engine.worker.outside_closes import OutsideCloses
from batuta.journal.entries import Entry, EntryKind
from batuta.journal.failures import Failure
from batuta.journal.records import Change, Refusal, Verdict, WorkerInfo
from batuta.journal.states import CLOSED, RunState
from batuta.journal.store import Store
from batuta.telemetry import (
    ActivityCompleted,
    ActivityFailed,
    ActivityHeartbeat,
    ActivityRetried,
    ActivityStarted,
    BatchWritten,
    ChildClosed,
    Event,
    LeaseRenewed,
    LetterArrived,
    MessageReceived,
    RunClosed,
    RunFacts,
    RunParked,
    RunReleased,
    RunStarted,
    ScheduleFired,
    TimerFired,
    WorkerFacts,
    WorkerLost,
    WorkerStarted,
    WorkerStopped,
)

log = logging.getLogger("batuta.engine")

Ear = Callable[[Any], None]
Item = tuple[OwnedRun, Change, list[Effect]]
"""A change on its way to the store, its run, and what acts when it is durable."""
Verdicts = dict[int, Verdict | list[Refusal]]
Commit = Callable[[str, Sequence[Change]], Coroutine[Any, Any, Verdicts]]
_FAILED_ON = "middleware failed on the event %s"
_BACK = (RunState.WAITING, RunState.PENDING)
_MESSAGES = {EntryKind.SIGNAL: "signal", EntryKind.UPDATE: "update", EntryKind.CANCEL_REQUESTED: "cancel"}


class EntryFacts(Struct, gc=False):
    """The fields of an entry's body that events have."""

    seq: int = 0
    name: str = ""
    error: Failure | None = None
    attempts: int = 0
    started_at: int = 0
    reason: str = ""
    headers: dict[str, str] | None = None


_COMPLETED, _FAILED = RunState.COMPLETED, RunState.FAILED
_entries = attrgetter("entries")
_decode = json.Decoder(EntryFacts).decode
_failure = json.Decoder(Failure).decode


class Reporter:
    """The listeners of one worker. No event is made without one."""

    def __init__(self, ears: Sequence[Middleware], clock: DatabaseClock, info: WorkerInfo, store: Store) -> None:
        self._clock, self._info, self._namespace = clock, info, store.namespace
        self.closes = OutsideCloses(store, ears)
        self._ears: dict[type[Event], list[Ear]] = {}
        for one in ears:
            for event in one.events:
                self._ears.setdefault(event, []).append(one.event)
        self.listens = bool(self._ears)
        self.listens_to_steps = ActivityCompleted in self._ears
        done = self._ears.get(ActivityCompleted, ())
        self._done = done[0] if len(done) == 1 else self.tell
        self._makers = {kind: make for kind, (event, make) in _MAKERS.items() if event in self._ears}
        self._moves = not self._ears.keys().isdisjoint((RunClosed, RunParked, RunReleased))

    def tell(self, event: Event) -> None:
        for ear in self._ears.get(type(event), ()):
            try:
                ear(event)
            except KeyboardInterrupt:
                raise
            except BaseException:  # CancelledError, too: of a future that an ear has asked
                log.exception(_FAILED_ON, event.event)

    # -- runs

    def committed(self, batch: Sequence[Item], verdicts: Verdicts) -> None:
        """These changes are durable, but for those with another verdict. Nothing has acted on them yet."""
        if verdicts:
            batch = [one for index, one in enumerate(batch) if not isinstance(verdicts.get(index), Verdict)]
        makers, moves, done = self._makers, self._moves, self._done
        for run, change, _ in batch:
            try:
                told = change.told
                if type(told) is ActivityCompleted:  # without a call of our own: once for every step
                    try:
                        done(told)
                    except KeyboardInterrupt:
                        raise
                    except BaseException:
                        log.exception(_FAILED_ON, told.event)
                elif told:
                    for event in cast(list[Event], told):
                        self.tell(event)
                else:
                    for entry in change.entries:
                        if (make := makers.get(entry.kind)) is not None:
                            self.tell(make(run, run.facts(change), entry))
                if change.attempts or change.effects is not None:
                    self._report_more(run.facts(change), change)
                if change.move is not None and moves:
                    self.tell(_move_event(run, run.facts(change), change, self._clock))
            except Exception:
                log.exception("events of run %s are lost", run.run_id)

    def _report_more(self, facts: RunFacts, change: Change) -> None:
        """Attempts that are to be tried again, and the dead letter that the run has become."""
        for one in change.attempts if ActivityRetried in self._ears else ():
            if one.error is not None and one.next_at is not None and one.ended_at is not None:
                failure = _failure(one.error)
                took = (one.ended_at - one.started_at) / SECOND
                what = (one.name, one.seq, one.number, took, failure.kind, failure.message, one.next_at / SECOND)
                self.tell(ActivityRetried(one.ended_at / SECOND, facts, *what))
        letter = change.effects.letter if change.effects is not None else None
        if letter is not None:
            at = change.entries[-1].at if change.entries else self._clock.now()
            why = (str(letter.reason), letter.error, letter.message, letter.fingerprint)
            self.tell(LetterArrived(at / SECOND, facts, *why, letter.activity, letter.attempts))

    # -- attempts

    @property
    def on_attempt(self) -> Callable[[Call], None] | None:
        """To be called when an attempt begins; None: no middleware listens."""
        ears = self._ears.get(ActivityStarted)
        if ears is None:
            return None
        told = ears[0] if len(ears) == 1 else self.tell

        def began(call: Call) -> None:  # once for every step
            facts, pending = call.run.told or call.run.begun_facts(), call.pending
            try:
                told(ActivityStarted(call.started_at / SECOND, facts, pending.name, call.seq, call.attempt))
            except KeyboardInterrupt:
                raise
            except BaseException:
                log.exception(_FAILED_ON, ActivityStarted.event)

        return began

    @property
    def on_beats(self) -> Callable[[Call, int], None] | None:
        """To be called when an attempt has sent heartbeats; None: no middleware listens."""
        return self._attempt_beat if ActivityHeartbeat in self._ears else None

    def _attempt_beat(self, call: Call, beats: int) -> None:
        now, facts = self._clock.now() / SECOND, call.run.begun_facts()
        self.tell(ActivityHeartbeat(now, facts, call.pending.name, call.seq, call.attempt, beats))

    # -- workers

    def timed(self, commit: Commit) -> Commit:
        """The store's commit, with an event for each."""
        if BatchWritten not in self._ears:
            return commit

        async def timed(worker_id: str, changes: Sequence[Change]) -> Verdicts:
            begun = self._clock.monotonic()
            verdicts = await commit(worker_id, changes)
            took = self._clock.monotonic() - begun
            entries = sum(map(len, map(_entries, changes)))
            fenced = sum(one is Verdict.REFUSED for one in verdicts.values()) if verdicts else 0
            self.tell(BatchWritten(*self._worker(), len(changes), entries, took, fenced))
            return verdicts

        return timed

    def started(self) -> None:
        self.tell(WorkerStarted(*self._worker(), list(self._info.queues)))

    def renewed(self, runs: int, seconds: float) -> None:
        if LeaseRenewed in self._ears:
            self.tell(LeaseRenewed(*self._worker(), runs, seconds))

    def fired(self, schedule: str, runs: int, late: float) -> None:
        if ScheduleFired in self._ears:
            self.tell(ScheduleFired(*self._worker(), schedule, runs, late))

    def stopped(self) -> None:
        self.tell(WorkerStopped(*self._worker()))

    def lost(self, why: str) -> None:
        self.tell(WorkerLost(*self._worker(), why))

    def _worker(self) -> tuple[float, WorkerFacts]:
        return self._clock.now() / SECOND, WorkerFacts(self._namespace, self._info.worker_id)


def _started(run: OwnedRun, facts: RunFacts, entry: Entry) -> Event:
    start = run.started_with
    wait = (entry.at - run.created_at) / SECOND if run.created_at else None
    return RunStarted(entry.at / SECOND, facts, start.attempt, wait, start.delay / SECOND)


def _completed(_run: OwnedRun, facts: RunFacts, entry: Entry) -> Event:
    at, told = entry.at, _decode(entry.body)
    return ActivityCompleted(at / SECOND, facts, told.name, told.seq, told.attempts, (at - told.started_at) / SECOND)


def _failed(_run: OwnedRun, facts: RunFacts, entry: Entry) -> Event:
    told = _decode(entry.body)
    error, message = (told.error.kind, told.error.message) if told.error is not None else ("", "")
    took = (entry.at - told.started_at) / SECOND if told.started_at else 0.0
    return ActivityFailed(entry.at / SECOND, facts, told.name, told.seq, told.attempts, took, error, message)


def _fired(_run: OwnedRun, facts: RunFacts, entry: Entry) -> Event:
    return TimerFired(entry.at / SECOND, facts, _decode(entry.body).seq)


def _received(_run: OwnedRun, facts: RunFacts, entry: Entry) -> Event:
    told = _decode(entry.body)
    about = told.name or told.reason
    return MessageReceived(entry.at / SECOND, facts, _MESSAGES[entry.kind], about, told.headers or {})


def _child(_run: OwnedRun, facts: RunFacts, entry: Entry) -> Event:
    told = _decode(entry.body)
    return ChildClosed(entry.at / SECOND, facts, told.seq, told.error.kind if told.error is not None else "")


_MAKERS: dict[EntryKind, tuple[type[Event], Callable[[OwnedRun, RunFacts, Entry], Event]]] = {
    EntryKind.STARTED: (RunStarted, _started),
    EntryKind.ACTIVITY_DONE: (ActivityCompleted, _completed),
    EntryKind.ACTIVITY_FAILED: (ActivityFailed, _failed),
    EntryKind.TIMER_FIRED: (TimerFired, _fired),
    EntryKind.SIGNAL: (MessageReceived, _received),
    EntryKind.UPDATE: (MessageReceived, _received),
    EntryKind.CANCEL_REQUESTED: (MessageReceived, _received),
    EntryKind.CHILD_DONE: (ChildClosed, _child),
    EntryKind.CHILD_FAILED: (ChildClosed, _child),
}
"""The event of an entry, and what makes it."""


def _move_event(run: OwnedRun, facts: RunFacts, change: Change, clock: DatabaseClock) -> Event:
    """The run is not here any more: what became of it."""
    move = change.move
    assert move is not None  # noqa: S101 - asked for where it is called
    state, entries = move.state, change.entries
    if state is _COMPLETED and entries:  # as nearly all do
        at, count = entries[-1].at, change.head + len(entries) + 1
        took = at - (run.machine.started_at if change.head >= 0 else entries[0].at)
        return RunClosed(at / SECOND, facts, "completed", took / SECOND, count, "", move.reason)
    if state not in CLOSED:
        now = clock.now() / SECOND
        if state not in _BACK:
            return RunParked(now, facts, str(state), move.reason)
        return RunReleased(now, facts, None if move.wake_at is None else move.wake_at / SECOND, move.reason)
    ended = entries[-1].at if entries else clock.now()
    begun = entries[0].at if entries and entries[0].ord == 0 else run.machine.started_at
    error, message = "", move.reason
    if state is _FAILED and run.machine.outcome is not None:
        failure = run.machine.outcome.error
        if failure is not UNSET:
            error, message = failure.kind, failure.message
    count = change.head + len(entries) + 1
    return RunClosed(ended / SECOND, facts, str(state), (ended - begun) / SECOND, count, error, message)
