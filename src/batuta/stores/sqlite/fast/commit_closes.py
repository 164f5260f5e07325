"""Many runs that complete at once, as when all their timers are due.

A few statements write them, however many they are: so in the thread that syncs, beside the event loop. Their fences are
JSON that SQLite parses, so that one statement serves runs at all heads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from batuta.journal.records import Change
from batuta.journal.states import RunState
from batuta.stores.sqlite.database.connection import Q
from batuta.stores.sqlite.database.rows import OWN_OF_ENTRY, Row, blob, to_json
from batuta.stores.sqlite.database.unit_of_work import UnitOfWork
from batuta.stores.sqlite.fast.multi_row import execute_alike

_MANY = 100
_COMPLETED = RunState.COMPLETED


def are_ends(changes: Sequence[Change]) -> bool:
    """Whether they are many, and each does nothing but add an entry to its run and complete it."""
    if len(changes) < _MANY:
        return False
    for change in changes:
        move = change.move
        if move is None or move.state is not _COMPLETED or move.reason or move.outcome or move.children:
            return False
        if change.start is not None or change.effects is not None or change.consumed or change.attempts:
            return False
        if len(change.entries) != 1:
            return False
    return True


class CommitCloses:
    """Such changes, as values of the statements."""

    def __init__(self, namespace: str, worker_id: str, changes: Sequence[Change], now: int) -> None:
        self.closed = [change.run_id for change in changes]
        self._entries: defaultdict[Row, list[Any]] = defaultdict(list)
        fences, run_ids = [], []
        for change in changes:
            (entry,), epoch, run_id = change.entries, change.epoch, blob(change.run_id)
            fences.append(epoch << 32 | change.head)
            run_ids.append(run_id)
            common = entry.ord, namespace, entry.kind._value_, epoch
            self._entries[common].extend((run_id, entry.at, entry.crc, entry.body))
        self._values: dict[str, Any] = {
            "namespace": namespace,
            "owner": worker_id,
            "run_ids": b"".join(run_ids),
            "fences": to_json(fences),
            "now": now,
        }

    def write(self, unit: UnitOfWork) -> bool:
        """Whether all fences let them through: else the transaction must be undone."""
        if unit.change("finish_all", self._values) != len(self.closed):
            return False
        execute_alike(unit.executor, Q["insert_entry"], self._entries.items(), OWN_OF_ENTRY)
        return True
