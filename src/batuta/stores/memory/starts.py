"""Runs come in."""

from __future__ import annotations

from collections.abc import Sequence

from batuta.errors import AlreadyStarted, WrongWorkflow
from batuta.journal.records import NewRun, StartOutcome
from batuta.stores.contract import rules
from batuta.stores.memory.tables import Row
from batuta.stores.memory.unit_of_work import UnitOfWork


def start_many(unit: UnitOfWork, runs: Sequence[NewRun], after: NewRun | None) -> list[StartOutcome]:
    """Start each separately. `after` is written first, so that they find it."""
    if after is None:
        return [_outcome(unit, run) for run in runs]
    if after.run_id in unit.tables.rows:
        return [_again(unit, run) for run in (*runs, after)]
    last = _outcome(unit, after)
    if isinstance(last, Exception) or not last[1]:
        return [*(_outcome(unit, run) for run in runs), last]
    row = unit.tables.rows[after.run_id]
    due, row.run.wake_at = row.run.wake_at, None
    outcomes = [_outcome(unit, rules.member(run, after)) for run in runs]
    row.run.awaits = len(unit.tables.open_children(after.run_id))
    if not row.run.awaits:
        row.run.wake_at = due
    return [*outcomes, (row.snapshot(), True)]


def _outcome(unit: UnitOfWork, new: NewRun) -> StartOutcome:
    try:
        row, is_new = find_or_begin(unit, new)
    except (AlreadyStarted, WrongWorkflow, rules.NothingWaits) as error:
        return error
    return row.snapshot(), is_new


def _again(unit: UnitOfWork, new: NewRun) -> StartOutcome:
    """The outcome of a start whose batch was written before: nothing begins now."""
    known, taken = unit.tables.rows.get(new.run_id), unit.tables.current_row(new.id)
    if known is not None:
        return known.snapshot(), True
    if taken is None:
        return _outcome(unit, new)
    return rules.taken_by(new, taken.snapshot())


def find_or_begin(unit: UnitOfWork, new: NewRun) -> tuple[Row, bool]:
    """The run of a start, and whether it is new. Raises AlreadyStarted, WrongWorkflow."""
    room = unit.tables
    known = room.rows.get(new.run_id)
    if known is not None:
        return known, True  # the same start, written again because its first answer was lost
    waiting = room.debounced.get(new.debounce)
    if waiting is not None:
        if new.instead in (None, waiting.run.run_id):
            _replace(unit, waiting, new)
        return waiting, False
    rules.refuse_alone(new)
    taken = room.current_row(new.id)
    if taken is None or rules.may_replace(new, not taken.is_open, taken.run.created_at, unit.now):
        return unit.begin(new), True
    rules.started(rules.taken_by(new, taken.run))
    return taken, False


def _replace(unit: UnitOfWork, row: Row, new: NewRun) -> None:
    """Let a run that has not begun do the new work."""
    run = row.run
    run.tags, run.memo, run.priority = new.tags, new.memo, new.priority
    run.expires_at = rules.expiry_of(new, unit.now)
    run.wake_at, run.deadline = rules.put_off(new, run.created_at, unit.now)
    unit.replace_start(row, new)
    unit.hint.due = True
