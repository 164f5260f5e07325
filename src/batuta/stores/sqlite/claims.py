"""Finds due runs, and claims them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from batuta.errors import PayloadDamaged
from batuta.journal.records import Claim, WorkerInfo
from batuta.stores.contract import rules
from batuta.stores.sqlite.commits import is_live
from batuta.stores.sqlite.database.claimed_rows import DUE, DUE_SUSPECT, Due, Owned, place, read_due
from batuta.stores.sqlite.database.connection import Q
from batuta.stores.sqlite.database.rows import to_json
from batuta.stores.sqlite.database.unit_of_work import UnitOfWork
from batuta.stores.sqlite.fair_claim import ABOVE_ALL, FairClaim, Rotations, priorities
from batuta.stores.sqlite.fast.claim_cursor import ClaimCursors, Place
from batuta.stores.sqlite.queues import special

Room = Mapping[str, int]

MOST_NOTED = 100
"""Priorities of which a look from the very beginning notes where the next one begins."""


def look(
    unit: UnitOfWork, worker: WorkerInfo, room: Room, rotations: Rotations, claim_cursors: ClaimCursors
) -> Claim | None:
    """The result of a claim when there is nothing to own; None when there is something."""
    queues = special(unit, worker.queues)
    suspects = not owns_suspect(unit, worker.worker_id)
    if not queues:
        return None if _is_due(unit, worker, suspects, claim_cursors) else Claim()
    turns = FairClaim(unit, worker, queues, suspects=suspects)
    copies = {place: replace(rotation, had=rotation.had.copy()) for place, rotation in rotations.items()}
    try:
        rows, held, again_at = turns.choose(1, room, copies)
    except PayloadDamaged:
        return None  # the claim parks it
    if rows:
        return None
    rotations.update(copies)  # the next look goes on behind the flow keys that limits held back in this one
    return Claim([], held, again_at)


def due_at(unit: UnitOfWork, worker: WorkerInfo) -> int | None:
    """Earliest time at which the worker can claim something."""
    suspects = not owns_suspect(unit, worker.worker_id)
    queues = special(unit, worker.queues)
    if queues:
        return FairClaim(unit, worker, queues, suspects=suspects).due_at()
    firsts = _firsts(unit, worker, suspects, {}, ABOVE_ALL)
    return min((at for _, at in firsts if at is not None), default=None)


def _is_due(unit: UnitOfWork, worker: WorkerInfo, suspects: bool, claim_cursors: ClaimCursors) -> bool:
    """Whether the worker can claim something, without passing again over runs that it cannot take."""
    whole = claim_cursors.begin(worker.code)
    found = False
    for number, (where, at) in enumerate(_firsts(unit, worker, suspects, claim_cursors.known, unit.now)):
        found = found or (at is not None and at <= unit.now)
        if whole and number < MOST_NOTED:
            claim_cursors.note(unit, where, at)
        elif found:
            break
    return found


def _firsts(
    unit: UnitOfWork, worker: WorkerInfo, suspects: bool, claim_cursors: Mapping[Place, int], until: int
) -> Iterator[tuple[Place, int | None]]:
    """Of each queue and priority the earliest time at which the worker can claim something."""
    values = {"namespace": unit.namespace, "code": to_json(worker.code), "suspects": suspects}
    for queue in dict.fromkeys(worker.queues):
        for priority in priorities(unit, queue, False, until):
            asked = {"queue": queue, "priority": priority, "floor": claim_cursors.get((queue, priority), 0)}
            yield (queue, priority), unit.value("due_at", values | asked)


def owns_suspect(unit: UnitOfWork, worker_id: str) -> bool:
    """Whether the worker has a suspect, which keeps it from taking another."""
    return unit.finds("owned_suspect", (unit.namespace, worker_id))


def choose(
    unit: UnitOfWork, worker: WorkerInfo, limit: int, room: Room, rotations: Rotations, claim_cursors: ClaimCursors
) -> Owned:
    """Up to `limit` due runs, for `own` in the same transaction."""
    if not is_live(unit, worker.worker_id):
        return Owned()
    owned = Owned(worker.worker_id, unit.now)
    suspects = not owns_suspect(unit, worker.worker_id)
    queues = special(unit, worker.queues)
    if not queues:
        known = claim_cursors.for_code(worker.code)
        owned.choose = partial(_plain, unit, worker, limit, room, suspects, known)
        return owned
    turns = FairClaim(unit, worker, queues, suspects=suspects)
    owned.rows, owned.held, owned.again_at = turns.choose(limit, room, rotations)
    turns.note_begun()
    return owned


def own(cursor: sqlite3.Cursor, owned: Owned) -> None:
    """Own the chosen runs, with few statements, however many they are."""
    if owned.choose is not None:
        owned.rows = owned.choose()
    if rowids := owned.rowids():  # all of them by one value: binding one for each costs as much as owning it
        cursor.execute(Q["own"], (owned.worker_id, to_json(rowids)))
    if anew := owned.anew():
        cursor.executemany(Q["own_anew"], anew)


def _plain(
    unit: UnitOfWork,
    worker: WorkerInfo,
    limit: int,
    room: Room,
    suspects: bool,
    claim_cursors: Mapping[Place, int],
) -> list[Due]:
    """The due runs of queues without flow keys and limits."""
    rows: list[Due] = []
    suspected: set[int] = set()
    for queue in dict.fromkeys(worker.queues):  # named twice, its runs would be owned twice
        most = min(limit, room.get(queue, limit))
        if most > 0:
            values = {"namespace": unit.namespace, "code": to_json(worker.code), "now": unit.now, "queue": queue}
            found = _due(unit, values, most, claim_cursors)
            suspect = read_due(unit, DUE_SUSPECT, values) if suspects else []
            suspected.update(row[0] for row in suspect)
            rows += sorted(found + suspect, key=place)[:most]
    rows.sort(key=place)
    if suspected:
        rows = rules.one_suspect(rows, lambda row: row[0] in suspected)
    return rows[:limit]


def _due(unit: UnitOfWork, values: dict[str, Any], most: int, claim_cursors: Mapping[Place, int]) -> list[Due]:
    """Up to `most` due runs of one queue that are no suspects."""
    rows: list[Due] = []
    queue = values["queue"]
    for priority in priorities(unit, queue, False, unit.now):
        floor = claim_cursors.get((queue, priority), 0)
        rows += read_due(unit, DUE, values | {"priority": priority, "limit": most - len(rows), "floor": floor})
        if len(rows) >= most:
            break
    return rows
