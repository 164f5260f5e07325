"""Flows, events and what they begin, in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
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
    FlowSchedule,
    FlowStart,
    NewEvent,
)
from batuta.journal.records import Hint
from batuta.stores.postgres.audit import act_values
from batuta.stores.postgres.base import Base
from batuta.stores.postgres.database import batch_columns
from batuta.stores.postgres.database.batch_columns import Columns

_FLOW, _EVENT = ([name for name in kind.__struct_fields__ if name != "sealed"] for kind in (FlowRow, EventRow))

_Starts = dict[RunId, tuple[EventRow, FlowStart]]
"""By run id: the event that starts it."""


class FlowVerbs(Base):
    async def put_flow(
        self,
        flow: FlowRow,
        expected: int | None = None,
        act: Act | None = None,
        schedule: FlowSchedule | None = None,
    ) -> bool:
        said = (flow.workflow_id, flow.name, flow.version, flow.description, flow.trigger_type, flow.document)
        schedule_id, row = (None, None) if schedule is None else (schedule.id, schedule.row)
        plan = (None,) * 3 if row is None else (row.spec, row.state, row.next_at)
        values = (*said, flow.is_active, flow.published_at, expected, *act_values(act), schedule_id, *plan)
        rows = await self._execute("put_flow", *values)
        written = bool(rows[0]["written"])
        self._announcer.tell(Hint(schedules=written and row is not None))
        return written

    async def flow(self, workflow_id: UUID) -> FlowRow | None:
        return await self._read_first(_flow_of, "flow", workflow_id)

    async def flows(self, where: FlowFilter, after: tuple[str, int] | None = None, limit: int = 50) -> list[FlowRow]:
        said = (where.name, where.trigger_type, where.active, where.published, limit)
        return await self._read_all(_flow_of, "flows", *(after or ("", 0)), *said)

    async def changed_flows(self, since: int, limit: int = 1_000) -> list[FlowRow]:
        return await self._read_all(_flow_of, "changed_flows", since, limit)

    async def active_flows(self, trigger_type: str) -> list[FlowRow]:
        return await self._read_all(_flow_of, "active_flows", trigger_type)

    async def accept_events(self, events: Sequence[NewEvent]) -> list[Accepted]:
        """Events that start debounced runs are written one by one, but first those before them."""
        accepted: list[Accepted] = []
        plain: list[NewEvent] = []
        for new in events:
            if any(start.run.debounce for start in new.starts):
                accepted += [*await self._accept(plain), await self._accept_debounced(new)]
                plain = []
            else:
                plain.append(new)
        return accepted + await self._accept(plain)

    async def _accept(self, events: Sequence[NewEvent]) -> list[Accepted]:
        if not events:
            return []
        starts = _starts_of(events)
        columns = batch_columns.unowned_columns([start.run for _, start in starts.values()])
        row = await self._write_events("accept_events", events, starts, columns[0], columns)
        won = set(row["won"])
        others = await self._first_ones([new.event for new in events if new.event.event_id not in won])
        return [_outcome(new.event, won, others, row["moment"]) for new in events]

    async def _accept_debounced(self, new: NewEvent) -> Accepted:
        """Starts that find no room are left out, and the rest is written again."""
        while True:
            starts = _starts_of([new])
            columns = batch_columns.together_columns([start.run for _, start in starts.values()])
            row = await self._write_events("accept_event_together", [new], starts, columns[3], columns)
            if row["asked"]:
                return Accepted(new.event, False, True, dict(zip(row["asked"], row["waiting"], strict=True)))
            admitted = set(row["admitted"])
            if len(admitted) == len(starts):
                break
            new = replace(new, starts=[start for start in new.starts if start.run.run_id in admitted])
            if not any(start.run.debounce for start in new.starts):
                return (await self._accept([new]))[0]
        won = set(row["won"])
        others = {} if won else await self._first_ones([new.event])
        return _outcome(new.event, won, others, row["moment"])

    async def _write_events(
        self, statement: str, events: Sequence[NewEvent], starts: _Starts, in_order: list[UUID], columns: Columns
    ) -> Record:
        """`in_order`: the ids of the runs, as in the columns."""
        counted = [start for _, start in starts.values() if start.room is not None]
        [row] = await self._execute(
            statement,
            *_event_columns(events),
            [starts[run_id][0].event_id for run_id in in_order],
            [starts[run_id][1].workflow_id for run_id in in_order],
            *columns,
            [one.run.run_id for one in counted],
            [one.run.id for one in counted],
            [one.run.flow_key for one in counted],
            [one.room for one in counted],
            [one.run.debounce or None for one in counted],
        )
        self._announcer.tell(Hint(due=row["begun"] > 0))
        return row

    async def _first_ones(self, events: Sequence[EventRow]) -> dict[object, EventRow]:
        """By event id, and by source and external id."""
        if not events:
            return {}
        named = [event for event in events if event.external_id is not None]
        names = ([event.source for event in named], [event.external_id for event in named])
        ids = [event.event_id for event in events]
        found = await self._read_all(_event_of, "events_among", ids, *names)
        return {one.event_id: one for one in found} | {
            (one.source, one.external_id): one for one in found if one.external_id is not None
        }

    async def counted_runs(self, flow_key: str) -> list[RunId]:
        return await self._read_all(itemgetter("run_id"), "counted_runs", flow_key)

    async def start_flow_run(self, event_id: UUID, start: FlowStart) -> tuple[FlowRun, bool]:
        run = start.run
        columns = batch_columns.unowned_columns([run])
        rows = await self._execute("start_flow_run", event_id, start.workflow_id, run.run_id, *columns)
        self._announcer.tell(Hint(due=rows[0]["begun"] > 0))
        found = await self._read_first(_flow_run_of, "flow_run", start.workflow_id, event_id)
        if found is None:
            raise UnknownEvent(event_id)
        return found, found.chain_id == run.run_id

    async def event(self, event_id: UUID) -> EventRow | None:
        return await self._read_first(_event_of, "event", event_id)

    async def events(self, where: EventFilter, before: UUID | None = None, limit: int = 50) -> list[EventRow]:
        values = (before, where.type, where.source, where.external_id, limit)
        return await self._read_all(_event_of, "events", *values)

    async def rewrite_events(self, events: Sequence[EventRow]) -> None:
        columns = [one.event_id for one in events], [one.payload for one in events]
        await self._execute("rewrite_events", *columns)

    async def flow_runs(self, where: FlowRunFilter, before: UUID | None = None, limit: int = 50) -> list[FlowRun]:
        if where.event_ids is not None:
            values = (list(where.event_ids), before, limit, where.workflow_id)
            return await self._read_all(_flow_run_of, "flow_runs_of_events", *values)
        return await self._read_all(_flow_run_of, "flow_runs_of_flow", where.workflow_id, before, limit)

    async def prune_events(self, keep: int, limit: int) -> int:
        rows = await self._execute("prune_events", keep, limit)
        return int(rows[0]["gone"])

    async def open_runs(self, prefix: str, limit: int) -> list[RunId]:
        return await self._read_all(itemgetter("run_id"), "open_runs", prefix, f"{prefix}\x7f", limit)


def _starts_of(events: Sequence[NewEvent]) -> _Starts:
    return {start.run.run_id: (new.event, start) for new in events for start in new.starts}


def _event_columns(events: Sequence[NewEvent]) -> Columns:
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
