"""Schedules in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager

from msgspec.structs import replace

from batuta.errors import UnknownSchedule
from batuta.journal.acts import Act, Changed
from batuta.journal.schedules import DueSchedule, Firing, Schedule
from batuta.stores.memory.audit import record
from batuta.stores.memory.moment import Moment
from batuta.stores.memory.tables import Room


class ScheduleVerbs(ABC):
    """The part of the store that is about schedules."""

    namespace: str

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Moment]: ...

    async def put_schedule(self, schedule: Schedule, expected: int | None = None, act: Act | None = None) -> bool:
        with self.transaction() as moment:
            known = moment.room.schedules.get(schedule.id)
            if (None if known is None else known.revision) != expected:
                return False
            record(moment, act, [Changed(target=schedule.id)])
            moment.room.schedules[schedule.id] = replace(
                schedule,
                revision=moment.now if expected is None else expected + 1,
                created_at=moment.now if known is None else known.created_at,
                updated_at=moment.now,
            )
            moment.hint.schedules = True
            return True

    async def delete_schedule(self, id: str, act: Act | None = None) -> bool:
        with self.transaction() as moment:
            if moment.room.schedules.pop(id, None) is None:
                return False
            record(moment, act, [Changed(target=id)])
            return True

    async def schedule(self, id: str) -> DueSchedule:
        with self.transaction() as moment:
            if id not in moment.room.schedules:
                raise UnknownSchedule(id, self.namespace)
            return _seen(moment.room, moment.room.schedules[id])

    async def schedules(self, after: str = "", limit: int = 1_000) -> list[DueSchedule]:
        with self.transaction() as moment:
            ids = sorted(id for id in moment.room.schedules if id > after)[:limit]
            return [_seen(moment.room, moment.room.schedules[id]) for id in ids]

    async def due_schedules(self, limit: int, after: tuple[int, str] | None = None) -> list[DueSchedule]:
        with self.transaction() as moment:
            due = sorted(found for found in moment.room.scheduled() if found[0] <= moment.now)
            page = [id for at, id in due if after is None or (at, id) > after][:limit]
            return [_seen(moment.room, moment.room.schedules[id]) for id in page]

    async def schedule_at(self, after: int = -1) -> int | None:
        with self.transaction() as moment:
            return min((at for at, _ in moment.room.scheduled() if at > after), default=None)

    async def fire(self, firings: Sequence[Firing]) -> list[bool]:
        with self.transaction() as moment:
            return [_fire(moment, firing) for firing in firings]


def _seen(room: Room, schedule: Schedule) -> DueSchedule:
    last = room.current_row(schedule.last_id) if schedule.last_id else None
    return DueSchedule(replace(schedule), last is not None and last.is_open)


def _fire(moment: Moment, firing: Firing) -> bool:
    row = moment.room.schedules.get(firing.id)
    if row is None or row.paused or row.revision != firing.revision:
        return False
    row.revision += 1
    row.updated_at, row.next_at, row.state = moment.now, firing.next_at, firing.state
    if firing.last_at is not None:
        row.last_at, row.last_id = firing.last_at, firing.last_id
    for new in firing.starts:
        if new.run_id not in moment.room.rows and moment.room.current_row(new.id) is None:
            moment.begin(new)
    return True
