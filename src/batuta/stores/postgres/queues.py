"""Queues: their limits, and what is going on in them."""

from __future__ import annotations

from collections.abc import Collection

from asyncpg import Record

from batuta.journal.acts import Act
from batuta.journal.queues import LIMITS, QueueLimits, QueueView, Rate
from batuta.journal.records import Hint
from batuta.stores.postgres.audit import act_values
from batuta.stores.postgres.base import Base


class Queues(Base):
    """Limiting, pausing and looking at queues."""

    async def limit_queue(
        self, name: str, limits: QueueLimits, only: Collection[str] = LIMITS, act: Act | None = None
    ) -> None:
        limits = limits.only(only)
        values = (
            limits.concurrency,
            limits.key_concurrency,
            *_rate_values(limits.rate),
            *_rate_values(limits.key_rate),
        )
        await self._pool.write(self._sql["limit_queue"], self.namespace, name, *values, list(only), *act_values(act))
        self._announcer.tell(Hint(due=True))

    async def pause_queue(self, name: str, paused: bool, note: str = "", act: Act | None = None) -> None:
        values = (self.namespace, name, paused, note if paused else "", *act_values(act))
        await self._pool.write(self._sql["pause_queue"], *values)
        self._announcer.tell(Hint(due=not paused))

    async def queues(self) -> list[QueueView]:
        return [_view_of(row) for row in await self._pool.read(self._sql["queues"], self.namespace)]


def _rate_values(rate: Rate | None) -> tuple[int | None, int | None]:
    return (None, None) if rate is None else (rate.count, rate.period)


def _view_of(row: Record) -> QueueView:
    return QueueView(
        name=row["name"],
        paused=row["paused"],
        note=row["note"],
        limits=QueueLimits(
            concurrency=row["concurrency"],
            key_concurrency=row["key_concurrency"],
            rate=_rate_of(row["rate_count"], row["rate_period"]),
            key_rate=_rate_of(row["key_rate_count"], row["key_rate_period"]),
        ),
        ready=row["ready"],
        delayed=row["delayed"],
        running=row["running"],
        oldest=row["oldest"],
        workers=row["workers"],
    )


def _rate_of(count: int | None, period: int | None) -> Rate | None:
    return None if count is None or period is None else Rate(count, period)
