"""Schedules in SQLite."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress

from batuta.errors import UnknownSchedule, WrongWorkflow
from batuta.journal.audit import Act, Changed
from batuta.journal.records import Hint
from batuta.journal.schedules import DueSchedule, Firing, ScheduleRow
from batuta.stores.sqlite import starts
from batuta.stores.sqlite.audit import record
from batuta.stores.sqlite.database.connection import Q
from batuta.stores.sqlite.database.readers import Readers
from batuta.stores.sqlite.database.rows import Row, one
from batuta.stores.sqlite.database.writer import Writer

_FIRST = (-1, "")
SMALL_STARTS = 2
"""A firing of no more runs may be synced on the event loop's thread."""


class ScheduleVerbs(ABC):
    """The part of the store that is about schedules."""

    namespace: str
    _writer: Writer
    _readers: Readers

    @abstractmethod
    def clock_now(self) -> int: ...

    @abstractmethod
    def tell(self, hint: Hint) -> None: ...

    async def put_schedule(self, schedule: ScheduleRow, expected: int | None = None, act: Act | None = None) -> bool:
        statement, row = _put(self.namespace, schedule, expected, self.clock_now())
        written = await self._write(statement, row, schedule.id, act)
        self.tell(Hint(schedules=written))
        return written

    async def delete_schedule(self, id: str, act: Act | None = None) -> bool:
        return await self._write("delete_schedule", (self.namespace, id), id, act)

    async def _write(self, statement: str, row: Row, id: str, act: Act | None) -> bool:
        now = self.clock_now()

        def work(cursor: sqlite3.Cursor) -> bool:
            if not cursor.execute(Q[statement], row).rowcount:
                return False
            record(cursor, self.namespace, now, act, [Changed(target=id)])
            return True

        return await self._writer.write(work, small=True)

    async def schedule(self, id: str) -> DueSchedule:
        found = self._read("schedule", self.namespace, id)
        if not found:
            raise UnknownSchedule(id, self.namespace)
        return found[0]

    async def schedules(self, after: str = "", limit: int = 1_000) -> list[DueSchedule]:
        return self._read("schedules", self.namespace, after, limit)

    async def due_schedules(self, limit: int, after: tuple[int, str] | None = None) -> list[DueSchedule]:
        return self._read("due_schedules", self.namespace, self.clock_now(), *(after or _FIRST), limit)

    def _read(self, statement: str, *values: object) -> list[DueSchedule]:
        rows = self._readers.read(lambda connection: connection.execute(Q[statement], values).fetchall())
        return [_schedule_of(row) for row in rows]

    async def schedule_at(self, after: int = -1) -> int | None:
        return self._readers.read(lambda connection: schedule_at(connection.cursor(), self.namespace, after))

    async def fire(self, firings: Sequence[Firing]) -> list[bool]:
        now = self.clock_now()
        starts = sum(len(firing.starts) for firing in firings)
        fired = await self._writer.write(
            lambda cursor: [_fire(cursor, self.namespace, firing, now) for firing in firings],
            small=len(firings) <= SMALL_STARTS and starts <= SMALL_STARTS,
        )
        self.tell(Hint(due=any(done and firing.starts for done, firing in zip(fired, firings, strict=True))))
        return fired


def schedule_at(cursor: sqlite3.Cursor, namespace: str, after: int = -1) -> int | None:
    """Earliest time at which a schedule is to be looked at."""
    row = one(cursor.execute(Q["schedule_at"], (namespace, after)))
    return None if row is None else row[0]


def _put(namespace: str, new: ScheduleRow, expected: int | None, now: int) -> tuple[str, Row]:
    """The statement and its values. A new row's revision is the time: one of that id that was deleted had another."""
    told = (new.next_at, new.last_at, new.last_id)
    if expected is None:
        return "insert_schedule", (namespace, new.id, new.spec, new.state, now, new.paused, new.reason, *told, now, now)
    values = (new.spec, new.state, new.paused, new.reason, *told, now)
    return "replace_schedule", (*values, namespace, new.id, expected)


def _fire(cursor: sqlite3.Cursor, namespace: str, firing: Firing, now: int) -> bool:
    last = (firing.last_at, firing.last_at, firing.last_id)
    fence = (namespace, firing.id, firing.revision)
    if not cursor.execute(Q["fire_schedule"], (firing.next_at, firing.state, *last, now, *fence)).rowcount:
        return False
    for new in firing.starts:
        with suppress(WrongWorkflow):  # its slot is taken: the scheduler checks by which run
            starts.start(cursor, namespace, new, now)
    return True


def _schedule_of(row: Row) -> DueSchedule:
    id, spec, state, revision, paused, reason, next_at, last_at, last_id, created_at, updated_at, busy = row
    schedule = ScheduleRow(
        id=id,
        spec=spec,
        state=state,
        revision=revision,
        paused=bool(paused),
        reason=reason,
        next_at=next_at,
        last_at=last_at,
        last_id=last_id,
        created_at=created_at,
        updated_at=updated_at,
    )
    return DueSchedule(schedule, bool(busy))
