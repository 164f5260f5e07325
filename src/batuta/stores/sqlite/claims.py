"""Finding what is due, and owning it."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from batuta.journal.records import Claim, WorkerInfo
from batuta.stores import rules
from batuta.stores.sqlite.batch import is_live
from batuta.stores.sqlite.claimed import DUE, DUE_SUSPECT, Due, Owned, place, read_due
from batuta.stores.sqlite.connection import Q
from batuta.stores.sqlite.floors import Floors, Place
from batuta.stores.sqlite.queues import Executor, special
from batuta.stores.sqlite.rows import one, to_json
from batuta.stores.sqlite.turns import Hands, Turns, priorities

Room = Mapping[str, int]


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


def choose(
    cursor: sqlite3.Cursor,
    namespace: str,
    worker: WorkerInfo,
    limit: int,
    room: Room,
    hands: Hands,
    floors: Floors,
    now: int,
) -> Owned:
    """What `own` is to own, in the same transaction: up to `limit` due runs."""
    if not is_live(cursor, namespace, worker.worker_id, now):
        return Owned()
    owned = Owned(worker.worker_id, now)
    suspects = not owns_suspect(cursor, namespace, worker.worker_id)
    queues = special(cursor, namespace, worker.queues)
    if not queues:
        places = _places(cursor, namespace, worker, limit, room, suspects, floors.for_code(worker.code), now)
        owned.choose = partial(_plain, places=places, limit=limit)
        return owned
    turns = Turns(cursor.connection, namespace, worker, queues, now, suspects=suspects)
    owned.rows, owned.held, owned.again_at = turns.choose(limit, room, hands)
    turns.note_begun(cursor)
    return owned


def own(cursor: sqlite3.Cursor, owned: Owned) -> None:
    """Own what was chosen, by few statements, however many they are."""
    if owned.choose is not None:
        owned.rows = owned.choose(cursor)
    if rowids := owned.rowids():  # all of them by one value: binding one for each costs as much as owning it
        cursor.execute(Q["own"], (owned.worker_id, to_json(rowids)))
    if anew := owned.anew():
        cursor.executemany(Q["own_anew"], anew)


class _Place(Struct):
    """What a claim takes of one queue."""

    values: dict[str, Any]
    priorities: list[int]
    floors: list[int]
    most: int
    suspects: list[Due]


def _places(
    cursor: sqlite3.Cursor,
    namespace: str,
    worker: WorkerInfo,
    limit: int,
    room: Room,
    suspects: bool,
    floors: Mapping[Place, int],
    now: int,
) -> list[_Place]:
    """Of queues without flow keys and limits."""
    places: list[_Place] = []
    for queue in dict.fromkeys(worker.queues):  # named twice, its runs would be owned twice
        values = {"namespace": namespace, "code": to_json(worker.code), "now": now, "queue": queue}
        most = min(limit, room.get(queue, limit))
        if most > 0:
            levels = priorities(cursor, namespace, queue, None)
            suspect = read_due(cursor, DUE_SUSPECT, values) if suspects else []
            places.append(_Place(values, levels, [floors.get((queue, level), 0) for level in levels], most, suspect))
    return places


def _plain(cursor: sqlite3.Cursor, places: list[_Place], limit: int) -> list[Due]:
    """What is due in them."""
    rows: list[Due] = []
    suspected: set[int] = set()
    for each in places:
        found = _due(cursor, each)
        suspected.update(row[0] for row in each.suspects)
        rows += sorted(found + each.suspects, key=place)[: each.most]
    rows.sort(key=place)
    if suspected:
        rows = rules.one_suspect(rows, lambda row: row[0] in suspected)
    return rows[:limit]


def _due(cursor: sqlite3.Cursor, of: _Place) -> list[Due]:
    """Up to `most` due runs of one queue that are no suspects."""
    rows: list[Due] = []
    for priority, floor in zip(of.priorities, of.floors, strict=True):
        missing = of.most - len(rows)
        if missing <= 0:
            break
        rows += read_due(cursor, DUE, of.values | {"priority": priority, "limit": missing, "floor": floor})
    return rows
