"""Flows, the events that start them, and which runs an event has begun. Values, no I/O."""

from __future__ import annotations

from uuid import UUID

from msgspec import Struct, field

from batuta.ids import RunId
from batuta.journal.codec_envelope import Payload
from batuta.journal.records import NewRun
from batuta.journal.schedules import ScheduleRow


class FlowRow(Struct, kw_only=True):
    """One version of a flow."""

    workflow_id: UUID
    name: str
    version: int = 1
    """Unique among those of its name."""
    description: Payload = ""
    trigger_type: str = ""
    """The type of event that starts it while it is active; empty: none."""
    document: Payload
    """JSON. It is code: only those who have the key may say what runs."""
    is_active: bool = False
    """At most one version of a name is."""
    published_at: int | None = None
    """None: a draft."""
    revision: int = 0
    """Rises with every write: the fence."""
    created_at: int = 0
    updated_at: int = 0
    """Both stamped by the store."""
    sealed: str = ""
    """Why it cannot be read here: then its document is a coded text. No store keeps it."""

    @property
    def target(self) -> str:
        """Its name in the audit log."""
        return f"{self.name}@{self.version}"


class FlowSchedule(Struct):
    """The change of a schedule that is written with a flow."""

    id: str
    row: ScheduleRow | None = None
    """It is written, also over the one that is there, which stays paused if it is. None: it is deleted."""


class FlowFilter(Struct, kw_only=True, frozen=True):
    """Which flows. None does not restrict."""

    name: str | None = None
    trigger_type: str | None = None
    active: bool | None = None
    published: bool | None = None


class EventRow(Struct, kw_only=True):
    """Something that happened."""

    event_id: UUID
    """A UUIDv7: later ones sort after earlier ones."""
    type: str
    source: str
    external_id: str | None = None
    """The sender's own name for it, unique among those of its source."""
    payload: Payload
    """JSON."""
    replay_of: UUID | None = None
    """The event that was sent once more."""
    created_at: int = 0
    """Stamped by the store."""
    sealed: str = ""
    """Why its payload cannot be read here: then that is a coded text. No store keeps it."""


class EventFilter(Struct, kw_only=True, frozen=True):
    """Which events. None does not restrict."""

    type: str | None = None
    source: str | None = None
    external_id: str | None = None


class FlowStart(Struct):
    """A run that an event starts."""

    workflow_id: UUID
    run: NewRun
    room: int | None = None
    """It is counted under its `flow_key`, and not begun while so many counted runs of that key are open. None: it is
    not counted."""


class NewEvent(Struct, kw_only=True):
    """An event that comes in, with the runs that it starts."""

    event: EventRow
    flows: list[UUID] | None = None
    """The active flows of its type, by id, as they were when `starts` was made. None: not compared."""
    starts: list[FlowStart] = field(default_factory=list)
    """Inserted unowned, each with its start message. A run whose id is taken is skipped."""


class Accepted(Struct):
    """The outcome of an event."""

    event: EventRow
    """The first of its source and external id."""
    is_new: bool
    is_stale: bool = False
    """Other flows are active by now, or a debounced start is for another run than the one that waits: nothing was
    written."""
    waits: dict[RunId, RunId] = field(default_factory=dict)
    """Which run waits in the place of a debounced start's `instead`; its own run when none does."""


class FlowRun(Struct):
    """Which run an event has begun of a flow: one at most."""

    workflow_id: UUID
    event_id: UUID
    chain_id: RunId
    """Its first run."""


class FlowRunFilter(Struct, kw_only=True, frozen=True):
    """Which of them: of one flow, or of some events."""

    workflow_id: UUID | None = None
    event_ids: tuple[UUID, ...] | None = None
