"""Schedules as the store knows them. What `spec` and `state` say is the engine's affair. Values, no I/O."""

from __future__ import annotations

from msgspec import Struct, field

from batuta.journal.records import NewRun


class Schedule(Struct, kw_only=True):
    """A schedule's row."""

    id: str
    spec: str
    """JSON: when, what, and how to overlap and catch up."""
    state: str = "{}"
    """JSON: what the engine remembers from one look to the next."""
    revision: int = 0
    """Rises with every write: the fence."""
    paused: bool = False
    note: str = ""
    next_at: int | None = None
    """When a worker must look at it next; None when it has come to its end."""
    last_at: int | None = None
    """The last slot that began a run."""
    last_id: str = ""
    """The id of the run that it began last."""
    created_at: int = 0
    updated_at: int = 0
    """Both stamped by the store."""


class DueSchedule(Struct):
    """A schedule that is to be looked at, and whether the current run of its `last_id` is open."""

    schedule: Schedule
    busy: bool


class Firing(Struct, kw_only=True):
    """What a look at a schedule leads to, in one transaction. Nothing of it happens when the schedule was written since
    it was read, is paused or is gone."""

    id: str
    revision: int
    """As it was read."""
    next_at: int | None
    state: str
    last_at: int | None = None
    """None leaves `last_at` and `last_id` as they are."""
    last_id: str = ""
    starts: list[NewRun] = field(default_factory=list)
    """Inserted unowned, each with its start message. One whose id is taken is left out: that slot has had its run."""
