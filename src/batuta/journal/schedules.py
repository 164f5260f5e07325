"""Schedules as the store knows them. Only the engine interprets `spec` and `state`. Values, no I/O."""

from __future__ import annotations

from msgspec import Struct, field

from batuta.journal.codec_envelope import Payload
from batuta.journal.records import NewRun


class ScheduleRow(Struct, kw_only=True):
    """A schedule's row."""

    id: str
    spec: Payload
    """JSON: when, what, and how to overlap and catch up."""
    state: str = "{}"
    """JSON: the engine's memory between two looks."""
    revision: int = 0
    """Rises with every write: the fence."""
    paused: bool = False
    reason: str = ""
    next_at: int | None = None
    """When a worker must look at it next; None when it has come to its end."""
    last_at: int | None = None
    """The last slot that began a run."""
    last_id: str = ""
    """The id of the run that it began last."""
    created_at: int = 0
    updated_at: int = 0
    """Both stamped by the store."""
    sealed: str = ""
    """Why its spec cannot be read here: then that is a coded text. No store keeps it."""


class DueSchedule(Struct):
    """A schedule that is to be looked at, and whether the current run of its `last_id` is open."""

    schedule: ScheduleRow
    busy: bool


class Firing(Struct, kw_only=True):
    """The changes that a look at a schedule makes, in one transaction.

    Nothing happens if the schedule was written since it was read, is paused or is deleted.
    """

    id: str
    revision: int
    """The revision that was read."""
    next_at: int | None
    state: str
    last_at: int | None = None
    """None keeps `last_at` and `last_id`."""
    last_id: str = ""
    starts: list[NewRun] = field(default_factory=list)
    """Inserted unowned, each with its start message. A run whose id is taken is skipped: that slot has had its run."""
