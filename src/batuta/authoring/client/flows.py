"""The engine's services for flows: their part of the store, and runs made ready to start with an event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from batuta.authoring.backend import StartRequest
from batuta.authoring.client.schedules import Schedule
from batuta.journal.audit import Act, Verb
from batuta.journal.flows.records import Accepted, NewEvent
from batuta.journal.flows.store import FlowStore
from batuta.journal.records import NewRun
from batuta.journal.schedules import ScheduleRow
from batuta.journal.server.documents import DocumentStore


class FlowService(Protocol):
    """The store's part about flows, and the actor."""

    @property
    def namespace(self) -> str: ...
    @property
    def store(self) -> FlowStore: ...
    @property
    def documents(self) -> DocumentStore: ...

    def act(self, verb: Verb, reason: str = "", *, before: Any = None, after: Any = None) -> Act: ...

    def new_run(self, request: StartRequest, *, debounce: str = "", debounce_limit: float = 0.0) -> NewRun:
        """A run that waits for an owner. `debounce`: a key; then the request's delay is how long to wait for more."""
        ...

    async def accept(self, event: NewEvent, requests: Sequence[StartRequest] = ()) -> Accepted:
        """Accept an event with the runs of these requests, in one transaction with others that come at the same time.
        Raises QuotaExceeded, StoreUnavailable, OutcomeUnknown."""
        ...

    async def now(self) -> int: ...

    async def schedule_row(self, schedule: Schedule) -> ScheduleRow:
        """As it is kept when it is new. Raises InvalidSchedule."""
        ...
