"""Finding what is due, and owning it."""

from __future__ import annotations

import sqlite3
from typing import Any

from batuta.journal.records import Run, WorkerInfo
from batuta.stores import rules
from batuta.stores.sqlite.batch import is_live
from batuta.stores.sqlite.connection import Q
from batuta.stores.sqlite.many import execute_many
from batuta.stores.sqlite.rows import Row, blob, claimed_run_of, is_suspect, one, to_json

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
    suspects = not owns_suspect(cursor, namespace, worker.worker_id)
    values = {"namespace": namespace, "code": to_json(worker.code), "suspects": suspects}
    rows = [
        one(cursor.execute(Q["due_at"], values | {"queue": queue, "priority": priority}))
        for queue in dict.fromkeys(worker.queues)
        for priority in priorities(cursor, namespace, queue)
    ]
    return min((row[0] for row in rows if row is not None), default=None)


def owns_suspect(cursor: Executor, namespace: str, worker_id: str) -> bool:
    """Whether the worker has a suspect, which keeps it from taking another."""
    return one(cursor.execute(Q["owned_suspect"], (namespace, worker_id))) is not None


def own_due(cursor: sqlite3.Cursor, namespace: str, worker: WorkerInfo, limit: int, now: int) -> list[Run]:
    """Own up to `limit` due runs; as they are afterwards."""
    if not is_live(cursor, namespace, worker.worker_id, now):
        return []
    suspects = not owns_suspect(cursor, namespace, worker.worker_id)
    values = {"namespace": namespace, "code": to_json(worker.code), "now": now}
    rows: list[Row] = []
    for queue in dict.fromkeys(worker.queues):  # named twice, its runs would be owned twice
        rows += _due(cursor, values | {"queue": queue}, limit)
        if suspects:
            rows += cursor.execute(Q["due_suspect"], values | {"queue": queue}).fetchall()
    rows.sort(key=lambda row: (-row[7], row[12]))
    rows = rules.one_suspect(rows, is_suspect)[:limit]
    runs = [claimed_run_of(row, worker.worker_id) for row in rows]
    execute_many(cursor, Q["own"], [(worker.worker_id, namespace, blob(run.run_id)) for run in runs])
    return runs


def _due(cursor: sqlite3.Cursor, values: dict[str, Any], limit: int) -> list[Row]:
    """Up to `limit` due runs of one queue that are no suspects."""
    rows: list[Row] = []
    for priority in priorities(cursor, values["namespace"], values["queue"]):
        missing = limit - len(rows)
        if missing <= 0:
            break
        rows += cursor.execute(Q["due"], values | {"priority": priority, "limit": missing}).fetchall()
    return rows
