"""Lists and counts of runs."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from batuta.errors import InvalidInput
from batuta.journal.queues import MOST_COUNTED, MOST_QUEUES, StoreGauges, gauges_of
from batuta.journal.records import Page, RunFilter, WorkerView
from batuta.journal.states import RunState
from batuta.stores.sqlite.database.base import Base
from batuta.stores.sqlite.database.rows import run_of, to_json, workers_of
from batuta.stores.sqlite.database.unit_of_work import UnitOfWork

_LAST = b"\xff" * 17
"""After every run id."""

_UNHAPPY = {
    RunState.FAILED,
    RunState.TIMED_OUT,
    RunState.CANCELLED,
    RunState.TERMINATED,
    RunState.NEEDS_CODE,
    RunState.POISONED,
    RunState.PAUSED,
}
"""States with their own index: few runs are in them, and operators look for them."""


class ListingVerbs(Base):
    """The part of the store that lists and counts runs."""

    async def list_runs(self, where: RunFilter, cursor: str | None = None, limit: int = 50) -> Page:
        before = _decode_cursor(cursor)
        return await self._read_soon(lambda unit: _page(unit, where, before, limit))

    async def count_runs(self, where: RunFilter) -> int:
        return sum((await self.count_states(where)).values())

    async def count_states(self, where: RunFilter) -> dict[RunState, int]:
        query = "count_retrying" if where.retrying else "count_children" if where.parent else "count_runs"
        rows = await self._read_apart(lambda unit: unit.rows(query, _values(unit.namespace, where)))
        return {RunState(state): count for state, count in rows}

    async def gauges(self) -> StoreGauges:
        values = {"namespace": self.namespace, "now": self.clock_now(), "most": MOST_COUNTED, "queues": MOST_QUEUES}
        return await self._read_apart(lambda unit: gauges_of(unit.execute("gauges", values)))

    async def workers(self) -> list[WorkerView]:
        return workers_of(self._rows("workers", (self.namespace,)), self.clock_now())

    def namespaces(self) -> list[str]:
        """All that have runs."""
        return [name for (name,) in self._rows("namespaces", ())]


def _page(unit: UnitOfWork, where: RunFilter, before: bytes, limit: int) -> Page:
    """One page, newest first. Each page begins where the index says, not after counting to there."""
    unhappy = bool(where.states) and _UNHAPPY.issuperset(where.states)
    kind = "list_retrying" if where.retrying else "list_children" if where.parent else ""
    values = _values(unit.namespace, where) | {"before": before, "limit": limit + 1}
    runs = [run_of(row) for row in unit.rows(kind or ("list_unhappy_runs" if unhappy else "list_runs"), values)]
    page = runs[:limit]
    return Page(page, str(page[-1].run_id) if len(runs) > limit else None)


def _decode_cursor(cursor: str | None) -> bytes:
    """The run id that a page ended with."""
    try:
        return _LAST if cursor is None else UUID(cursor).bytes
    except ValueError:
        raise InvalidInput(f"{cursor!r} is not a cursor: pass the cursor of the previous page") from None


def _values(namespace: str, where: RunFilter) -> dict[str, Any]:
    return {
        "namespace": namespace,
        "states": to_json([state.value for state in where.states]) if where.states else None,
        "name": where.name,
        "kind": None if where.kind is None else where.kind.value,
        "queue": where.queue,
        "flow_key": where.flow_key,
        "parent": None if where.parent is None else where.parent.bytes,
        "id_prefix": where.id_prefix,
        "tags": to_json(where.tags) if where.tags else None,
        "created_after": where.created_after,
        "created_before": where.created_before,
        "retrying": where.retrying,
    }
