"""Schedules in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from uuid import UUID

from asyncpg import Record

from batuta.errors import UnknownSchedule
from batuta.journal.audit import Act
from batuta.journal.records import Hint
from batuta.journal.schedules import DueSchedule, Firing, ScheduleRow
from batuta.stores.postgres.audit import act_values
from batuta.stores.postgres.base import Base
from batuta.stores.postgres.database import batch_columns

_FIRST = (-1, "")


class ScheduleVerbs(Base):
    async def put_schedule(self, schedule: ScheduleRow, expected: int | None = None, act: Act | None = None) -> bool:
        said = (schedule.id, schedule.spec, schedule.state, schedule.paused, schedule.reason)
        times = (schedule.next_at, schedule.last_at, schedule.last_id)
        statement = "insert_schedule" if expected is None else "replace_schedule"
        fence = () if expected is None else (expected,)
        written = bool(await self._execute(statement, *said, *times, *act_values(act), *fence))
        self._announcer.tell(Hint(schedules=written))
        return written

    async def delete_schedule(self, id: str, act: Act | None = None) -> bool:
        return bool(await self._execute("delete_schedule", id, *act_values(act)))

    async def schedule(self, id: str) -> DueSchedule:
        found = await self._read_first(_schedule_of, "schedule", id)
        if found is None:
            raise UnknownSchedule(id, self.namespace)
        return found

    async def schedules(self, after: str = "", limit: int = 1_000) -> list[DueSchedule]:
        return await self._read_all(_schedule_of, "schedules", after, limit)

    async def due_schedules(self, limit: int, after: tuple[int, str] | None = None) -> list[DueSchedule]:
        return await self._read_all(_schedule_of, "due_schedules", limit, *(after or _FIRST))

    async def schedule_at(self, after: int = -1) -> int | None:
        return await self._read_first(itemgetter("next_at"), "schedule_at", after)

    async def fire(self, firings: Sequence[Firing]) -> list[bool]:
        if not firings:
            return []
        keys = [UUID(int=number) for number in range(len(firings))]
        makers = {run.run_id: key for key, firing in zip(keys, firings, strict=True) for run in firing.starts}
        columns = batch_columns.unowned_columns([run for firing in firings for run in firing.starts])
        rows = await self._execute(
            "fire",
            keys,
            *batch_columns.as_columns(
                [(f.id, f.revision, f.next_at, f.state, f.last_at, f.last_id) for f in firings], 6
            ),
            [makers[run_id] for run_id in columns[0]],
            *columns,
        )
        self._announcer.tell(Hint(due=rows[0]["begun"] > 0))
        won = {key.int for key in rows[0]["won"]}
        return [key.int in won for key in keys]


def _schedule_of(row: Record) -> DueSchedule:
    schedule = ScheduleRow(
        id=row["id"],
        spec=row["spec"],
        state=row["state"],
        revision=row["revision"],
        paused=row["paused"],
        reason=row["note"],
        next_at=row["next_at"],
        last_at=row["last_at"],
        last_id=row["last_id"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )
    return DueSchedule(schedule, row["busy"])
