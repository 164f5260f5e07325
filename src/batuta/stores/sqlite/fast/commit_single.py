"""A change that is committed alone, and is one entry: a step, a plain start, or an end.

Its conditions are checked in one place, and it is written without the lists of a batch: after the wait for a sync each
function is read from memory again, which costs more than its work.
"""

from __future__ import annotations

from batuta.journal.records import Change
from batuta.journal.states import CLOSED, RunState
from batuta.stores.contract import rules
from batuta.stores.sqlite.database.connection import Q
from batuta.stores.sqlite.database.rows import blob, run_in_common
from batuta.stores.sqlite.database.unit_of_work import UnitOfWork

_START, _INSERT_ENTRY, _ADVANCE = Q["insert_owned_run"], Q["insert_entry"], Q["advance"]
ENDS = {state: "finish" if state in rules.MUST_READ else "close" for state in CLOSED}
ENDS[RunState.CONTINUED] = "go_on"
"""The statements for the states in which runs end."""


def write_alone(unit: UnitOfWork, worker_id: str, change: Change) -> bool:
    """False: nothing was written, because it is another kind of change, or its fence failed."""
    if len(change.entries) != 1 or change.effects is not None or change.consumed or change.attempts:
        return False
    entry, move, start = change.entries[0], change.move, change.start
    run_id, epoch = blob(change.run_id), change.epoch
    executor, namespace, now = unit.executor, unit.namespace, unit.now
    fence = namespace, epoch, change.head, worker_id, run_id
    if start is not None:
        if move is not None or not rules.is_plain_start(start):
            return False
        deadline = rules.deadline_of(start, now, now) if start.timeout or start.execution_timeout else None
        row = *run_in_common(namespace, start, now, deadline, epoch, entry.ord, worker_id), run_id, start.id, run_id
        # A start has no row to fence: the worker's row stands in for it.
        written = executor.execute(_START, (*row, namespace, worker_id, now, namespace, start.queue))
    elif move is None:
        written = executor.execute(_ADVANCE, (entry.ord, *fence))
    elif move.state in CLOSED and not move.outcome and not move.children:
        values = entry.ord, move.state._value_, now, move.reason, *fence
        written = executor.execute(Q[ENDS[move.state]], values)
    else:
        return False
    if written.rowcount != 1:
        return False
    executor.execute(
        _INSERT_ENTRY, (entry.ord, namespace, entry.kind._value_, epoch, run_id, entry.at, entry.crc, entry.body)
    )
    if move is not None:
        unit.hint.closed = [change.run_id]
    return True
