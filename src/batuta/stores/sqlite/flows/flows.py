"""Flows, events and what they begin, in SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from msgspec.structs import asdict

from batuta.errors import UnknownEvent
from batuta.ids import RunId, uuid_of
from batuta.journal.audit import Act, Changed
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
from batuta.journal.records import NewRun
from batuta.stores.sqlite import starts
from batuta.stores.sqlite.database.base import Base
from batuta.stores.sqlite.database.rows import run_of
from batuta.stores.sqlite.database.unit_of_work import UnitOfWork

_LAST = b"\xff" * 17
"""After every id."""
SMALL = 4
"""A batch of no more events may be synced on the event loop's thread."""


class FlowVerbs(Base):
    """The part of the store that is about flows."""

    async def put_flow(
        self,
        flow: FlowRow,
        expected: int | None = None,
        act: Act | None = None,
        schedule: FlowSchedule | None = None,
    ) -> bool:
        def work(unit: UnitOfWork) -> bool:
            values = asdict(flow) | {"namespace": unit.namespace, "now": unit.now, "expected": expected}
            values["workflow_id"] = flow.workflow_id.bytes
            if not unit.change("insert_flow" if expected is None else "replace_flow", values):
                return False
            if flow.is_active:
                unit.change("deactivate_other_flows", values)
            if schedule is not None:
                _put_schedule(unit, schedule)
                unit.hint.schedules = True
            unit.record(act, [Changed(target=flow.target)])
            return True

        return await self._write(work, small=True)

    async def flow(self, workflow_id: UUID) -> FlowRow | None:
        return self._struct(FlowRow, "flow", {"namespace": self.namespace, "workflow_id": workflow_id.bytes})

    async def flows(self, where: FlowFilter, after: tuple[str, int] | None = None, limit: int = 50) -> list[FlowRow]:
        name, version = after or ("", 0)
        values = asdict(where) | {"namespace": self.namespace, "after_name": name, "after_version": version}
        return self._structs(FlowRow, "flows", values | {"limit": limit})

    async def changed_flows(self, since: int, limit: int = 1_000) -> list[FlowRow]:
        return self._structs(FlowRow, "changed_flows", (self.namespace, since, limit))

    async def active_flows(self, trigger_type: str) -> list[FlowRow]:
        return self._structs(FlowRow, "active_flows", (self.namespace, trigger_type))

    async def accept_events(self, events: Sequence[NewEvent]) -> list[Accepted]:
        return await self._write(lambda unit: [_accept(unit, new) for new in events], small=len(events) <= SMALL)

    async def counted_runs(self, flow_key: str) -> list[RunId]:
        return [_uuid(row[0]) for row in self._rows("counted_runs", (self.namespace, flow_key))]

    async def start_flow_run(self, event_id: UUID, start: FlowStart) -> tuple[FlowRun, bool]:
        def work(unit: UnitOfWork) -> tuple[FlowRun, bool]:
            if not unit.finds("event", (unit.namespace, event_id.bytes)):
                raise UnknownEvent(event_id)
            known = unit.struct(FlowRun, "flow_run", (unit.namespace, start.workflow_id.bytes, event_id.bytes))
            if known is not None:
                return known, False
            return _begin(unit, event_id, start), True

        return await self._write(work, small=True)

    async def event(self, event_id: UUID) -> EventRow | None:
        return self._struct(EventRow, "event", (self.namespace, event_id.bytes))

    async def events(self, where: EventFilter, before: UUID | None = None, limit: int = 50) -> list[EventRow]:
        last = _LAST if before is None else before.bytes
        values = asdict(where) | {"namespace": self.namespace, "before": last, "limit": limit}
        return self._structs(EventRow, "events", values)

    async def rewrite_events(self, events: Sequence[EventRow]) -> None:
        rows = [(one.payload, self.namespace, one.event_id.bytes) for one in events]
        await self._write(lambda unit: unit.change_each("rewrite_event", rows), aside=True)

    async def flow_runs(self, where: FlowRunFilter, before: UUID | None = None, limit: int = 50) -> list[FlowRun]:
        last = _LAST if before is None else before.bytes
        if where.event_ids is None:
            if where.workflow_id is None:
                return []
            values = {"namespace": self.namespace, "workflow_id": where.workflow_id.bytes, "before": last}
            return self._structs(FlowRun, "flow_runs_of_flow", values | {"limit": limit})

        def work(unit: UnitOfWork) -> list[FlowRun]:
            asked = [(self.namespace, event_id.bytes) for event_id in dict.fromkeys(where.event_ids or ())]
            found = [run for each in asked for run in unit.structs(FlowRun, "flow_runs_of_event", each)]
            return [run for run in found if run.chain_id.bytes < last]

        found = [one for one in self._read(work) if where.workflow_id in (None, one.workflow_id)]
        return sorted(found, key=lambda one: one.chain_id, reverse=True)[:limit]

    async def prune_events(self, keep: int, limit: int) -> int:
        values = {"namespace": self.namespace, "until": self.clock_now() - keep, "limit": limit}

        def work(unit: UnitOfWork) -> int:
            old = [(unit.namespace, row[0]) for row in unit.rows("old_events", values)]
            unit.change_each("delete_flow_keys", old)
            unit.change_each("delete_event", old)
            unit.change_each("delete_flow_runs", old)
            return len(old)

        return await self._write(work)

    async def open_runs(self, prefix: str, limit: int) -> list[RunId]:
        values = (self.namespace, prefix, f"{prefix}\x7f", limit)
        return [_uuid(row[0]) for row in self._rows("open_runs", values)]


def _put_schedule(unit: UnitOfWork, given: FlowSchedule) -> None:
    row = given.row
    if row is None:
        unit.change("delete_schedule", (unit.namespace, given.id))
        return
    values = asdict(row) | {"namespace": unit.namespace, "id": given.id, "now": unit.now}
    unit.change("put_flow_schedule", values)


def _accept(unit: UnitOfWork, new: NewEvent) -> Accepted:
    event = new.event
    known = unit.struct(EventRow, "event", (unit.namespace, event.event_id.bytes))
    if known is not None:  # written again, because its first answer was lost, and maybe its hint
        unit.hint.due = unit.hint.due or bool(new.starts)
        return Accepted(known, True)
    if event.external_id is not None:
        first = unit.struct(EventRow, "event_named", (unit.namespace, event.source, event.external_id))
        if first is not None:
            return Accepted(first, False)
    if new.flows is not None:
        active = unit.rows("active_flow_ids", (unit.namespace, event.type))
        if [row[0] for row in active] != [one.bytes for one in new.flows]:
            return Accepted(event, False, True)
    if waits := _waits(unit, new):
        return Accepted(event, False, True, waits)
    replayed = None if event.replay_of is None else event.replay_of.bytes
    said = (event.type, event.source, event.external_id, event.payload, replayed, unit.now)
    unit.change("insert_event", (unit.namespace, event.event_id.bytes, *said))
    for start in new.starts:
        if start.room is None or _has_room(unit, start.run, start.room):
            _begin(unit, event.event_id, start)
    return Accepted(EventRow(**(asdict(event) | {"created_at": unit.now})), True)


def _waits(unit: UnitOfWork, new: NewEvent) -> dict[RunId, RunId]:
    """The runs that wait in the place of those that its debounced starts are for."""
    found: dict[RunId, RunId] = {}
    for run in (start.run for start in new.starts if start.run.debounce and start.run.instead is not None):
        row = unit.row("debounced", (unit.namespace, run.debounce))
        waiting = run.run_id if row is None else run_of(row).run_id
        if waiting != run.instead:
            found[run.run_id] = waiting
    return found


def _has_room(unit: UnitOfWork, run: NewRun, room: int) -> bool:
    """Whether it may begin beside the open runs of its key; then it is counted. One that joins a run that waits under
    its debounce key is counted already."""
    if run.debounce and unit.finds("debounced", (unit.namespace, run.debounce)):
        return True
    unit.change("forget_flow_keys", (unit.namespace, run.flow_key))
    if unit.value("count_flow_keys", (unit.namespace, run.flow_key)) >= room:
        return False
    unit.change("insert_flow_key", (unit.namespace, run.run_id.bytes, run.flow_key, run.id))
    return True


def _begin(unit: UnitOfWork, event_id: UUID, start: FlowStart) -> FlowRun:
    """A run that another one of its id or key stands in for is linked only if it is debounced."""
    run, is_new = starts.start(unit, start.run)
    if is_new or start.run.debounce:
        linked = (unit.namespace, start.workflow_id.bytes, event_id.bytes, run.chain_id.bytes)
        unit.change("insert_flow_run", linked)
    return FlowRun(start.workflow_id, event_id, run.chain_id)


def _uuid(data: bytes) -> UUID:
    return uuid_of(int.from_bytes(data))
