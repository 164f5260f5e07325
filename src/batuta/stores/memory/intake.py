"""Runs come in."""

from __future__ import annotations

from collections.abc import Sequence

from batuta.errors import AlreadyStarted
from batuta.journal.records import NewRun, StartOutcome
from batuta.stores import rules
from batuta.stores.memory.moment import Moment
from batuta.stores.memory.tables import Row


def start_many(moment: Moment, runs: Sequence[NewRun], after: NewRun | None) -> list[StartOutcome]:
    """Start each by itself. What comes `after` them is written first, so that they find it."""
    if after is None:
        return [_outcome(moment, run) for run in runs]
    if after.run_id in moment.room.rows:
        return [_again(moment, run) for run in (*runs, after)]
    last = _outcome(moment, after)
    if isinstance(last, Exception) or not last[1]:
        return [*(_outcome(moment, run) for run in runs), last]
    row = moment.room.rows[after.run_id]
    due, row.run.wake_at = row.run.wake_at, None
    outcomes = [_outcome(moment, rules.member(run, after)) for run in runs]
    row.run.awaits = len(moment.room.children.get(after.run_id, {}))
    if not row.run.awaits:
        row.run.wake_at = due
    return [*outcomes, (row.snapshot(), True)]


def _outcome(moment: Moment, new: NewRun) -> StartOutcome:
    try:
        row, is_new = find_or_begin(moment, new)
    except AlreadyStarted as error:
        return error
    return row.snapshot(), is_new


def _again(moment: Moment, new: NewRun) -> StartOutcome:
    """What a start came to when its batch was written the first time: nothing is begun now."""
    known, taken = moment.room.rows.get(new.run_id), moment.room.current_row(new.id)
    if known is not None:
        return known.snapshot(), True
    if taken is None:
        return _outcome(moment, new)
    return (taken.snapshot(), False) if new.if_exists in rules.GIVES else AlreadyStarted(new.id, taken.run.state)


def find_or_begin(moment: Moment, new: NewRun) -> tuple[Row, bool]:
    """The run of a start, and whether it is new. Raises AlreadyStarted."""
    room = moment.room
    known = room.rows.get(new.run_id)
    if known is not None:
        return known, True  # the same start, written again because its first answer was lost
    waiting = room.debounced.get(new.debounce)
    if waiting is not None:
        _replace(moment, waiting, new)
        return waiting, False
    taken = room.current_row(new.id)
    if taken is None or rules.may_replace(new, not taken.is_open, taken.run.created_at, moment.now):
        return moment.begin(new), True
    if new.if_exists in rules.GIVES:
        return taken, False
    raise AlreadyStarted(new.id, taken.run.state)


def _replace(moment: Moment, row: Row, new: NewRun) -> None:
    """Let a run that nobody has begun do what the new one is to do."""
    run = row.run
    run.tags, run.memo, run.priority = new.tags, new.memo, new.priority
    run.expires_at = rules.expiry_of(new, moment.now)
    run.wake_at, run.deadline = rules.put_off(new, run.created_at, moment.now)
    moment.replace_start(row, new)
    moment.hint.due = True
