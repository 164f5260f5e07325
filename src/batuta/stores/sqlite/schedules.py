"""Schedules in SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from batuta.errors import UnknownSchedule, WrongWorkflow
from batuta.journal.audit import Act
from batuta.journal.records import Hint
from batuta.journal.schedules import DueSchedule, Firing, ScheduleRow
from batuta.stores.sqlite import starts
from batuta.stores.sqlite.database.base import Base
from batuta.stores.sqlite.database.rows import Row, structs_of
from batuta.stores.sqlite.database.unit_of_work import UnitOfWork

_FIRST = (-1, "")
SMALL_STARTS = 2
"""A firing of no more runs may be synced on the event loop's thread."""


class ScheduleVerbs(Base):
    """The part of the store that is about schedules."""

    async def put_schedule(self, schedule: ScheduleRow, expected: int | None = None, act: Act | None = None) -> bool:
        statement, row = _put(self.namespace, schedule, expected, self.clock_now())
        written = await self._change(statement, row, act, schedule.id)
        self.tell(Hint(schedules=written))
        return written

    async def delete_schedule(self, id: str, act: Act | None = None) -> bool:
        return await self._change("delete_schedule", (self.namespace, id), act, id)

    async def schedule(self, id: str) -> DueSchedule:
        found = self._schedules("schedule", self.namespace, id)
        if not found:
            raise UnknownSchedule(id, self.namespace)
        return found[0]

    async def schedules(self, after: str = "", limit: int = 1_000) -> list[DueSchedule]:
        return self._schedules("schedules", self.namespace, after, limit)

    async def due_schedules(self, limit: int, after: tuple[int, str] | None = None) -> list[DueSchedule]:
        return self._schedules("due_schedules", self.namespace, self.clock_now(), *(after or _FIRST), limit)

    def _schedules(self, statement: str, *values: object) -> list[DueSchedule]:
        return [_schedule_of(row) for row in self._rows(statement, values)]

    async def schedule_at(self, after: int = -1) -> int | None:
        return self._read(lambda unit: schedule_at(unit, after))

    async def fire(self, firings: Sequence[Firing]) -> list[bool]:
        starts = sum(len(firing.starts) for firing in firings)
        fired = await self._write(
            lambda unit: [_fire(unit, firing) for firing in firings],
            small=len(firings) <= SMALL_STARTS and starts <= SMALL_STARTS,
        )
        self.tell(Hint(due=any(done and firing.starts for done, firing in zip(fired, firings, strict=True))))
        return fired


def schedule_at(unit: UnitOfWork, after: int = -1) -> int | None:
    """Earliest time at which a schedule is to be looked at."""
    at: int | None = unit.value("schedule_at", (unit.namespace, after))
    return at


def _put(namespace: str, new: ScheduleRow, expected: int | None, now: int) -> tuple[str, Row]:
    """The statement and its values. A new row's revision is the time: one of that id that was deleted had another."""
    told = (new.next_at, new.last_at, new.last_id)
    if expected is None:
        return "insert_schedule", (namespace, new.id, new.spec, new.state, now, new.paused, new.reason, *told, now, now)
    values = (new.spec, new.state, new.paused, new.reason, *told, now)
    return "replace_schedule", (*values, namespace, new.id, expected)


def _fire(unit: UnitOfWork, firing: Firing) -> bool:
    last = (firing.last_at, firing.last_at, firing.last_id)
    fence = (unit.namespace, firing.id, firing.revision)
    if not unit.change("fire_schedule", (firing.next_at, firing.state, *last, unit.now, *fence)):
        return False
    for new in firing.starts:
        with suppress(WrongWorkflow):  # its slot is taken: the scheduler checks by which run
            starts.start(unit, new)
    return True


def _schedule_of(row: Row) -> DueSchedule:
    (schedule,) = structs_of(ScheduleRow, [row[:-1]])
    return DueSchedule(schedule, bool(row[-1]))
