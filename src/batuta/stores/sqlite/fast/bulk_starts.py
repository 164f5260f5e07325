"""Many starts in one transaction."""

from __future__ import annotations

from collections.abc import Sequence

from batuta.errors import AlreadyStarted, BadData, WrongWorkflow
from batuta.journal.records import NewRun, StartOutcome
from batuta.stores.contract import rules
from batuta.stores.sqlite.cross_run_effects import deadline_of
from batuta.stores.sqlite.database.connection import Q
from batuta.stores.sqlite.database.rows import OWN_OF_MESSAGE, OWN_OF_RUN, Row, message_row, new_run_row, run_of
from batuta.stores.sqlite.database.unit_of_work import UnitOfWork
from batuta.stores.sqlite.fast.multi_row import execute_alike, execute_many
from batuta.stores.sqlite.queues import note_keyed
from batuta.stores.sqlite.starts import start

_REFUSALS: tuple[type[AlreadyStarted | WrongWorkflow | rules.NothingWaits], ...] = (
    AlreadyStarted,
    WrongWorkflow,
    rules.NothingWaits,
)
PIECE = 500
"""Runs that are written together; if one of them conflicts, they are written one by one."""


def start_many(unit: UnitOfWork, runs: Sequence[NewRun], after: NewRun | None) -> list[StartOutcome]:
    """Start each separately: a refused start leaves nothing, and the others stay."""
    if after is None:
        return _start_all(unit, runs)
    if unit.finds("created_at", (unit.namespace, after.run_id.bytes)):
        unit.hint.due = True  # the first hint may have been lost together with the answer
        return [_again(unit, new) for new in (*runs, after)]
    # Written first, so that the others find it.
    last = _start_one(unit, after)
    if isinstance(last, Exception) or not last[1]:
        return [*_start_all(unit, runs), last]
    outcomes = _start_all(unit, [rules.member(new, after) for new in runs])
    unit.change("await_members", {"namespace": unit.namespace, "run_id": after.run_id.bytes})
    unit.change("hold_back", (unit.namespace, after.run_id.bytes))
    return [*outcomes, (unit.run(after.run_id), True)]


def _again(unit: UnitOfWork, new: NewRun) -> StartOutcome:
    """The outcome of a start whose batch was written before: nothing begins now."""
    same = unit.row("run_by_run_id", (unit.namespace, new.run_id.bytes))
    if same is not None:
        return run_of(same), True
    row = unit.row("run_by_id", (unit.namespace, new.id))
    if row is None:
        return _start_one(unit, new)
    return rules.taken_by(new, run_of(row))


def _start_all(unit: UnitOfWork, runs: Sequence[NewRun]) -> list[StartOutcome]:
    outcomes: list[StartOutcome] = []
    for first in range(0, len(runs), PIECE):
        piece = runs[first : first + PIECE]
        together = _start_together(unit, piece) if len(piece) > 1 else None
        if together is None:
            together = [_start_one(unit, new) for new in piece]
        outcomes += together
    return outcomes


def _start_one(unit: UnitOfWork, new: NewRun) -> StartOutcome:
    return unit.attempt(lambda: start(unit, new), _REFUSALS)


def _start_together(unit: UnitOfWork, runs: Sequence[NewRun]) -> list[StartOutcome] | None:
    """Start all of them with few statements. None, and nothing is written, unless every one is new and good."""
    if any(new.debounce for new in runs):
        return None
    deadlines = [deadline_of(unit, new) for new in runs]
    if isinstance(unit.attempt(lambda: _insert(unit, runs, deadlines)), BadData):
        return None
    unit.hint.due = True
    return [(rules.unowned(new, unit.now, deadline), True) for new, deadline in zip(runs, deadlines, strict=True)]


def _insert(unit: UnitOfWork, runs: Sequence[NewRun], deadlines: Sequence[int | None]) -> None:
    rows = [
        new_run_row(unit.namespace, new, unit.now, deadline, epoch=0, head=-1, owner=None)
        for new, deadline in zip(runs, deadlines, strict=True)
    ]
    if _execute(unit, "insert_run", rows, OWN_OF_RUN) != len(rows):
        raise BadData("one of the runs, or its id, exists already")
    messages = [message_row(unit.namespace, rules.chain_of(new), rules.start_message(new), unit.now) for new in runs]
    _execute(unit, "insert_message", messages, OWN_OF_MESSAGE)
    note_keyed(unit, runs)


def _execute(unit: UnitOfWork, name: str, rows: list[Row], own: int) -> int:
    """In the order in which they are given: of runs that are due at one time the first is claimed first."""
    common = rows[0][:-own]
    if any(row[:-own] != common for row in rows):
        return execute_many(unit.executor, Q[name], rows)
    values = [value for row in rows for value in row[-own:]]
    return len(rows) - execute_alike(unit.executor, Q[name], [(common, values)], own)
