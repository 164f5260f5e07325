"""Flows, events and what they begin, in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from asyncpg import Record
from msgspec.structs import replace

from batuta.errors import UnknownEvent
from batuta.ids import RunId
from batuta.journal.audit import Act
from batuta.journal.flows.records import (
    Accepted,
    EventFilter,
    EventRow,
    FlowFilter,
    FlowRow,
    FlowRun,
    FlowRunFilter,
    FlowStart,
    NewEvent,
)
from batuta.journal.records import Hint
from batuta.stores.postgres.audit import act_values
from batuta.stores.postgres.base import Base
from batuta.stores.postgres.database import batch_columns

_FLOW, _EVENT = ([name for name in kind.__struct_fields__ if name != "sealed"] for kind in (FlowRow, EventRow))


class FlowVerbs(Base):
    """The part of the store that is about flows."""

    async def put_flow(self, flow: FlowRow, expected: int | None = None, act: Act | None = None) -> bool:
        said = (flow.workflow_id, flow.name, flow.version, flow.description, flow.trigger_type, flow.document)
        values = (self.namespace, *said, flow.is_active, flow.published_at, expected, *act_values(act))
        rows = await self._pool.write(self._sql["put_flow"], *values)
        return bool(rows[0]["written"])

    async def flow(self, workflow_id: UUID) -> FlowRow | None:
        rows = await self._pool.read(self._sql["flow"], self.namespace, workflow_id)
        return _flow_of(rows[0]) if rows else None

    async def flows(self, where: FlowFilter, after: tuple[str, int] | None = None, limit: int = 50) -> list[FlowRow]:
        said = (where.name, where.trigger_type, where.active, where.published, limit)
        return [
            _flow_of(row)
            for row in await self._pool.read(self._sql["flows"], self.namespace, *(after or ("", 0)), *said)
        ]

    async def active_flows(self, trigger_type: str) -> list[FlowRow]:
        rows = await self._pool.read(self._sql["active_flows"], self.namespace, trigger_type)
        return [_flow_of(row) for row in rows]

    async def accept_events(self, events: Sequence[NewEvent]) -> list[Accepted]:
        """Events that start debounced runs are written one by one, but first those before them."""
        accepted: list[Accepted] = []
        plain: list[NewEvent] = []
        for new in events:
            if any(start.run.debounce for start in new.starts):
                accepted += [*await self._accept(plain), *await self._accept([new], debounced=True)]
                plain = []
            else:
                plain.append(new)
        return accepted + await self._accept(plain)

    async def _accept(self, events: Sequence[NewEvent], *, debounced: bool = False) -> list[Accepted]:
        if not events:
            return []
        starts = {start.run.run_id: (new.event, start) for new in events for start in new.starts}
        runs = [start.run for _, start in starts.values()]
        if debounced:
            columns = batch_columns.together_columns(runs)
            in_order: list[UUID] = columns[3]
        else:
            columns = batch_columns.unowned_columns(runs)
            in_order = columns[0]
        [row] = await self._pool.write(
            self._sql["accept_event_together" if debounced else "accept_events"],
            self.namespace,
            *_event_columns(events),
            [starts[run_id][0].event_id for run_id in in_order],
            [starts[run_id][1].workflow_id for run_id in in_order],
            *columns,
        )
        self._announcer.tell(Hint(due=row["begun"] > 0))
        won = set(row["won"])
        others = await self._first_ones([new.event for new in events if new.event.event_id not in won])
        return [_outcome(new.event, won, others, row["moment"]) for new in events]

    async def _first_ones(self, events: Sequence[EventRow]) -> dict[object, EventRow]:
        """By event id, and by source and external id."""
        if not events:
            return {}
        named = [event for event in events if event.external_id is not None]
        names = ([event.source for event in named], [event.external_id for event in named])
        ids = [event.event_id for event in events]
        rows = await self._pool.read(self._sql["events_among"], self.namespace, ids, *names)
        found = [_event_of(row) for row in rows]
        return {one.event_id: one for one in found} | {
            (one.source, one.external_id): one for one in found if one.external_id is not None
        }

    async def start_flow_run(self, event_id: UUID, start: FlowStart) -> tuple[FlowRun, bool]:
        run = start.run
        columns = batch_columns.unowned_columns([run])
        values = (self.namespace, event_id, start.workflow_id, run.run_id, *columns)
        rows = await self._pool.write(self._sql["start_flow_run"], *values)
        self._announcer.tell(Hint(due=rows[0]["begun"] > 0))
        known = await self._pool.read(self._sql["flow_run"], self.namespace, start.workflow_id, event_id)
        if not known:
            raise UnknownEvent(event_id)
        found = _flow_run_of(known[0])
        return found, found.chain_id == run.run_id

    async def event(self, event_id: UUID) -> EventRow | None:
        rows = await self._pool.read(self._sql["event"], self.namespace, event_id)
        return _event_of(rows[0]) if rows else None

    async def events(self, where: EventFilter, before: UUID | None = None, limit: int = 50) -> list[EventRow]:
        values = (self.namespace, before, where.type, where.source, where.external_id, limit)
        return [_event_of(row) for row in await self._pool.read(self._sql["events"], *values)]

    async def rewrite_events(self, events: Sequence[EventRow]) -> None:
        columns = [one.event_id for one in events], [one.payload for one in events]
        await self._pool.write(self._sql["rewrite_events"], self.namespace, *columns)

    async def flow_runs(self, where: FlowRunFilter, before: UUID | None = None, limit: int = 50) -> list[FlowRun]:
        if where.event_ids is not None:
            values = (self.namespace, list(where.event_ids), before, limit, where.workflow_id)
            rows = await self._pool.read(self._sql["flow_runs_of_events"], *values)
        else:
            rows = await self._pool.read(
                self._sql["flow_runs_of_flow"], self.namespace, where.workflow_id, before, limit
            )
        return [_flow_run_of(row) for row in rows]

    async def prune_events(self, keep: int, limit: int) -> int:
        rows = await self._pool.write(self._sql["prune_events"], self.namespace, keep, limit)
        gone: int = rows[0]["gone"]
        return gone

    async def open_runs(self, prefix: str, limit: int) -> list[RunId]:
        rows = await self._pool.read(self._sql["open_runs"], self.namespace, prefix, f"{prefix}\x7f", limit)
        return [row["run_id"] for row in rows]


def _event_columns(events: Sequence[NewEvent]) -> batch_columns.Columns:
    rows = [
        (
            new.event.event_id,
            new.event.type,
            new.event.source,
            new.event.external_id,
            new.event.payload,
            new.event.replay_of,
            None if new.flows is None else ",".join(map(str, new.flows)),
        )
        for new in events
    ]
    return batch_columns.as_columns(rows, 7)


def _outcome(event: EventRow, won: set[UUID], others: dict[object, EventRow], now: int) -> Accepted:
    if event.event_id in won:
        return Accepted(replace(event, created_at=now), True)
    if (same := others.get(event.event_id)) is not None:
        return Accepted(same, True)  # written again, because its first answer was lost
    first = others.get((event.source, event.external_id))
    return Accepted(event, False, True) if first is None else Accepted(first, False)


def _flow_of(row: Record) -> FlowRow:
    return FlowRow(**{name: row[name] for name in _FLOW})


def _event_of(row: Record) -> EventRow:
    return EventRow(**{name: row[name] for name in _EVENT})


def _flow_run_of(row: Record) -> FlowRun:
    return FlowRun(row["workflow_id"], row["event_id"], row["chain_id"])
