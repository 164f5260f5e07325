"""Flows, events and what they begin, in memory."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from msgspec.structs import replace

from batuta.errors import UnknownEvent
from batuta.ids import RunId
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
from batuta.stores.contract import rules
from batuta.stores.memory.audit import record
from batuta.stores.memory.base import Base, verb
from batuta.stores.memory.starts import start_many
from batuta.stores.memory.tables import NamespaceTables
from batuta.stores.memory.unit_of_work import UnitOfWork


class FlowVerbs(Base):
    @verb
    def put_flow(
        self,
        unit: UnitOfWork,
        flow: FlowRow,
        expected: int | None = None,
        act: Act | None = None,
        schedule: FlowSchedule | None = None,
    ) -> bool:
        kept = unit.tables.flows
        known = kept.get(flow.workflow_id)
        if (None if known is None else known.revision) != expected:
            return False
        taken = (flow.name, flow.version)
        if any((one.name, one.version) == taken and one is not known for one in kept.values()):
            return False
        record(unit, act, [Changed(target=flow.target)])
        for other in kept.values():
            if flow.is_active and other.name == flow.name and other.is_active and other is not known:
                other.is_active, other.updated_at, other.revision = False, unit.now, other.revision + 1
        kept[flow.workflow_id] = replace(
            flow,
            revision=unit.now if expected is None else expected + 1,
            created_at=unit.now if known is None else known.created_at,
            updated_at=unit.now,
        )
        if schedule is not None:
            _put_schedule(unit, schedule)
        return True

    @verb
    def flow(self, unit: UnitOfWork, workflow_id: UUID) -> FlowRow | None:
        found = unit.tables.flows.get(workflow_id)
        return None if found is None else replace(found)

    @verb
    def flows(
        self, unit: UnitOfWork, where: FlowFilter, after: tuple[str, int] | None = None, limit: int = 50
    ) -> list[FlowRow]:
        found = sorted(unit.tables.flows.values(), key=_place)
        first = None if after is None else (after[0], -after[1])
        return [replace(one) for one in found if _fits(where, one) and (first is None or _place(one) > first)][:limit]

    @verb
    def changed_flows(self, unit: UnitOfWork, since: int, limit: int = 1_000) -> list[FlowRow]:
        found = [replace(one) for one in unit.tables.flows.values() if one.updated_at >= since]
        return sorted(found, key=lambda one: (one.updated_at, one.workflow_id))[:limit]

    @verb
    def active_flows(self, unit: UnitOfWork, trigger_type: str) -> list[FlowRow]:
        return [replace(one) for one in _active(unit.tables, trigger_type)]

    @verb
    def accept_events(self, unit: UnitOfWork, events: Sequence[NewEvent]) -> list[Accepted]:
        return [_accept(unit, new) for new in events]

    @verb
    def counted_runs(self, unit: UnitOfWork, flow_key: str) -> list[RunId]:
        found = [_open_run(unit, id) for _, (_, id) in _counted(unit, flow_key)]
        return [run_id for run_id in found if run_id is not None]

    @verb
    def start_flow_run(self, unit: UnitOfWork, event_id: UUID, start: FlowStart) -> tuple[FlowRun, bool]:
        if event_id not in unit.tables.events:
            raise UnknownEvent(event_id)
        known = unit.tables.flow_runs.get((start.workflow_id, event_id))
        if known is not None:
            return replace(known), False
        return _begin(unit, event_id, start), True

    @verb
    def event(self, unit: UnitOfWork, event_id: UUID) -> EventRow | None:
        found = unit.tables.events.get(event_id)
        return None if found is None else replace(found)

    @verb
    def events(
        self, unit: UnitOfWork, where: EventFilter, before: UUID | None = None, limit: int = 50
    ) -> list[EventRow]:
        found = sorted(unit.tables.events.values(), key=lambda one: one.event_id, reverse=True)
        return [
            replace(one)
            for one in found
            if where.type in (None, one.type)
            and where.source in (None, one.source)
            and where.external_id in (None, one.external_id)
            and (before is None or one.event_id < before)
        ][:limit]

    @verb
    def rewrite_events(self, unit: UnitOfWork, events: Sequence[EventRow]) -> None:
        for event in events:
            if (known := unit.tables.events.get(event.event_id)) is not None:
                unit.tables.events[event.event_id] = replace(known, payload=event.payload)

    @verb
    def flow_runs(
        self, unit: UnitOfWork, where: FlowRunFilter, before: UUID | None = None, limit: int = 50
    ) -> list[FlowRun]:
        found = sorted(unit.tables.flow_runs.values(), key=lambda one: one.chain_id, reverse=True)
        return [
            replace(one)
            for one in found
            if where.workflow_id in (None, one.workflow_id)
            and (where.event_ids is None or one.event_id in where.event_ids)
            and (before is None or one.chain_id < before)
        ][:limit]

    @verb
    def prune_events(self, unit: UnitOfWork, keep: int, limit: int) -> int:
        tables = unit.tables
        with_runs = {one.event_id for one in tables.flow_runs.values() if one.chain_id in tables.rows}
        old = [
            one.event_id
            for one in sorted(tables.events.values(), key=lambda one: one.event_id)
            if one.created_at <= unit.now - keep and one.event_id not in with_runs
        ][:limit]
        gone = set(old)
        for event_id in old:
            event = tables.events.pop(event_id)
            if event.external_id is not None:
                del tables.event_names[event.source, event.external_id]
        for key in [key for key, one in tables.flow_runs.items() if one.event_id in gone]:
            tables.flow_keys.pop(tables.flow_runs.pop(key).chain_id, None)
        return len(old)

    @verb
    def open_runs(self, unit: UnitOfWork, prefix: str, limit: int) -> list[RunId]:
        found = sorted((row.run.id, row.run.run_id) for row in unit.tables.open.values())
        return [run_id for id, run_id in found if id.startswith(prefix)][:limit]


def _put_schedule(unit: UnitOfWork, given: FlowSchedule) -> None:
    kept = unit.tables.schedules
    known = kept.pop(given.id, None)
    if given.row is not None:
        kept[given.id] = replace(
            given.row,
            revision=unit.now if known is None else known.revision + 1,
            paused=given.row.paused if known is None else known.paused,
            reason=given.row.reason if known is None else known.reason,
            created_at=unit.now if known is None else known.created_at,
            updated_at=unit.now,
        )
        unit.hint.schedules = True


def _place(flow: FlowRow) -> tuple[str, int]:
    return flow.name, -flow.version


def _fits(where: FlowFilter, flow: FlowRow) -> bool:
    return (
        where.name in (None, flow.name)
        and where.trigger_type in (None, flow.trigger_type)
        and where.active in (None, flow.is_active)
        and where.published in (None, flow.published_at is not None)
    )


def _active(tables: NamespaceTables, trigger_type: str) -> list[FlowRow]:
    found = [one for one in tables.flows.values() if one.is_active and one.trigger_type == trigger_type]
    return sorted(found, key=lambda one: one.workflow_id)


def _accept(unit: UnitOfWork, new: NewEvent) -> Accepted:
    tables, event = unit.tables, new.event
    if (known := tables.events.get(event.event_id)) is not None:
        return Accepted(replace(known), True)  # written again, because its first answer was lost
    if event.external_id is not None:
        first = tables.event_names.get((event.source, event.external_id))
        if first is not None:
            return Accepted(replace(tables.events[first]), False)
    if new.flows is not None and new.flows != [one.workflow_id for one in _active(tables, event.type)]:
        return Accepted(event, False, True)
    if waits := _waits(tables, new):
        return Accepted(event, False, True, waits)
    tables.events[event.event_id] = replace(event, created_at=unit.now)
    if event.external_id is not None:
        tables.event_names[event.source, event.external_id] = event.event_id
    for start in new.starts:
        if start.room is None or _has_room(unit, start, start.room):
            _begin(unit, event.event_id, start)
    return Accepted(replace(tables.events[event.event_id]), True)


def _waits(tables: NamespaceTables, new: NewEvent) -> dict[RunId, RunId]:
    """The runs that wait in the place of those that its debounced starts are for."""
    found: dict[RunId, RunId] = {}
    for start in new.starts:
        if start.run.debounce and start.run.instead is not None:
            row = tables.debounced.get(start.run.debounce)
            waiting = start.run.run_id if row is None else row.run.run_id
            if waiting != start.run.instead:
                found[start.run.run_id] = waiting
    return found


def _has_room(unit: UnitOfWork, start: FlowStart, room: int) -> bool:
    """Whether it may begin beside the open runs of its key; then it is counted. One that joins a run that waits under
    its debounce key is counted already."""
    tables, run = unit.tables, start.run
    if run.debounce in tables.debounced:
        return True
    for chain_id, (_, id) in _counted(unit, run.flow_key):
        if _open_run(unit, id) is None:
            del tables.flow_keys[chain_id]
    if len(_counted(unit, run.flow_key)) >= room:
        return False
    tables.flow_keys[run.run_id] = run.flow_key, run.id
    return True


def _counted(unit: UnitOfWork, flow_key: str) -> list[tuple[RunId, tuple[str, str]]]:
    return [one for one in unit.tables.flow_keys.items() if one[1][0] == flow_key]


def _open_run(unit: UnitOfWork, id: str) -> RunId | None:
    row = unit.tables.current_row(id)
    return None if row is None or not row.is_open else row.run.run_id


def _begin(unit: UnitOfWork, event_id: UUID, start: FlowStart) -> FlowRun:
    [outcome] = start_many(unit, [start.run], None)
    run, is_new = rules.started(outcome) if isinstance(outcome, tuple) else (None, False)
    made = FlowRun(start.workflow_id, event_id, start.run.run_id if run is None else run.chain_id)
    if is_new or start.run.debounce:
        unit.tables.flow_runs[start.workflow_id, event_id] = made
    return replace(made)
