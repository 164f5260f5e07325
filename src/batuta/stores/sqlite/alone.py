"""A change that is committed alone, and is one entry: a step, a plain start, or an end.

What it takes is asked in one place, and written without the lists of a batch: after the wait for a sync each function
is read anew from memory, which costs more than what it does.
"""

from __future__ import annotations

import sqlite3

from batuta.journal.records import Change, Hint
from batuta.journal.states import CLOSED
from batuta.stores import rules
from batuta.stores.sqlite.connection import Q
from batuta.stores.sqlite.rows import blob, new_run_row

_START, _INSERT_ENTRY, _ADVANCE = Q["insert_owned_run"], Q["insert_entry"], Q["advance"]
_FINISH, _CLOSE = Q["finish"], Q["close"]


def write_alone(cursor: sqlite3.Cursor, namespace: str, worker_id: str, change: Change, now: int) -> Hint | None:
    """What to tell listeners. None: nothing was written, because it is another kind of change, or its fence held."""
    if len(change.entries) != 1 or change.effects is not None or change.consumed or change.attempts:
        return None
    entry, move, start = change.entries[0], change.move, change.start
    run_id, epoch, hint = blob(change.run_id), change.epoch, Hint()
    fence = namespace, epoch, change.head, run_id
    if start is not None:
        if move is not None or not rules.is_plain_start(start):
            return None
        deadline = rules.deadline_of(start, now, now) if start.timeout or start.execution_timeout else None
        row = new_run_row(namespace, start, now, deadline, epoch=epoch, head=entry.ord, owner=worker_id)
        # A start has no row to fence: the worker's row stands in for it.
        cursor.execute(_START, (*row, namespace, worker_id, now, namespace, start.queue))
    elif move is None:
        cursor.execute(_ADVANCE, (entry.ord, *fence))
    elif move.state in CLOSED and not move.outcome and not move.children:
        close = _FINISH if move.state in rules.MUST_READ else _CLOSE
        cursor.execute(close, (entry.ord, move.state._value_, now, move.reason, *fence))
        hint.closed = [change.run_id]
    else:
        return None
    if cursor.rowcount != 1:
        return None
    values = entry.ord, namespace, entry.kind._value_, epoch, run_id, entry.at, entry.crc, entry.body
    cursor.execute(_INSERT_ENTRY, values)
    return hint
