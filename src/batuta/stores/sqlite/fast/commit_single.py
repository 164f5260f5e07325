"""A change that is committed alone, and is one entry: a step, a plain start, or an end.

Its conditions are checked in one place, and it is written without the lists of a batch: after the wait for a sync each
function is read from memory again, which costs more than its work.
"""

from __future__ import annotations

import sqlite3

from batuta.journal.records import Change, Hint
from batuta.journal.states import CLOSED, RunState
from batuta.stores.contract import rules
from batuta.stores.sqlite.database.connection import Q
from batuta.stores.sqlite.database.rows import blob, run_in_common

_START, _INSERT_ENTRY, _ADVANCE = Q["insert_owned_run"], Q["insert_entry"], Q["advance"]
ENDS = {state: Q["finish" if state in rules.MUST_READ else "close"] for state in CLOSED}
ENDS[RunState.CONTINUED] = Q["go_on"]


def write_alone(cursor: sqlite3.Cursor, namespace: str, worker_id: str, change: Change, now: int) -> Hint | None:
    """Hints for listeners. None: nothing was written, because it is another kind of change, or its fence failed."""
    if len(change.entries) != 1 or change.effects is not None or change.consumed or change.attempts:
        return None
    entry, move, start = change.entries[0], change.move, change.start
    run_id, epoch, hint = blob(change.run_id), change.epoch, Hint()
    fence = namespace, epoch, change.head, worker_id, run_id
    if start is not None:
        if move is not None or not rules.is_plain_start(start):
            return None
        deadline = rules.deadline_of(start, now, now) if start.timeout or start.execution_timeout else None
        row = *run_in_common(namespace, start, now, deadline, epoch, entry.ord, worker_id), run_id, start.id, run_id
        # A start has no row to fence: the worker's row stands in for it.
        cursor.execute(_START, (*row, namespace, worker_id, now, namespace, start.queue))
    elif move is None:
        cursor.execute(_ADVANCE, (entry.ord, *fence))
    elif move.state in CLOSED and not move.outcome and not move.children:
        cursor.execute(ENDS[move.state], (entry.ord, move.state._value_, now, move.reason, *fence))
        hint.closed = [change.run_id]
    else:
        return None
    if cursor.rowcount != 1:
        return None
    values = entry.ord, namespace, entry.kind._value_, epoch, run_id, entry.at, entry.crc, entry.body
    cursor.execute(_INSERT_ENTRY, values)
    return hint
