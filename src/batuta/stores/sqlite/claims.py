"""Finding what is due, and owning it."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from batuta.journal.records import Claim, WorkerInfo
from batuta.stores import rules
from batuta.stores.sqlite.batch import is_live
from batuta.stores.sqlite.claimed import DUE, DUE_SUSPECT, Owned, place
from batuta.stores.sqlite.connection import Q
from batuta.stores.sqlite.floors import Floors, Place
from batuta.stores.sqlite.queues import Executor, special
from batuta.stores.sqlite.rows import Row, one, to_json
from batuta.stores.sqlite.turns import Hands, Turns, priorities

Room = Mapping[str, int]

_MANY = 200
"""Runs that take long enough to own for that to be worth two changes of the thread."""


def look(
    connection: sqlite3.Connection,
    namespace: str,
    worker: WorkerInfo,
    room: Room,
    hands: Hands,
    floors: Floors,
    now: int,
) -> Claim | None:
    """What a claim brings when there is nothing to own; None when there is something."""
    queues = special(connection, namespace, worker.queues)
    suspects = not owns_suspect(connection, namespace, worker.worker_id)
    if not queues:
        earliest = _earliest(connection, namespace, worker, suspects, floors, now)
        return Claim() if earliest is None or earliest > now else None
    turns = Turns(connection, namespace, worker, queues, now, suspects=suspects)
    copies = {place: replace(hand, had=hand.had.copy()) for place, hand in hands.items()}
    rows, held, again_at = turns.choose(1, room, copies)
    return None if rows else Claim([], held, again_at)


def due_at(connection: sqlite3.Connection, namespace: str, worker: WorkerInfo, now: int) -> int | None:
    """Earliest time at which the worker can claim something."""
    suspects = not owns_suspect(connection, namespace, worker.worker_id)
    queues = special(connection, namespace, worker.queues)
    if not queues:
        return _plain_due_at(connection, namespace, worker, suspects)
    return Turns(connection, namespace, worker, queues, now, suspects=suspects).due_at()


def _plain_due_at(executor: Executor, namespace: str, worker: WorkerInfo, suspects: bool) -> int | None:
    return min((at for _, at in _firsts(executor, namespace, worker, suspects, {}) if at is not None), default=None)


def _earliest(
    executor: Executor, namespace: str, worker: WorkerInfo, suspects: bool, floors: Floors, now: int
) -> int | None:
    """The same, without passing again what the worker cannot take."""
    whole = floors.begin(worker.code)
    firsts = _firsts(executor, namespace, worker, suspects, floors.known)
    for where, at in firsts if whole else ():
        floors.note(executor, namespace, where, at, now)
    return min((at for _, at in firsts if at is not None), default=None)


def _firsts(
    executor: Executor, namespace: str, worker: WorkerInfo, suspects: bool, floors: Mapping[Place, int]
) -> list[tuple[Place, int | None]]:
    """Of each queue and priority the earliest time at which the worker can claim something."""
    values = {"namespace": namespace, "code": to_json(worker.code), "suspects": suspects}
    found: list[tuple[Place, int | None]] = []
    for queue in dict.fromkeys(worker.queues):
        for priority in priorities(executor, namespace, queue, None):
            asked = {"queue": queue, "priority": priority, "floor": floors.get((queue, priority), 0)}
            row = one(executor.execute(Q["due_at"], values | asked))
            found.append(((queue, priority), None if row is None else row[0]))
    return found


def owns_suspect(executor: Executor, namespace: str, worker_id: str) -> bool:
    """Whether the worker has a suspect, which keeps it from taking another."""
    return one(executor.execute(Q["owned_suspect"], (namespace, worker_id))) is not None


def own_due(
    cursor: sqlite3.Cursor,
    namespace: str,
    worker: WorkerInfo,
    limit: int,
    room: Room,
    hands: Hands,
    floors: Floors,
    now: int,
) -> Owned:
    """Own up to `limit` due runs. Many are only chosen: `own` them in the same transaction."""
    if not is_live(cursor, namespace, worker.worker_id, now):
        return Owned()
    suspects = not owns_suspect(cursor, namespace, worker.worker_id)
    queues = special(cursor, namespace, worker.queues)
    if not queues:
        rows = _plain(cursor, namespace, worker, limit, room, suspects, floors.for_code(worker.code), now)
        return _own(cursor, rows, worker.worker_id, now)
    turns = Turns(cursor.connection, namespace, worker, queues, now, suspects=suspects)
    rows, held, again_at = turns.choose(limit, room, hands)
    turns.note_begun(cursor)
    owned = _own(cursor, rows, worker.worker_id, now)
    owned.held, owned.again_at = held, again_at
    return owned


def own(cursor: sqlite3.Cursor, owned: Owned) -> None:
    """Own what was chosen, if it is not owned yet."""
    if owned.rowids:  # all of them by one value: binding one for each costs as much as owning it
        cursor.execute(Q["own"], (owned.worker_id, to_json(owned.rowids)))
        owned.rowids = []
    if owned.anew:
        cursor.executemany(Q["own_anew"], owned.anew)
        owned.anew = []


def _own(cursor: sqlite3.Cursor, rows: list[Row], worker_id: str, now: int) -> Owned:
    owned = Owned.of(rows, worker_id, now)
    if len(rows) < _MANY:
        own(cursor, owned)
    return owned


def _plain(
    cursor: sqlite3.Cursor,
    namespace: str,
    worker: WorkerInfo,
    limit: int,
    room: Room,
    suspects: bool,
    floors: Mapping[Place, int],
    now: int,
) -> list[Row]:
    """What is due in queues without flow keys and limits."""
    values = {"namespace": namespace, "code": to_json(worker.code), "now": now}
    rows: list[Row] = []
    suspected: set[int] = set()
    for queue in dict.fromkeys(worker.queues):  # named twice, its runs would be owned twice
        most = min(limit, room.get(queue, limit))
        found = _due(cursor, values | {"queue": queue}, most, floors)
        if suspects and most > 0:
            suspect = cursor.execute(DUE_SUSPECT, values | {"queue": queue}).fetchall()
            suspected.update(row[0] for row in suspect)
            found += suspect
        rows += sorted(found, key=place)[:most]
    rows.sort(key=place)
    if suspected:
        rows = rules.one_suspect(rows, lambda row: row[0] in suspected)
    return rows[:limit]


def _due(cursor: sqlite3.Cursor, values: dict[str, Any], limit: int, floors: Mapping[Place, int]) -> list[Row]:
    """Up to `limit` due runs of one queue that are no suspects."""
    rows: list[Row] = []
    for priority in priorities(cursor, values["namespace"], values["queue"], None):
        missing = limit - len(rows)
        if missing <= 0:
            break
        asked = {"priority": priority, "limit": missing, "floor": floors.get((values["queue"], priority), 0)}
        rows += cursor.execute(DUE, values | asked).fetchall()
    return rows
