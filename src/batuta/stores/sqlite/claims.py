"""Finding what is due, and owning it."""

from __future__ import annotations

import sqlite3

from batuta.journal.records import Run, WorkerInfo
from batuta.stores.sqlite.batch import is_live
from batuta.stores.sqlite.connection import Q
from batuta.stores.sqlite.rows import Row, claimed_run_of, one, to_json

_ABOVE_ALL = 2**63 - 1

Executor = sqlite3.Cursor | sqlite3.Connection


def priorities(cursor: Executor, namespace: str, queue: str) -> list[int]:
    """The priorities of what waits in a queue, high first. One index look-up each, however many runs there are."""
    found: list[int] = []
    while True:
        row = one(cursor.execute(Q["next_priority"], (namespace, queue, found[-1] if found else _ABOVE_ALL)))
        if row is None or row[0] is None:
            return found
        found.append(row[0])


def due_at(cursor: Executor, namespace: str, worker: WorkerInfo) -> int | None:
    """Earliest time at which the worker can claim something."""
    names = to_json(list(worker.code))
    rows = [
        one(cursor.execute(Q["due_at"], (namespace, queue, priority, names)))
        for queue in worker.queues
        for priority in priorities(cursor, namespace, queue)
    ]
    return min((row[0] for row in rows if row is not None), default=None)


def own_due(cursor: sqlite3.Cursor, namespace: str, worker: WorkerInfo, limit: int, now: int) -> list[Run]:
    """Own up to `limit` due runs; as they are afterwards."""
    if not is_live(cursor, namespace, worker.worker_id, now):
        return []
    rows: list[Row] = []
    for queue in worker.queues:
        rows += _due(cursor, namespace, queue, worker, limit, now)
    rows.sort(key=lambda row: (-row[7], row[12]))
    runs = [claimed_run_of(row, worker.worker_id) for row in rows[:limit]]
    cursor.executemany(Q["own"], [(worker.worker_id, namespace, run.run_id.bytes) for run in runs])
    return runs


def _due(cursor: sqlite3.Cursor, namespace: str, queue: str, worker: WorkerInfo, limit: int, now: int) -> list[Row]:
    names = to_json(list(worker.code))
    rows: list[Row] = []
    for priority in priorities(cursor, namespace, queue):
        missing = limit - len(rows)
        if missing <= 0:
            break
        rows += cursor.execute(Q["due"], (namespace, queue, priority, now, names, missing)).fetchall()
    return rows
