"""Reading runs, journals, lists and counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from msgspec import json

from batuta.errors import InvalidInput, UnknownRun
from batuta.ids import RunId
from batuta.journal.entries import Entry
from batuta.journal.records import Attempt, Output, Page, Run, RunFilter, WorkerView
from batuta.journal.states import OPEN, RunState
from batuta.stores.postgres.base import Base
from batuta.stores.postgres.rows import attempt_of, entry_of, output_of, run_of, worker_of

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
"""States with an index of their own (runs_notable): few among many."""


class Reading(Base):
    """What there is."""

    async def get(self, id: str) -> Run:
        rows = await self._pool.read(self._sql["current_run"], self.namespace, id)
        if not rows:
            raise UnknownRun(id, self.namespace)
        return run_of(rows[0])

    async def get_run(self, run_id: RunId) -> Run:
        rows = await self._pool.read(self._sql["run"], self.namespace, run_id)
        if not rows:
            raise UnknownRun(run_id, self.namespace)
        return run_of(rows[0])

    async def journal(self, run_id: RunId, after: int = -1, limit: int = 10_000) -> list[Entry]:
        rows = await self._pool.read(self._sql["journal"], self.namespace, run_id, after, limit)
        return [entry_of(row) for row in rows]

    async def epochs(self, run_id: RunId) -> list[int]:
        return [row["epoch"] for row in await self._pool.read(self._sql["epochs"], self.namespace, run_id)]

    async def attempts(self, run_id: RunId, seq: int | None = None) -> list[Attempt]:
        if seq is None:
            rows = await self._pool.read(self._sql["attempts"], self.namespace, [run_id])
        else:
            rows = await self._pool.read(self._sql["attempts_of_call"], self.namespace, run_id, seq)
        return [attempt_of(row) for row in rows]

    async def outputs(self, run_id: RunId) -> list[Output]:
        return [output_of(row) for row in await self._pool.read(self._sql["outputs"], self.namespace, run_id)]

    async def answers(self, asked: Sequence[tuple[RunId, str]]) -> list[Output | None]:
        chains, names = [chain for chain, _ in asked], [name for _, name in asked]
        found: list[Output | None] = [None] * len(asked)
        for row in await self._pool.read(self._sql["answers"], self.namespace, chains, names):
            found[row["n"] - 1] = output_of(row)
        return found

    async def closed_among(self, run_ids: Sequence[RunId]) -> list[RunId]:
        rows = await self._pool.read(self._sql["closed_among"], self.namespace, list(run_ids))
        return [row["run_id"] for row in rows]

    async def outcome(self, run_id: RunId) -> tuple[Run, Entry | None]:
        rows = await self._pool.read(self._sql["outcome"], self.namespace, run_id)
        if not rows:
            raise UnknownRun(run_id, self.namespace)
        last = None if rows[0]["last_ord"] is None else entry_of(rows[0], "last_")
        return run_of(rows[0]), last

    async def list_runs(self, where: RunFilter, cursor: str | None = None, limit: int = 50) -> Page:
        before = None if cursor is None else _cursor(cursor)
        notable = where.states and NOTABLE.issuperset(where.states)
        query = self._sql["list_children" if where.parent else "list_notable_runs" if notable else "list_runs"]
        rows = await self._pool.read(query, self.namespace, *_restrictions(where), before, limit + 1)
        page = [run_of(row) for row in rows[:limit]]
        return Page(page, str(page[-1].run_id) if len(rows) > limit and page else None)

    async def count_runs(self, where: RunFilter) -> int:
        if where.parent is not None:
            query = "count_children"
        else:
            query = "count_open" if where.states and OPEN.issuperset(where.states) else "count_runs"
        rows = await self._pool.read(self._sql[query], self.namespace, *_restrictions(where))
        count: int = rows[0]["runs"]
        return count

    async def workers(self) -> list[WorkerView]:
        return [worker_of(row) for row in await self._pool.read(self._sql["workers"], self.namespace)]


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
        raise InvalidInput(f"{text!r} is no cursor: pass the one that the page before came with") from None
