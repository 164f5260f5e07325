"""Finds due runs, and claims them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from batuta.errors import PayloadDamaged
from batuta.journal.records import Claim, WorkerInfo
from batuta.stores.contract import rules
from batuta.stores.sqlite.commits import is_live
from batuta.stores.sqlite.database.claimed_rows import DUE, DUE_SUSPECT, Due, Owned, place, read_due
from batuta.stores.sqlite.database.connection import Q
from batuta.stores.sqlite.database.rows import one, to_json
from batuta.stores.sqlite.fair_claim import ABOVE_ALL, FairClaim, Rotations, priorities
from batuta.stores.sqlite.fast.claim_cursor import ClaimCursors, Place
from batuta.stores.sqlite.queues import Executor, special

Room = Mapping[str, int]

MOST_NOTED = 100
"""Priorities of which a look from the very beginning notes where the next one begins."""


def look(
    connection: sqlite3.Connection,
    namespace: str,
    worker: WorkerInfo,
    room: Room,
    rotations: Rotations,
    claim_cursors: ClaimCursors,
    now: int,
) -> Claim | None:
    """The result of a claim when there is nothing to own; None when there is something."""
    queues = special(connection, namespace, worker.queues)
    suspects = not owns_suspect(connection, namespace, worker.worker_id)
    if not queues:
        return None if _is_due(connection, namespace, worker, suspects, claim_cursors, now) else Claim()
    turns = FairClaim(connection, namespace, worker, queues, now, suspects=suspects)
    copies = {place: replace(rotation, had=rotation.had.copy()) for place, rotation in rotations.items()}
    try:
        rows, held, again_at = turns.choose(1, room, copies)
    except PayloadDamaged:
        return None  # the claim parks it
    if rows:
        return None
    rotations.update(copies)  # the next look goes on behind the flow keys that limits held back in this one
    return Claim([], held, again_at)


def due_at(connection: sqlite3.Connection, namespace: str, worker: WorkerInfo, now: int) -> int | None:
    """Earliest time at which the worker can claim something."""
    suspects = not owns_suspect(connection, namespace, worker.worker_id)
    queues = special(connection, namespace, worker.queues)
    if not queues:
        return _plain_due_at(connection, namespace, worker, suspects)
    return FairClaim(connection, namespace, worker, queues, now, suspects=suspects).due_at()


def _plain_due_at(connection: sqlite3.Connection, namespace: str, worker: WorkerInfo, suspects: bool) -> int | None:
    firsts = _firsts(connection, namespace, worker, suspects, {}, ABOVE_ALL)
    return min((at for _, at in firsts if at is not None), default=None)


def _is_due(
    connection: sqlite3.Connection,
    namespace: str,
    worker: WorkerInfo,
    suspects: bool,
    claim_cursors: ClaimCursors,
    now: int,
) -> bool:
    """Whether the worker can claim something, without passing again over runs that it cannot take."""
    whole = claim_cursors.begin(worker.code)
    found = False
    for number, (where, at) in enumerate(_firsts(connection, namespace, worker, suspects, claim_cursors.known, now)):
        found = found or (at is not None and at <= now)
        if whole and number < MOST_NOTED:
            claim_cursors.note(connection, namespace, where, at, now)
        elif found:
            break
    return found


def _firsts(
    executor: Executor,
    namespace: str,
    worker: WorkerInfo,
    suspects: bool,
    claim_cursors: Mapping[Place, int],
    until: int,
) -> Iterator[tuple[Place, int | None]]:
    """Of each queue and priority the earliest time at which the worker can claim something."""
    values = {"namespace": namespace, "code": to_json(worker.code), "suspects": suspects}
    for queue in dict.fromkeys(worker.queues):
        for priority in priorities(executor, namespace, queue, None, until):
            asked = {"queue": queue, "priority": priority, "floor": claim_cursors.get((queue, priority), 0)}
            row = one(executor.execute(Q["due_at"], values | asked))
            yield (queue, priority), None if row is None else row[0]


def owns_suspect(executor: Executor, namespace: str, worker_id: str) -> bool:
    """Whether the worker has a suspect, which keeps it from taking another."""
    return one(executor.execute(Q["owned_suspect"], (namespace, worker_id))) is not None


def choose(
    cursor: sqlite3.Cursor,
    namespace: str,
    worker: WorkerInfo,
    limit: int,
    room: Room,
    rotations: Rotations,
    claim_cursors: ClaimCursors,
    now: int,
) -> Owned:
    """Up to `limit` due runs, for `own` in the same transaction."""
    if not is_live(cursor, namespace, worker.worker_id, now):
        return Owned()
    owned = Owned(worker.worker_id, now)
    suspects = not owns_suspect(cursor, namespace, worker.worker_id)
    queues = special(cursor, namespace, worker.queues)
    if not queues:
        places = _places(cursor, namespace, worker, limit, room, suspects, claim_cursors.for_code(worker.code), now)
        owned.choose = partial(_plain, places=places, limit=limit)
        return owned
    turns = FairClaim(cursor.connection, namespace, worker, queues, now, suspects=suspects)
    owned.rows, owned.held, owned.again_at = turns.choose(limit, room, rotations)
    turns.note_begun(cursor)
    return owned


def own(cursor: sqlite3.Cursor, owned: Owned) -> None:
    """Own the chosen runs, with few statements, however many they are."""
    if owned.choose is not None:
        owned.rows = owned.choose(cursor)
    if rowids := owned.rowids():  # all of them by one value: binding one for each costs as much as owning it
        cursor.execute(Q["own"], (owned.worker_id, to_json(rowids)))
    if anew := owned.anew():
        cursor.executemany(Q["own_anew"], anew)


class _Place(Struct):
    """The claims from one queue."""

    values: dict[str, Any]
    claim_cursors: Mapping[Place, int]
    most: int
    suspects: list[Due]


def _places(
    cursor: sqlite3.Cursor,
    namespace: str,
    worker: WorkerInfo,
    limit: int,
    room: Room,
    suspects: bool,
    claim_cursors: Mapping[Place, int],
    now: int,
) -> list[_Place]:
    """Of queues without flow keys and limits."""
    places: list[_Place] = []
    for queue in dict.fromkeys(worker.queues):  # named twice, its runs would be owned twice
        values = {"namespace": namespace, "code": to_json(worker.code), "now": now, "queue": queue}
        most = min(limit, room.get(queue, limit))
        if most > 0:
            suspect = read_due(cursor, DUE_SUSPECT, values) if suspects else []
            places.append(_Place(values, claim_cursors, most, suspect))
    return places


def _plain(cursor: sqlite3.Cursor, places: list[_Place], limit: int) -> list[Due]:
    """The due runs in them."""
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
    queue = of.values["queue"]
    for priority in priorities(cursor, of.values["namespace"], queue, None, of.values["now"]):
        floor = of.claim_cursors.get((queue, priority), 0)
        rows += read_due(cursor, DUE, of.values | {"priority": priority, "limit": of.most - len(rows), "floor": floor})
        if len(rows) >= of.most:
            break
    return rows
