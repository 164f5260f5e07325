"""Lists and counts of runs."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from msgspec import json

from batuta.errors import InvalidInput
from batuta.ids import RunId
from batuta.journal.queues import MOST_COUNTED, MOST_QUEUES, StoreGauges, gauges_of
from batuta.journal.records import Page, RunFilter, WorkerView
from batuta.journal.states import OPEN, RunState
from batuta.stores.postgres.base import Base
from batuta.stores.postgres.database.rows import run_of, worker_of

NOTABLE = frozenset(
    {
        RunState.FAILED,
        RunState.TIMED_OUT,
        RunState.CANCELLED,
        RunState.TERMINATED,
        RunState.PAUSED,
        RunState.NEEDS_CODE,
        RunState.POISONED,
    }
)
"""States with their own index (runs_notable): few among many."""


class Listing(Base):
    """Pages and counts of runs, gauges, workers."""

    async def list_runs(self, where: RunFilter, cursor: str | None = None, limit: int = 50) -> Page:
        before = None if cursor is None else _cursor(cursor)
        notable = where.states and NOTABLE.issuperset(where.states)
        query = "list_children" if where.parent else "list_notable_runs" if notable else "list_runs"
        values = _restrictions(where)
        if where.retrying:
            query, values = "list_retrying", (*values, where.retrying)
        rows = await self._read(query, *values, before, limit + 1)
        page = [run_of(row) for row in rows[:limit]]
        return Page(page, str(page[-1].run_id) if len(rows) > limit and page else None)

    async def count_runs(self, where: RunFilter) -> int:
        return sum((await self.count_states(where)).values())

    async def count_states(self, where: RunFilter) -> dict[RunState, int]:
        values = _restrictions(where)
        if where.retrying:
            query, values = "count_retrying", (*values, where.retrying)
        elif where.parent is not None:
            query = "count_children"
        else:
            query = "count_open" if where.states and OPEN.issuperset(where.states) else "count_runs"
        rows = await self._read(query, *values)
        return {RunState(row["state"]): row["runs"] for row in rows}

    async def gauges(self) -> StoreGauges:
        rows = await self._read("gauges", MOST_COUNTED, MOST_QUEUES)
        return gauges_of(tuple(row) for row in rows)

    async def workers(self) -> list[WorkerView]:
        return await self._read_all(worker_of, "workers")


def _restrictions(where: RunFilter) -> tuple[Any, ...]:
    return (
        list(where.states) or None,
        where.name,
        where.kind,
        where.queue,
        where.id_prefix,
        json.encode(dict(where.tags)).decode() if where.tags else None,
        where.created_after,
        where.created_before,
        where.flow_key,
        where.parent,
    )


def _cursor(text: str) -> RunId:
    try:
        return UUID(text)
    except ValueError:
        raise InvalidInput(f"{text!r} is not a cursor: pass the cursor of the previous page") from None
