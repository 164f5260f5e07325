"""Queues: their limits, and their work."""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import asdict

from batuta.clock import as_datetime
from batuta.journal.audit import Act
from batuta.journal.queues import LIMITS, QueueInfo, QueueLimits
from batuta.journal.records import Hint
from batuta.stores.postgres.audit import act_values
from batuta.stores.postgres.base import Base


class Queues(Base):
    """Limiting, pausing and looking at queues."""

    async def limit_queue(
        self, name: str, limits: QueueLimits, only: Collection[str] = LIMITS, act: Act | None = None
    ) -> None:
        values = limits.only(only).columns().values()
        await self._execute("limit_queue", name, *values, list(only), *act_values(act))
        self._announcer.tell(Hint(due=True))

    async def pause_queue(self, name: str, paused: bool, reason: str = "", act: Act | None = None) -> None:
        await self._execute("pause_queue", name, paused, reason if paused else "", *act_values(act))
        self._announcer.tell(Hint(due=not paused))

    async def queues(self) -> list[QueueInfo]:
        return [
            QueueInfo(
                name=row["name"],
                paused=row["paused"],
                reason=row["note"],
                ready=row["ready"],
                delayed=row["delayed"],
                running=row["running"],
                oldest=as_datetime(row["oldest"]),
                workers=row["workers"],
                **asdict(QueueLimits.of_columns(dict(row))),
            )
            for row in await self._read("queues")
        ]
