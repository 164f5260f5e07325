"""Lists and counts of runs, in memory."""

from __future__ import annotations

import json
from collections import Counter
from uuid import UUID

from batuta.errors import InvalidInput
from batuta.ids import RunId
from batuta.journal.queues import StoreGauges
from batuta.journal.records import Page, Run, RunFilter, WorkerView
from batuta.journal.states import RunState
from batuta.stores.memory.base import Base, verb
from batuta.stores.memory.queues import gauges
from batuta.stores.memory.tables import NamespaceTables, Registration, Row
from batuta.stores.memory.unit_of_work import UnitOfWork


class ListingVerbs(Base):
    """The part of the store that lists and counts."""

    @verb
    def list_runs(self, unit: UnitOfWork, where: RunFilter, cursor: str | None = None, limit: int = 50) -> Page:
        before = None if cursor is None else _cursor(cursor)
        found = sorted(_matching(unit.tables, where), key=lambda row: row.run.run_id, reverse=True)
        rest = [row.snapshot() for row in found if before is None or row.run.run_id < before]
        page = rest[:limit]
        return Page(page, str(page[-1].run_id) if len(rest) > limit else None)

    @verb
    def count_runs(self, unit: UnitOfWork, where: RunFilter) -> int:
        return len(_matching(unit.tables, where))

    @verb
    def count_states(self, unit: UnitOfWork, where: RunFilter) -> dict[RunState, int]:
        return dict(Counter(row.run.state for row in _matching(unit.tables, where)))

    @verb
    def gauges(self, unit: UnitOfWork) -> StoreGauges:
        return gauges(unit.tables, unit.now)

    @verb
    def workers(self, unit: UnitOfWork) -> list[WorkerView]:
        owned = Counter(row.run.owner for row in unit.tables.rows.values())
        known = sorted(unit.tables.workers.items())
        return [_view(worker, unit.now, owned[worker_id]) for worker_id, worker in known]


def _matching(room: NamespaceTables, where: RunFilter) -> list[Row]:
    rows = [row for row in room.rows.values() if _matches(where, row.run)]
    return [row for row in rows if row.failures() >= where.retrying] if where.retrying else rows


def _view(known: Registration, now: int, runs: int) -> WorkerView:
    worker = known.worker
    return WorkerView(
        worker_id=worker.worker_id,
        host=worker.host,
        pid=worker.pid,
        queues=list(worker.queues),
        code=dict(worker.code),
        registered_at=known.registered_at,
        beat_at=known.beat_at,
        lease_until=known.lease_until,
        live=known.lease_until > now,
        runs=runs,
    )


def _matches(where: RunFilter, run: Run) -> bool:
    tags = json.loads(run.tags) if where.tags else {}
    return (
        (not where.states or run.state in where.states)
        and where.name in (None, run.name)
        and where.kind in (None, run.kind)
        and where.queue in (None, run.queue)
        and (where.id_prefix is None or run.id.startswith(where.id_prefix))
        and all(tags.get(key) == value for key, value in where.tags)
        and where.flow_key in (None, run.flow_key)
        and where.parent in (None, run.parent_run_id)
        and (where.created_after is None or run.created_at > where.created_after)
        and (where.created_before is None or run.created_at < where.created_before)
    )


def _cursor(text: str) -> RunId:
    try:
        return UUID(text)
    except ValueError:
        raise InvalidInput(f"{text!r} is not a cursor: pass the cursor of the previous page") from None
