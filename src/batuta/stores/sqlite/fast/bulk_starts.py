"""Many starts in one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from batuta.errors import AlreadyStarted, BadData, WrongWorkflow
from batuta.journal.records import NewRun, StartOutcome
from batuta.stores.contract import rules
from batuta.stores.sqlite.cross_run_effects import deadline_of
from batuta.stores.sqlite.database.connection import Q
from batuta.stores.sqlite.database.errors import translate
from batuta.stores.sqlite.database.rows import OWN_OF_MESSAGE, OWN_OF_RUN, Row, message_row, new_run_row, one, run_of
from batuta.stores.sqlite.fast.multi_row import execute_alike, execute_many
from batuta.stores.sqlite.queues import note_keyed
from batuta.stores.sqlite.starts import find, start

PIECE = 500
"""Runs that are written together; if one of them conflicts, they are written one by one."""


def start_many(
    cursor: sqlite3.Cursor, namespace: str, runs: Sequence[NewRun], after: NewRun | None, now: int
) -> list[StartOutcome]:
    """Start each separately: a refused start leaves nothing, and the others stay."""
    if after is None:
        return _start_all(cursor, namespace, runs, now)
    if one(cursor.execute(Q["created_at"], (namespace, after.run_id.bytes))) is not None:
        return [_again(cursor, namespace, new, now) for new in (*runs, after)]
    # Written first, so that the others find it.
    last = _start_one(cursor, namespace, after, now)
    if isinstance(last, Exception) or not last[1]:
        return [*_start_all(cursor, namespace, runs, now), last]
    outcomes = _start_all(cursor, namespace, [rules.member(new, after) for new in runs], now)
    cursor.execute(Q["await_members"], {"namespace": namespace, "run_id": after.run_id.bytes})
    cursor.execute(Q["hold_back"], (namespace, after.run_id.bytes))
    return [*outcomes, (find(cursor, namespace, after.run_id), True)]


def _again(cursor: sqlite3.Cursor, namespace: str, new: NewRun, now: int) -> StartOutcome:
    """The outcome of a start whose batch was written before: nothing begins now."""
    same = one(cursor.execute(Q["run_by_run_id"], (namespace, new.run_id.bytes)))
    if same is not None:
        return run_of(same), True
    row = one(cursor.execute(Q["run_by_id"], (namespace, new.id)))
    if row is None:
        return _start_one(cursor, namespace, new, now)
    return rules.taken_by(new, run_of(row))


def _start_all(cursor: sqlite3.Cursor, namespace: str, runs: Sequence[NewRun], now: int) -> list[StartOutcome]:
    outcomes: list[StartOutcome] = []
    for first in range(0, len(runs), PIECE):
        piece = runs[first : first + PIECE]
        together = _start_together(cursor, namespace, piece, now) if len(piece) > 1 else None
        if together is None:
            together = [_start_one(cursor, namespace, new, now) for new in piece]
        outcomes += together
    return outcomes


def _start_one(cursor: sqlite3.Cursor, namespace: str, new: NewRun, now: int) -> StartOutcome:
    outcome: StartOutcome
    cursor.execute("SAVEPOINT one")
    try:
        outcome = start(cursor, namespace, new, now)
    except Exception as error:
        meant = error if isinstance(error, AlreadyStarted | WrongWorkflow | rules.NothingWaits) else translate(error)
        if not isinstance(meant, AlreadyStarted | WrongWorkflow | rules.NothingWaits | BadData):
            raise
        cursor.execute("ROLLBACK TO one")
        outcome = meant
    cursor.execute("RELEASE one")
    return outcome


def _start_together(
    cursor: sqlite3.Cursor, namespace: str, runs: Sequence[NewRun], now: int
) -> list[StartOutcome] | None:
    """Start all of them with few statements. None, and nothing is written, unless every one is new and good."""
    if any(new.debounce for new in runs):
        return None
    deadlines = [deadline_of(cursor, namespace, new, now) for new in runs]
    cursor.execute("SAVEPOINT together")
    try:
        all_new = _insert(cursor, namespace, runs, deadlines, now)
    except Exception as error:
        if not isinstance(translate(error), BadData):
            raise
        all_new = False
    if not all_new:
        cursor.execute("ROLLBACK TO together")
    cursor.execute("RELEASE together")
    if not all_new:
        return None
    return [(rules.unowned(new, now, deadline), True) for new, deadline in zip(runs, deadlines, strict=True)]


def _insert(
    cursor: sqlite3.Cursor, namespace: str, runs: Sequence[NewRun], deadlines: Sequence[int | None], now: int
) -> bool:
    rows = [
        new_run_row(namespace, new, now, deadline, epoch=0, head=-1, owner=None)
        for new, deadline in zip(runs, deadlines, strict=True)
    ]
    if _execute(cursor, Q["insert_run"], rows, OWN_OF_RUN) != len(rows):
        return False
    messages = [message_row(namespace, rules.chain_of(new), rules.start_message(new), now) for new in runs]
    _execute(cursor, Q["insert_message"], messages, OWN_OF_MESSAGE)
    note_keyed(cursor, namespace, runs)
    return True


def _execute(cursor: sqlite3.Cursor, statement: str, rows: list[Row], own: int) -> int:
    """In the order in which they are given: of runs that are due at one time the first is claimed first."""
    common = rows[0][:-own]
    if any(row[:-own] != common for row in rows):
        return execute_many(cursor, statement, rows)
    values = [value for row in rows for value in row[-own:]]
    return len(rows) - execute_alike(cursor, statement, [(common, values)], own)
