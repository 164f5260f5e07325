"""The steps of a run, and where the time of each went, computed from its journal and its attempts. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType, field, json

from batuta.authoring.backend import AttemptView
from batuta.authoring.history.compensations import COMPENSATE, Registered, covered, handed_over
from batuta.clock import SECOND, as_datetime
from batuta.journal.entries import Body, Command, CommandKind, Entry, EntryKind, Forked, decode_body
from batuta.journal.failures import Failure
from batuta.journal.kinds import CALL_ANSWERS, CLOSING_COMMANDS, CLOSING_ENTRIES, FAILURES
from batuta.journal.records import LOSSES, PAUSES, Attempt, Run
from batuta.journal.states import CLOSED


class StepKind(StrEnum):
    """The kind of a step. `start` has the run's arguments and `end` its outcome; `cancel` asked it to end."""

    START = "start"
    ACTIVITY = "activity"
    TIMER = "timer"
    CHILD = "child"
    SEND = "send"
    SIGNAL = "signal"
    UPDATE = "update"
    PUBLISH = "publish"
    SIDE_EFFECT = "side_effect"
    PATCH = "patch"
    UNDO = "undo"
    """A compensation that a saga registered: open, done, failed, or dropped because the saga ended well."""
    CANCEL = "cancel"
    FORK = "fork"
    """The run that this one was made from did the steps before."""
    END = "end"


class StepState(StrEnum):
    OPEN = "open"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    """The code no longer wanted it; for the end: the run was cancelled."""
    DROPPED = "dropped"
    """The run went on, or ended, without it."""


class SegmentKind(StrEnum):
    """Where time goes."""

    DELAYED = "delayed"
    """It was not to begin yet."""
    QUEUED = "queued"
    """It waits for a worker, a slot there, or the limits of its queue."""
    RUNNING = "running"
    """An attempt is at work."""
    LOST = "lost"
    """Its worker died before it answered. Lasts until that was noticed: then the activity waits to begin again."""
    BACKOFF = "backoff"
    """An attempt failed, and the next is not due."""
    OUTSIDE = "outside"
    """An answer is to come from outside."""
    CHILD = "child"
    """Another run is at it."""
    ASLEEP = "asleep"
    """A timer runs."""
    WAITING = "waiting"
    """For a message: nothing else is under way."""
    PAUSED = "paused"
    """An operator holds the run."""
    PARKED = "parked"
    """The run is stopped, with a reason."""


class Segment(Struct, kw_only=True):
    """A piece of time."""

    kind: SegmentKind
    start: datetime
    end: datetime | None
    """None: it goes on."""
    attempt: int = 0
    """The number of the attempt that ran, was lost, or failed before a backoff."""


class Step(Struct, kw_only=True):
    """One thing that a run did, requested or received."""

    kind: StepKind
    name: str = ""
    seq: int = 0
    """The number of its command; 0 of what came from outside."""
    entry: int
    """The journal entry that holds it."""
    answer: int | None = None
    """The entry that ended it."""
    state: StepState = StepState.DONE
    input: Any = None
    """Its input; for a timer its seconds."""
    output: Any = None
    error: Failure | None = None
    to: str = ""
    """The id of the run that it went to, or that executes it."""
    key: str = ""
    """For an activity: the key that each attempt gets, to pass on."""
    began_at: datetime
    """When it was requested; for a step that was pending when the run was forked, the original time."""
    ended_at: datetime | None = None
    tries: int = 0
    attempts: list[AttemptView] = []
    """Known attempts. For an activity in another queue only the last one; the run `to` has the others."""
    segments: list[Segment] = []
    kept: bool = False
    """Another run did it, from which this one was made. Its segments are there."""

    @property
    def seconds(self) -> float | None:
        """How long it took, from when it was asked for; None while it is open."""
        return None if self.ended_at is None else (self.ended_at - self.began_at).total_seconds()


class Span(Struct):
    """A segment in microseconds."""

    kind: SegmentKind
    start: int
    end: int | None
    attempt: int = 0


class Draft(Struct):
    """A step while its journal is read, in microseconds."""

    kind: StepKind
    name: str
    seq: int
    entry: int
    at: int
    since: int
    """When it was asked for or, if it was pending then, when the run was made from another."""
    base: int
    """The entry of that."""
    state: StepState = StepState.DONE
    input: Raw | UnsetType = UNSET
    output: Raw | UnsetType = UNSET
    error: Failure | None = None
    to: str = ""
    key: str = ""
    answer: int | None = None
    ended: int | None = None
    tries: int = 0
    started: int = 0
    due: int = 0
    """Of a timer."""
    delay: int = 0
    """Of the start: until the run could begin."""
    kept: bool = False
    rows: list[Attempt] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)

    @property
    def is_call(self) -> bool:
        return self.kind is StepKind.ACTIVITY


class Moment(Struct):
    """Facts about the run besides its journal, at the time of the look."""

    now: int
    is_open: bool
    worker: str | None
    """Its owner."""
    pauses: list[tuple[int, int]]
    losses: list[int]
    """When it was taken from dead workers."""
    end: int
    """When it ended, or `now`."""


_SETTLES = CALL_ANSWERS | {EntryKind.TIMER_FIRED, EntryKind.REFUSED}
_CALLS = {
    CommandKind.ACTIVITY: StepKind.ACTIVITY,
    CommandKind.CHILD: StepKind.CHILD,
    CommandKind.TIMER: StepKind.TIMER,
}
_AT_ONCE = {
    CommandKind.SEND: StepKind.SEND,
    CommandKind.PUBLISH: StepKind.PUBLISH,
    CommandKind.SIDE_EFFECT: StepKind.SIDE_EFFECT,
    CommandKind.PATCH: StepKind.PATCH,
}
_END_STATES = {
    "complete": StepState.DONE,
    "continue": StepState.DONE,
    "cancelled": StepState.CANCELLED,
}
"""Others are failures: the code's own, terminated, timed out."""
_MESSAGES = {
    EntryKind.SIGNAL: StepKind.SIGNAL,
    EntryKind.UPDATE: StepKind.UPDATE,
    EntryKind.CANCEL_REQUESTED: StepKind.CANCEL,
}
_LAST = {
    StepKind.TIMER: SegmentKind.ASLEEP,
    StepKind.CHILD: SegmentKind.CHILD,
    StepKind.UPDATE: SegmentKind.RUNNING,
}
"""Where the time of these steps goes, from beginning to end."""
_LOST_WITH = (SegmentKind.QUEUED, SegmentKind.RUNNING)
_HELD_UP = (SegmentKind.QUEUED, SegmentKind.BACKOFF)
"""What a pause interrupts; calls in flight finish."""
_KEPT = "kept:"
"""How the id of a message begins with which a fork brings an answer along."""


def moment_of(run: Run, entries: Sequence[Entry], attempts: Sequence[Attempt], now: int) -> Moment:
    """When the run was paused or lost its worker, and until when its steps are looked at."""
    losses = sorted(one.started_at for one in attempts if one.seq == LOSSES)
    pauses = [(one.started_at, one.ended_at or now) for one in attempts if one.seq == PAUSES and one.number]
    if run.paused_at is not None:
        pauses.append((run.paused_at, now))
    is_open = run.state not in CLOSED
    end = now if is_open else entries[-1].at if entries else run.closed_at or now
    return Moment(now, is_open, run.owner, pauses, losses, end)


def read_steps(
    entries: Sequence[Entry], attempts: Iterable[Attempt], moment: Moment, before: Iterable[Attempt] = ()
) -> list[Draft]:
    """Every step, in order, with where its time went.

    `before`: attempts of the runs that it was made from. Raises PayloadSealed.
    """
    reader = _Reader()
    for entry in entries:
        reader.read(entry, decode_body(entry))
    for row in attempts:
        if row.number and (call := reader.calls.get(row.seq)) is not None:
            call.rows.append(row)
    for row in before:
        if row.number and (call := reader.calls.get(row.seq)) is not None and call.kept:
            call.rows.append(row)
    times = [entry.at for entry in entries]
    for step in reader.steps:
        _finish(step, times, moment)
    return reader.steps


def steps_of(
    run: Run, entries: Sequence[Entry], attempts: Sequence[Attempt], now: int, *, before: Sequence[Attempt] = ()
) -> list[Step]:
    """The same for people."""
    moment = moment_of(run, entries, attempts, now)
    return [as_step(draft, moment) for draft in read_steps(entries, attempts, moment, before)]


class _Reader:
    """Goes through a journal."""

    def __init__(self) -> None:
        self.steps: list[Draft] = []
        self.calls: dict[int, Draft] = {}
        """By the number of their command."""
        self._key_base, self._is_elsewhere = "", False
        """For keys of activities; whether the run itself is a call, whose key came with it."""
        self._updates: dict[str, Draft] = {}
        self._undoing: dict[int, list[int]] = {}
        """Compensations, by the child that calls them."""

    def read(self, entry: Entry, body: Body) -> None:
        kind = entry.kind
        if kind is EntryKind.STARTED:
            step = self._add(StepKind.START, "", entry, body.value)
            if body.start is not UNSET:
                step.name, step.delay = body.start.name, body.start.delay
                self._key_base, self._is_elsewhere = body.start.key_base, body.start.options is not UNSET
                step.tries = body.start.attempt if body.start.attempt > 1 else 0
        elif kind in _MESSAGES:
            self._hear(entry, body)
        elif kind in _SETTLES:
            self._settle(entry, body)
        elif kind is EntryKind.FORKED and body.forked is not UNSET:
            self._take_over(entry, body, body.forked)
        elif kind in CLOSING_ENTRIES:
            self._end(str(kind), entry).input = _text(body.reason)
        for command in body.commands:
            self._issue(entry, command)

    def _add(self, kind: StepKind, name: str, entry: Entry, given: Raw | UnsetType = UNSET, seq: int = 0) -> Draft:
        step = Draft(kind, name, seq, entry.ord, entry.at, entry.at, entry.ord, input=given)
        step.ended, step.answer = entry.at, entry.ord
        self.steps.append(step)
        return step

    def _begin(self, step: Draft) -> None:
        step.state, step.ended, step.answer = StepState.OPEN, None, None

    def _end(self, how: str, entry: Entry, seq: int = 0) -> Draft:
        step = self._add(StepKind.END, how, entry, seq=seq)
        step.state = _END_STATES.get(how, StepState.FAILED)
        return step

    def _hear(self, entry: Entry, body: Body) -> None:
        given = body.value if body.value is not UNSET else _text(body.reason)
        step = self._add(_MESSAGES[entry.kind], body.name, entry, given)
        if entry.kind is EntryKind.UPDATE:
            self._begin(step)
            self._updates[body.message_id] = step

    def _settle(self, entry: Entry, body: Body) -> None:
        step = self.calls.get(body.seq)
        if step is None or (step.state is not StepState.OPEN and step.kind is not StepKind.SEND):
            return
        step.state = StepState.FAILED if entry.kind in FAILURES else StepState.DONE
        step.answer, step.ended = entry.ord, entry.at
        step.output, step.error = body.value, None if body.error is UNSET else body.error
        step.tries, step.started = body.attempts, body.started_at
        step.kept = body.message_id.startswith(_KEPT)
        if (seqs := self._undoing.pop(body.seq, None)) is not None:
            self._settle_undo(entry, seqs, step.state)

    def _settle_undo(self, entry: Entry, seqs: Iterable[int], state: StepState) -> None:
        """Compensations were called, or are not needed. Which of them failed is told by the run that called them."""
        for seq in seqs:
            if (undo := self.calls.get(seq)) is not None:
                undo.state, undo.answer, undo.ended = state, entry.ord, entry.at

    def _take_over(self, entry: Entry, body: Body, fork: Forked) -> None:
        self._key_base = fork.key_base or self._key_base
        for step in self.steps:
            if step.state is StepState.OPEN:
                step.since, step.base = entry.at, entry.ord
                if step.seq in fork.inputs:
                    step.input, step.key = fork.inputs[step.seq], self._key(step)
            else:
                step.kept = True
        self._add(StepKind.FORK, fork.source_id, entry, _text(body.reason)).to = fork.source_id

    def _issue(self, entry: Entry, command: Command) -> None:
        kind = command.kind
        if kind in _CALLS:
            step = self.calls[command.seq] = self._add(_CALLS[kind], command.name, entry, command.value, command.seq)
            self._begin(step)
            step.to, step.key = command.to, self._key(step)
            if kind is CommandKind.CHILD and command.name == COMPENSATE and command.value is not UNSET:
                self._undoing[command.seq] = handed_over(command.value)
            if kind is CommandKind.TIMER and command.value is not UNSET:
                step.due = entry.at + int(json.decode(command.value))
        elif kind in _AT_ONCE:
            step = self.calls[command.seq] = self._add(_AT_ONCE[kind], command.name, entry, command.value, command.seq)
            step.to = command.to
            step.error = None if command.error is UNSET else command.error
        elif kind is CommandKind.UNDO:
            step = self.calls[command.seq] = self._add(StepKind.UNDO, command.name, entry, seq=command.seq)
            self._begin(step)
            if command.value is not UNSET:
                step.input = json.decode(command.value, type=Registered).args
        elif kind is CommandKind.KEEP and command.value is not UNSET:
            self._settle_undo(entry, covered(command.value), StepState.DROPPED)
        elif kind in CLOSING_COMMANDS:
            step = self._end(str(kind), entry, command.seq)
            step.output, step.error = command.value, None if command.error is UNSET else command.error
        elif kind is CommandKind.CANCEL:
            target = self.calls.get(command.target)
            if target is not None and target.state is StepState.OPEN and target.is_call:
                target.state, target.answer, target.ended = StepState.CANCELLED, entry.ord, entry.at
        elif kind is CommandKind.ANSWER and command.to in self._updates:
            self._answer(self._updates.pop(command.to), entry, command)

    def _key(self, call: Draft) -> str:
        if not call.is_call:
            return ""
        return self._key_base if self._is_elsewhere else f"{self._key_base}:{call.seq}:{call.name}"

    def _answer(self, update: Draft, entry: Entry, command: Command) -> None:
        update.state = StepState.DONE if command.error is UNSET else StepState.FAILED
        update.answer, update.ended, update.output = entry.ord, entry.at, command.value
        update.error = None if command.error is UNSET else command.error


# -- where the time went


def _finish(step: Draft, times: Sequence[int], moment: Moment) -> None:
    """Its spans, and what became of it if nothing answered it."""
    if step.state is StepState.OPEN and step.kind is StepKind.TIMER:
        _look_at_timer(step, times, moment)
    elif step.state is StepState.OPEN and not moment.is_open:
        step.state, step.ended = StepState.DROPPED, moment.end
    if step.kept:
        return
    if step.is_call:
        _add_attempts(step, moment)
        if not step.to:  # else the run that executes it knows
            step.spans = _cut_by_losses(step, moment)
        step.spans = _cut_by_pauses(step.spans, moment)
    elif step.kind in _LAST:
        _put(step, _LAST[step.kind], step.since, step.ended)


def _look_at_timer(step: Draft, times: Sequence[int], moment: Moment) -> None:
    """A timer that the code no longer waits for writes nothing. It lasted at least until the next turn."""
    if not moment.is_open or times[-1] > step.due:
        step.state = StepState.DROPPED
        step.ended = min(step.due, times[step.base + 1] if step.base + 1 < len(times) else moment.end)


def _add_attempts(step: Draft, moment: Moment) -> None:
    if step.to:
        _add_elsewhere(step)
        return
    cursor = step.since
    for row in step.rows:
        if row.ended_at is None or (step.tries and row.number >= step.tries):
            continue
        begun, ended = max(cursor, row.started_at), max(cursor, row.ended_at)  # a run before may have made it
        _put(step, SegmentKind.QUEUED, cursor, begun)
        _put(step, _at_work(row), begun, ended, row.number)
        due = max(ended, row.next_at or 0)
        cursor = due if step.ended is None else min(due, max(step.ended, ended))
        goes_on = step.ended is None and due > moment.now
        _put(step, SegmentKind.BACKOFF, ended, None if goes_on else cursor, row.number)
        if goes_on:
            return
    if step.tries:
        _add_last(step, cursor, step.started, step.tries)
    elif step.rows and (row := step.rows[-1]).ended_at is None:
        _add_last(step, cursor, row.started_at, row.number)
    elif step.ended is None and moment.worker is None:
        _put(step, SegmentKind.QUEUED, cursor, None)
    else:  # not noted, as most are not: taken for begun
        _put(step, SegmentKind.RUNNING, cursor, step.ended, len(step.rows) + 1)


def _add_last(step: Draft, cursor: int, started: int, number: int) -> None:
    """The attempt that was the last one, so far. Without a start it never began."""
    if not started:
        _put(step, SegmentKind.QUEUED, cursor, step.ended)
        return
    begun = max(cursor, started)
    row = next((one for one in step.rows if one.number == number), None)
    _put(step, SegmentKind.QUEUED, cursor, begun)
    _put(step, SegmentKind.RUNNING if row is None else _at_work(row), begun, step.ended, number)


def _add_elsewhere(step: Draft) -> None:
    """Another run executes it, which knows of its attempts."""
    if step.ended is None or not step.started:
        _put(step, SegmentKind.CHILD, step.since, step.ended)
        return
    begun = max(step.since, step.started)
    _put(step, SegmentKind.QUEUED if step.tries == 1 else SegmentKind.CHILD, step.since, begun)
    _put(step, SegmentKind.RUNNING, begun, step.ended, step.tries)


def _at_work(row: Attempt) -> SegmentKind:
    return SegmentKind.OUTSIDE if row.outside else SegmentKind.RUNNING


def _put(step: Draft, kind: SegmentKind, start: int, end: int | None, attempt: int = 0) -> None:
    if end is None or end > start:
        step.spans.append(Span(kind, start, end, attempt))


def _cut_by_losses(step: Draft, moment: Moment) -> list[Span]:
    """What was at work, or about to begin, when its worker died is lost until it was taken from it."""
    spans = step.spans
    for loss in moment.losses:
        cut: list[Span] = []
        for one in spans:
            if one.kind in _LOST_WITH and one.start < loss and (one.end is None or loss <= one.end):
                number = 1 + max((row.number for row in step.rows if (row.ended_at or loss) < loss), default=0)
                cut.append(Span(SegmentKind.LOST, one.start, loss, number))
                if one.end is None or loss < one.end:
                    cut.append(Span(one.kind, loss, one.end, one.attempt))
            else:
                cut.append(one)
        spans = cut
    return spans


def _cut_by_pauses(spans: list[Span], moment: Moment) -> list[Span]:
    """What waited while the run was held waited for that."""
    for pause in moment.pauses:
        cut: list[Span] = []
        for one in spans:
            for part in _cut(one, *pause, moment.now) if one.kind in _HELD_UP else [one]:
                if cut and cut[-1].kind is part.kind is SegmentKind.PAUSED and cut[-1].end == part.start:
                    cut[-1].end = part.end
                else:
                    cut.append(part)
        spans = cut
    return spans


def _cut(span: Span, begin: int, end: int, now: int) -> list[Span]:
    last = now if span.end is None else span.end
    held = Span(SegmentKind.PAUSED, max(span.start, begin), min(last, end))
    if held.end is None or held.start >= held.end:
        return [span]
    parts = [Span(span.kind, span.start, held.start, span.attempt), held]
    if held.end < last:
        parts.append(Span(span.kind, held.end, span.end, span.attempt))
    elif span.end is None:
        held.end = None  # it is held now
    return parts if span.start < held.start else parts[1:]


# -- for people


def as_segments(spans: Iterable[Span]) -> list[Segment]:
    return [
        Segment(kind=one.kind, start=as_datetime(one.start), end=as_datetime(one.end), attempt=one.attempt)
        for one in spans
    ]


def as_step(draft: Draft, moment: Moment) -> Step:
    """With its times as datetimes, and its payloads as JSON's own types."""
    is_timer = draft.kind is StepKind.TIMER
    return Step(
        kind=draft.kind,
        name=draft.name,
        seq=draft.seq,
        entry=draft.entry,
        answer=draft.answer,
        state=draft.state,
        input=(draft.due - draft.at) / SECOND if is_timer else _value(draft.input),
        output=_value(draft.output),
        error=draft.error,
        to=draft.to,
        key=draft.key,
        began_at=as_datetime(draft.since),
        ended_at=as_datetime(draft.ended),
        tries=draft.tries or (max((row.number for row in draft.rows), default=0) if draft.is_call else 0),
        attempts=attempts_of(draft, moment) if draft.is_call else [],
        segments=as_segments(draft.spans),
        kept=draft.kept,
    )


def attempts_of(call: Draft, moment: Moment) -> list[AttemptView]:
    """Every recorded attempt, and the one that gave the answer."""
    rows = [row for row in call.rows if not call.tries or row.number < call.tries]
    found = [_view(row, call, moment) for row in rows]
    found += [_lost(span, call) for span in call.spans if span.kind is SegmentKind.LOST]
    found.sort(key=lambda one: one.number)
    if call.tries and call.started and call.ended is not None:
        noted = next((row for row in call.rows if row.number == call.tries), None)
        last = Attempt(seq=call.seq, number=call.tries, started_at=call.started, ended_at=call.ended)
        last.error = None if call.error is None else json.encode(call.error).decode()
        last.details = None if noted is None else noted.details
        found.append(_view(last, call, moment))
    return found


def _lost(span: Span, call: Draft) -> AttemptView:
    started, ended = as_datetime(span.start), as_datetime(span.end)
    return AttemptView(seq=call.seq, number=span.attempt, started_at=started, ended_at=ended, lost=True)


def _view(row: Attempt, call: Draft, moment: Moment) -> AttemptView:
    """An attempt that was under way when its call ended has ended with it."""
    ended = call.ended if row.ended_at is None else row.ended_at
    in_flight = ended is None
    return AttemptView(
        seq=row.seq,
        number=row.number,
        started_at=as_datetime(row.started_at),
        ended_at=as_datetime(ended),
        next_at=as_datetime(row.next_at),
        error=row.error,
        details=row.details,
        outside=row.outside and in_flight,
        worker=moment.worker if in_flight and not row.outside else None,
    )


def _value(data: Raw | UnsetType) -> Any:
    return None if data is UNSET else json.decode(data)


def _text(reason: str) -> Raw | UnsetType:
    return Raw(json.encode(reason)) if reason else UNSET
