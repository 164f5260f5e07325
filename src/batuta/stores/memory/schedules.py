"""Schedules in memory."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from batuta.errors import UnknownSchedule
from batuta.journal.audit import Act, Changed
from batuta.journal.schedules import DueSchedule, Firing, ScheduleRow
from batuta.stores.memory.audit import record
from batuta.stores.memory.base import Base, verb
from batuta.stores.memory.tables import NamespaceTables
from batuta.stores.memory.unit_of_work import UnitOfWork


class ScheduleVerbs(Base):
    @verb
    def put_schedule(
        self, unit: UnitOfWork, schedule: ScheduleRow, expected: int | None = None, act: Act | None = None
    ) -> bool:
        known = unit.tables.schedules.get(schedule.id)
        if (None if known is None else known.revision) != expected:
            return False
        record(unit, act, [Changed(target=schedule.id)])
        unit.tables.schedules[schedule.id] = replace(
            schedule,
            revision=unit.now if expected is None else expected + 1,
            created_at=unit.now if known is None else known.created_at,
            updated_at=unit.now,
        )
        unit.hint.schedules = True
        return True

    @verb
    def delete_schedule(self, unit: UnitOfWork, id: str, act: Act | None = None) -> bool:
        if unit.tables.schedules.pop(id, None) is None:
            return False
        record(unit, act, [Changed(target=id)])
        return True

    @verb
    def schedule(self, unit: UnitOfWork, id: str) -> DueSchedule:
        if id not in unit.tables.schedules:
            raise UnknownSchedule(id, self.namespace)
        return _seen(unit.tables, unit.tables.schedules[id])

    @verb
    def schedules(self, unit: UnitOfWork, after: str = "", limit: int = 1_000) -> list[DueSchedule]:
        ids = sorted(id for id in unit.tables.schedules if id > after)[:limit]
        return [_seen(unit.tables, unit.tables.schedules[id]) for id in ids]

    @verb
    def due_schedules(self, unit: UnitOfWork, limit: int, after: tuple[int, str] | None = None) -> list[DueSchedule]:
        due = sorted(found for found in unit.tables.scheduled() if found[0] <= unit.now)
        page = [id for at, id in due if after is None or (at, id) > after][:limit]
        return [_seen(unit.tables, unit.tables.schedules[id]) for id in page]

    @verb
    def schedule_at(self, unit: UnitOfWork, after: int = -1) -> int | None:
        return min((at for at, _ in unit.tables.scheduled() if at > after), default=None)

    @verb
    def fire(self, unit: UnitOfWork, firings: Sequence[Firing]) -> list[bool]:
        return [_fire(unit, firing) for firing in firings]


def _seen(room: NamespaceTables, schedule: ScheduleRow) -> DueSchedule:
    last = room.current_row(schedule.last_id) if schedule.last_id else None
    return DueSchedule(replace(schedule), last is not None and last.is_open)


def _fire(unit: UnitOfWork, firing: Firing) -> bool:
    row = unit.tables.schedules.get(firing.id)
    if row is None or row.paused or row.revision != firing.revision:
        return False
    row.revision += 1
    row.updated_at, row.next_at, row.state = unit.now, firing.next_at, firing.state
    if firing.last_at is not None:
        row.last_at, row.last_id = firing.last_at, firing.last_id
    for new in firing.starts:
        if new.run_id not in unit.tables.rows and unit.tables.current_row(new.id) is None:
            unit.begin(new)
    return True
