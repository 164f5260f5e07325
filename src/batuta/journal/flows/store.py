"""The part of a store that keeps flows and events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

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


class FlowStore(Protocol):
    """Versions of flows, events, and the runs that events begin."""

    async def put_flow(
        self,
        flow: FlowRow,
        expected: int | None = None,
        act: Act | None = None,
        schedule: FlowSchedule | None = None,
    ) -> bool:
        """Write it with revision `expected` + 1 in place of the one that has the revision `expected`; None: insert it.
        False when there is another of its id, name and version (or, with `expected`, none): nothing is written.

        Its schedule is written in the same transaction. When it is active, other versions of its name become inactive.
        The audit log names it `name@version`. The times of the row are the store's.
        """
        ...

    async def flow(self, workflow_id: UUID) -> FlowRow | None: ...

    async def flows(self, where: FlowFilter, after: tuple[str, int] | None = None, limit: int = 50) -> list[FlowRow]:
        """By name, the newest version first; after that name and version."""
        ...

    async def changed_flows(self, since: int, limit: int = 1_000) -> list[FlowRow]:
        """Flows that were written at `since` or later, the first ones first. The cost does not grow with others."""
        ...

    async def active_flows(self, trigger_type: str) -> list[FlowRow]:
        """Active flows that events of the type start, by id. The cost does not grow with other flows."""
        ...

    async def accept_events(self, events: Sequence[NewEvent]) -> list[Accepted]:
        """Insert each event with the runs that it starts, all in one transaction.

        An event whose source and external id are there already, also in the same batch, leaves everything as it is: the
        first one is returned. So is one that is written again (its id is there). Where the active flows of its type are
        not those of `flows`, nothing of it is written, and it is stale. Starts of one key are counted one after the
        other, also those of other transactions.
        """
        ...

    async def counted_runs(self, flow_key: str) -> list[RunId]:
        """Current open runs that are counted under the key, in the order in which they found room."""
        ...

    async def start_flow_run(self, event_id: UUID, start: FlowStart) -> tuple[FlowRun, bool]:
        """Begin a run of a flow for an event that is there, and whether it is new. If that event has begun one of that
        flow already: that one, and nothing is written. Raises UnknownEvent."""
        ...

    async def event(self, event_id: UUID) -> EventRow | None: ...

    async def events(self, where: EventFilter, before: UUID | None = None, limit: int = 50) -> list[EventRow]:
        """Newest first; those with ids < before."""
        ...

    async def rewrite_events(self, events: Sequence[EventRow]) -> None:
        """Write the payloads of events otherwise. Everything else in their rows stays; missing ones stay missing."""
        ...

    async def flow_runs(self, where: FlowRunFilter, before: UUID | None = None, limit: int = 50) -> list[FlowRun]:
        """By the id of the run, newest first; those with run ids < before."""
        ...

    async def prune_events(self, keep: int, limit: int) -> int:
        """Delete up to `limit` events that came more than `keep` microseconds ago, and whose runs are all gone. Returns
        how many."""
        ...

    async def open_runs(self, prefix: str, limit: int) -> list[RunId]:
        """Current open runs whose ids begin with the prefix (ASCII), by id, through the index of ids."""
        ...
