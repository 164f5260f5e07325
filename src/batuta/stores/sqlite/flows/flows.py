"""Flows, events and what they begin, in SQLite."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any
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
from batuta.journal.records import Hint, NewRun
from batuta.stores.sqlite import starts
from batuta.stores.sqlite.audit import record
from batuta.stores.sqlite.database.connection import Q
from batuta.stores.sqlite.database.readers import Readers
from batuta.stores.sqlite.database.rows import Row, one, run_of
from batuta.stores.sqlite.database.writer import Writer

_LAST = b"\xff" * 17
"""After every id."""
SMALL = 4
"""A batch of no more events may be synced on the event loop's thread."""


class FlowVerbs(ABC):
    """The part of the store that is about flows."""

    namespace: str
    _writer: Writer
    _readers: Readers

    @abstractmethod
    def clock_now(self) -> int: ...

    @abstractmethod
    def tell(self, hint: Hint) -> None: ...

    async def put_flow(
        self,
        flow: FlowRow,
        expected: int | None = None,
        act: Act | None = None,
        schedule: FlowSchedule | None = None,
    ) -> bool:
        now = self.clock_now()
        values = asdict(flow) | {"namespace": self.namespace, "now": now, "expected": expected}
        values["workflow_id"] = flow.workflow_id.bytes

        def work(cursor: sqlite3.Cursor) -> bool:
            if not cursor.execute(Q["insert_flow" if expected is None else "replace_flow"], values).rowcount:
                return False
            if flow.is_active:
                cursor.execute(Q["deactivate_other_flows"], values)
            if schedule is not None:
                _put_schedule(cursor, self.namespace, schedule, now)
            record(cursor, self.namespace, now, act, [Changed(target=flow.target)])
            return True

        written = await self._writer.write(work, small=True)
        self.tell(Hint(schedules=written and schedule is not None))
        return written

    async def flow(self, workflow_id: UUID) -> FlowRow | None:
        values = {"namespace": self.namespace, "workflow_id": workflow_id.bytes}
        found = self._flows("flow", values)
        return found[0] if found else None

    async def flows(self, where: FlowFilter, after: tuple[str, int] | None = None, limit: int = 50) -> list[FlowRow]:
        name, version = after or ("", 0)
        values = asdict(where) | {"namespace": self.namespace, "after_name": name, "after_version": version}
        return self._flows("flows", values | {"limit": limit})

    async def changed_flows(self, since: int, limit: int = 1_000) -> list[FlowRow]:
        return self._flows("changed_flows", (self.namespace, since, limit))

    async def active_flows(self, trigger_type: str) -> list[FlowRow]:
        return self._flows("active_flows", (self.namespace, trigger_type))

    def _flows(self, statement: str, values: Any) -> list[FlowRow]:
        return [_flow_of(row) for row in self._rows(statement, values)]

    def _rows(self, statement: str, values: Any) -> list[Row]:
        return self._readers.read(lambda connection: connection.execute(Q[statement], values).fetchall())

    async def accept_events(self, events: Sequence[NewEvent]) -> list[Accepted]:
        namespace = self.namespace

        def work(cursor: sqlite3.Cursor) -> list[Accepted]:
            now = self.clock_now()  # while no other process writes: counted runs are in this order
            return [_accept(cursor, namespace, new, now) for new in events]

        accepted = await self._writer.write(work, small=len(events) <= SMALL)
        begun = any(one.is_new and new.starts for one, new in zip(accepted, events, strict=True))
        self.tell(Hint(due=begun))
        return accepted

    async def counted_runs(self, flow_key: str) -> list[RunId]:
        return [_uuid(row[0]) for row in self._rows("counted_runs", (self.namespace, flow_key))]

    async def start_flow_run(self, event_id: UUID, start: FlowStart) -> tuple[FlowRun, bool]:
        namespace, now = self.namespace, self.clock_now()

        def work(cursor: sqlite3.Cursor) -> tuple[FlowRun, bool]:
            if one(cursor.execute(Q["event"], (namespace, event_id.bytes))) is None:
                raise UnknownEvent(event_id)
            known = one(cursor.execute(Q["flow_run"], (namespace, start.workflow_id.bytes, event_id.bytes)))
            if known is not None:
                return _flow_run_of(known), False
            return _begin(cursor, namespace, event_id, start, now), True

        found, new = await self._writer.write(work, small=True)
        self.tell(Hint(due=new))
        return found, new

    async def event(self, event_id: UUID) -> EventRow | None:
        rows = self._rows("event", (self.namespace, event_id.bytes))
        return _event_of(rows[0]) if rows else None

    async def events(self, where: EventFilter, before: UUID | None = None, limit: int = 50) -> list[EventRow]:
        last = _LAST if before is None else before.bytes
        values = asdict(where) | {"namespace": self.namespace, "before": last, "limit": limit}
        return [_event_of(row) for row in self._rows("events", values)]

    async def rewrite_events(self, events: Sequence[EventRow]) -> None:
        rows = [(one.payload, self.namespace, one.event_id.bytes) for one in events]
        await self._writer.write(lambda cursor: cursor.executemany(Q["rewrite_event"], rows), aside=True)

    async def flow_runs(self, where: FlowRunFilter, before: UUID | None = None, limit: int = 50) -> list[FlowRun]:
        last = _LAST if before is None else before.bytes
        if where.event_ids is None:
            if where.workflow_id is None:
                return []
            values = {"namespace": self.namespace, "workflow_id": where.workflow_id.bytes, "before": last}
            return [_flow_run_of(row) for row in self._rows("flow_runs_of_flow", values | {"limit": limit})]

        def work(connection: sqlite3.Connection) -> list[FlowRun]:
            asked = [(self.namespace, event_id.bytes) for event_id in dict.fromkeys(where.event_ids or ())]
            rows = [row for each in asked for row in connection.execute(Q["flow_runs_of_event"], each)]
            return [_flow_run_of(row) for row in rows if row[2] < last]

        found = self._readers.read(work)
        found = [one for one in found if where.workflow_id in (None, one.workflow_id)]
        return sorted(found, key=lambda one: one.chain_id, reverse=True)[:limit]

    async def prune_events(self, keep: int, limit: int) -> int:
        namespace = self.namespace
        values = {"namespace": namespace, "until": self.clock_now() - keep, "limit": limit}

        def work(cursor: sqlite3.Cursor) -> int:
            old = [(namespace, row[0]) for row in cursor.execute(Q["old_events"], values).fetchall()]
            cursor.executemany(Q["delete_flow_keys"], old)
            cursor.executemany(Q["delete_event"], old)
            cursor.executemany(Q["delete_flow_runs"], old)
            return len(old)

        return await self._writer.write(work)

    async def open_runs(self, prefix: str, limit: int) -> list[RunId]:
        values = (self.namespace, prefix, f"{prefix}\x7f", limit)
        return [_uuid(row[0]) for row in self._rows("open_runs", values)]


def _put_schedule(cursor: sqlite3.Cursor, namespace: str, given: FlowSchedule, now: int) -> None:
    row = given.row
    if row is None:
        cursor.execute(Q["delete_schedule"], (namespace, given.id))
        return
    values = asdict(row) | {"namespace": namespace, "id": given.id, "now": now}
    cursor.execute(Q["put_flow_schedule"], values)


def _accept(cursor: sqlite3.Cursor, namespace: str, new: NewEvent, now: int) -> Accepted:
    event = new.event
    known = one(cursor.execute(Q["event"], (namespace, event.event_id.bytes)))
    if known is not None:
        return Accepted(_event_of(known), True)  # written again, because its first answer was lost
    if event.external_id is not None:
        first = one(cursor.execute(Q["event_named"], (namespace, event.source, event.external_id)))
        if first is not None:
            return Accepted(_event_of(first), False)
    if new.flows is not None:
        active = cursor.execute(Q["active_flow_ids"], (namespace, event.type)).fetchall()
        if [row[0] for row in active] != [one.bytes for one in new.flows]:
            return Accepted(event, False, True)
    if waits := _waits(cursor, namespace, new):
        return Accepted(event, False, True, waits)
    replayed = None if event.replay_of is None else event.replay_of.bytes
    said = (event.type, event.source, event.external_id, event.payload, replayed, now)
    cursor.execute(Q["insert_event"], (namespace, event.event_id.bytes, *said))
    for start in new.starts:
        if start.room is None or _has_room(cursor, namespace, start.run, start.room):
            _begin(cursor, namespace, event.event_id, start, now)
    return Accepted(EventRow(**(asdict(event) | {"created_at": now})), True)


def _waits(cursor: sqlite3.Cursor, namespace: str, new: NewEvent) -> dict[RunId, RunId]:
    """The runs that wait in the place of those that its debounced starts are for."""
    found: dict[RunId, RunId] = {}
    for run in (start.run for start in new.starts if start.run.debounce and start.run.instead is not None):
        row = one(cursor.execute(Q["debounced"], (namespace, run.debounce)))
        waiting = run.run_id if row is None else run_of(row).run_id
        if waiting != run.instead:
            found[run.run_id] = waiting
    return found


def _has_room(cursor: sqlite3.Cursor, namespace: str, run: NewRun, room: int) -> bool:
    """Whether it may begin beside the open runs of its key; then it is counted. One that joins a run that waits under
    its debounce key is counted already."""
    if run.debounce and one(cursor.execute(Q["debounced"], (namespace, run.debounce))) is not None:
        return True
    cursor.execute(Q["forget_flow_keys"], (namespace, run.flow_key))
    [counted] = cursor.execute(Q["count_flow_keys"], (namespace, run.flow_key)).fetchone()
    if counted >= room:
        return False
    cursor.execute(Q["insert_flow_key"], (namespace, run.run_id.bytes, run.flow_key, run.id))
    return True


def _begin(cursor: sqlite3.Cursor, namespace: str, event_id: UUID, start: FlowStart, now: int) -> FlowRun:
    """A run that another one of its id or key stands in for is linked only if it is debounced."""
    run, is_new = starts.start(cursor, namespace, start.run, now)
    if is_new or start.run.debounce:
        linked = (namespace, start.workflow_id.bytes, event_id.bytes, run.chain_id.bytes)
        cursor.execute(Q["insert_flow_run"], linked)
    return FlowRun(start.workflow_id, event_id, run.chain_id)


def _flow_of(row: Row) -> FlowRow:
    found = dict(zip(_FLOW, row, strict=True))
    return FlowRow(**(found | {"workflow_id": _uuid(row[0]), "is_active": bool(found["is_active"])}))


_FLOW = (
    "workflow_id name version description trigger_type document is_active published_at revision created_at updated_at"
).split()


def _event_of(row: Row) -> EventRow:
    found = dict(zip(_EVENT, row, strict=True))
    replayed = found["replay_of"]
    ids = {"event_id": _uuid(row[0]), "replay_of": None if replayed is None else _uuid(replayed)}
    return EventRow(**(found | ids))


_EVENT = [name for name in EventRow.__struct_fields__ if name != "sealed"]


def _flow_run_of(row: Row) -> FlowRun:
    return FlowRun(*map(_uuid, row))


def _uuid(data: bytes) -> UUID:
    return uuid_of(int.from_bytes(data))
