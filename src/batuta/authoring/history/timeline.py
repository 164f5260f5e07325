"""The timeline of a run: what it waited for and did, as segments of time. No I/O."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from datetime import datetime
from operator import itemgetter

from msgspec import Struct

from batuta.authoring.history.steps import (
    Draft,
    Moment,
    Segment,
    SegmentKind,
    Span,
    Step,
    StepKind,
    as_segments,
    as_step,
    moment_of,
    read_steps,
)
from batuta.clock import SECOND, as_datetime
from batuta.errors import PayloadSealed
from batuta.ids import RunId
from batuta.journal.entries import Entry, EntryKind
from batuta.journal.records import Attempt, Run, RunKind
from batuta.journal.states import PARKED, RunState

_FIRST = (
    SegmentKind.PARKED,
    SegmentKind.PAUSED,
    SegmentKind.RUNNING,
    SegmentKind.LOST,
    SegmentKind.QUEUED,
    SegmentKind.BACKOFF,
    SegmentKind.OUTSIDE,
    SegmentKind.CHILD,
    SegmentKind.ASLEEP,
    SegmentKind.DELAYED,
)
"""If a run does several things at once, the first of these counts. If it does none of them, it waits for a message."""


class Timeline(Struct, kw_only=True):
    """One run, as of a moment. Of a chain this run alone: `continued_as` is the next."""

    id: str
    run_id: RunId
    workflow: str
    kind: RunKind
    state: RunState
    reason: str
    """As in `Description`: also why no worker takes it."""
    queue: str
    as_of: datetime
    created_at: datetime
    began_at: datetime | None = None
    """Its first turn; None when it has not begun."""
    closed_at: datetime | None
    forked_from: RunId | None = None
    """The run that it was made from: what that one did are the steps that are `kept`."""
    continued_as: RunId | None = None
    segments: list[Segment] = []
    """What the run itself did, without gaps from its creation on."""
    seconds: dict[SegmentKind, float] = {}
    """How long it was at what."""
    steps: list[Step] = []
    sealed: str = ""
    """Why there are neither: its journal cannot be read here."""


def timeline_of(
    run: Run, entries: Sequence[Entry], attempts: Sequence[Attempt], now: int, *, before: Sequence[Attempt] = ()
) -> Timeline:
    """From the run's row, its journal and its attempts. `before`: as of `read_steps`."""
    moment = moment_of(run, entries, attempts, now)
    try:
        drafts = read_steps(entries, attempts, moment, before)
    except PayloadSealed as error:
        return sealed_timeline(run, now, error)
    lane = _lane(run, entries, drafts, moment)
    _add_waits(entries, drafts, lane)
    found = _untold(run, now)
    found.began_at = as_datetime(_began(entries))
    found.segments, found.seconds = as_segments(lane), _sums(lane, now)
    found.steps = [as_step(step, moment) for step in drafts]
    return found


def sealed_timeline(run: Run, now: int, error: PayloadSealed) -> Timeline:
    """For a run whose journal cannot be read: the facts of its row."""
    found = _untold(run, now)
    found.sealed = str(error)
    return found


def _untold(run: Run, now: int) -> Timeline:
    return Timeline(
        id=run.id,
        run_id=run.run_id,
        workflow=run.name,
        kind=run.kind,
        state=run.state,
        reason=run.reason,
        queue=run.queue,
        as_of=as_datetime(now),
        created_at=as_datetime(run.created_at),
        closed_at=as_datetime(run.closed_at),
        forked_from=run.forked_from,
    )


def _began(entries: Sequence[Entry]) -> int | None:
    """Its first turn; for a forked run, when it was made."""
    begun = [entry.at for entry in entries if entry.kind in (EntryKind.STARTED, EntryKind.FORKED)]
    return begun[-1] if begun else None


def _lane(run: Run, entries: Sequence[Entry], drafts: Sequence[Draft], moment: Moment) -> list[Span]:
    """What the run itself did, without gaps."""
    began = _began(entries)
    spans = _until_due(run, moment) if began is None else _until_begun(run, drafts, began)
    spans += [span for step in drafts if step.kind is not StepKind.UPDATE for span in step.spans]
    spans += [Span(SegmentKind.PAUSED, *pause) for pause in moment.pauses]
    if run.state in PARKED:
        spans.append(Span(SegmentKind.PARKED, entries[-1].at if entries else run.created_at, None))
    return _swept(spans, run.created_at if began is None else min(run.created_at, began), moment)


def _until_due(run: Run, moment: Moment) -> list[Span]:
    """For a run that has not begun. A run that waits for others to end is not due."""
    due = run.resume_at if run.state is RunState.PAUSED else run.wake_at
    due = moment.end if run.awaits else min(max(run.created_at, due or 0), moment.end)
    return [Span(SegmentKind.DELAYED, run.created_at, due), Span(SegmentKind.QUEUED, due, moment.end)]


def _until_begun(run: Run, drafts: Sequence[Draft], began: int) -> list[Span]:
    """Until the first turn. A run that follows a failed one begins after a backoff."""
    start = drafts[0]
    due = min(run.created_at + (0 if start.kept else start.delay), began)
    kind = SegmentKind.BACKOFF if start.tries > 1 else SegmentKind.DELAYED
    return [Span(kind, run.created_at, due), Span(SegmentKind.QUEUED, due, began)]


def _add_waits(entries: Sequence[Entry], drafts: Iterable[Draft], lane: Iterable[Span]) -> None:
    """To each signal, how long the run waited for nothing else before it came."""
    waits = [(one.start, one.end or entries[-1].at) for one in lane if one.kind is SegmentKind.WAITING]
    for step in drafts:
        if step.kind is not StepKind.SIGNAL or step.kept or not step.entry:
            continue
        begin = entries[step.entry - 1].at
        place = bisect_right(waits, begin, key=itemgetter(1))  # the first that ends later
        while place < len(waits) and waits[place][0] < step.at:
            step.spans.append(Span(SegmentKind.WAITING, max(begin, waits[place][0]), min(step.at, waits[place][1])))
            place += 1


def _swept(spans: Iterable[Span], start: int, moment: Moment) -> list[Span]:
    """One thing at a time, from `start` to the end."""
    changes: list[tuple[int, int, int]] = [(moment.end, 0, 0)]
    for span in spans:
        first, last = max(span.start, start), moment.end if span.end is None else min(span.end, moment.end)
        if last > first:
            rank = _FIRST.index(span.kind)
            changes += [(first, rank, 1), (last, rank, -1)]
    under_way = [0] * len(_FIRST)
    lane: list[Span] = []
    cursor = start
    for at, rank, change in sorted(changes):
        if at > cursor:
            kind = next((_FIRST[place] for place, count in enumerate(under_way) if count), SegmentKind.WAITING)
            if lane and lane[-1].kind is kind:
                lane[-1].end = at
            else:
                lane.append(Span(kind, cursor, at))
            cursor = at
        under_way[rank] += change
    if moment.is_open and lane:
        lane[-1].end = None
    return lane


def _sums(lane: Iterable[Span], now: int) -> dict[SegmentKind, float]:
    sums: dict[SegmentKind, float] = {}
    for span in lane:
        took = (now if span.end is None else span.end) - span.start
        sums[span.kind] = sums.get(span.kind, 0.0) + took / SECOND
    return sums
