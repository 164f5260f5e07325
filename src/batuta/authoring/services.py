"""The engine as a client sees it: starts, and a service for each noun."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from msgspec import Raw

from batuta.authoring.activity.tokens import AttemptRef
from batuta.authoring.backend import CallerWrite, RunBackend, RunRef, StartRequest
from batuta.authoring.client.bulk_operations import BulkService
from batuta.authoring.client.dead_letters import DeadLetterService
from batuta.authoring.client.enqueue import JobRequest
from batuta.authoring.client.schedules import Schedule, ScheduleService
from batuta.authoring.definitions import Workflow
from batuta.authoring.middleware import Middleware
from batuta.authoring.queues import Queue
from batuta.journal.audit import Act, Verb
from batuta.journal.bus.messages import NewMessage
from batuta.journal.dead_letters import DeadLetter
from batuta.journal.failures import Failure
from batuta.journal.flows.records import Accepted, NewEvent
from batuta.journal.records import NewRun
from batuta.journal.retention import Retention
from batuta.journal.schedules import ScheduleRow
from batuta.journal.store import Store


class CompletionService(Protocol):
    """Completes attempts from outside. Raises InvalidToken, UnknownRun, RunClosed, LostAttempt, TokenUsed."""

    async def answer(self, ref: AttemptRef, answer: Raw | Failure) -> None: ...
    async def beat(self, ref: AttemptRef, details: Raw) -> None: ...


class StoreAccess(Protocol):
    """The store of a namespace, and the actor: for nouns that a store keeps, and that no run or worker waits for."""

    @property
    def namespace(self) -> str: ...
    @property
    def store(self) -> Store: ...
    @property
    def monotonic(self) -> Callable[[], float]: ...
    def act(self, verb: Verb, reason: str = "", *, detail: Any = None, before: Any = None, after: Any = None) -> Act:
        """For the audit log: what a verb of the store does, and who asked for it."""
        ...


class FlowService(StoreAccess, Protocol):
    """Runs made ready to start with an event."""

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


class BusService(StoreAccess, Protocol):
    """Messages of the bus."""

    async def now(self) -> int:
        """The clock that publications are stamped with, in microseconds."""
        ...

    async def publish(self, messages: Sequence[NewMessage]) -> None:
        """Durable when this returns. Raises StoreErrors."""
        ...

    async def enter(self, transaction: object, messages: Sequence[NewMessage]) -> CallerWrite:
        """Make ready to publish inside a transaction of the caller's own; `write` gives no runs. Raises
        WrongTransaction."""
        ...


class Backend(RunBackend, Protocol):
    """Starts runs, makes workers, and has what the nouns of the client need."""

    @property
    def access(self) -> StoreAccess: ...
    @property
    def completions(self) -> CompletionService: ...
    @property
    def dead_letters(self) -> DeadLetterService: ...
    @property
    def schedules(self) -> ScheduleService: ...
    @property
    def bulk(self) -> BulkService: ...
    @property
    def flows(self) -> FlowService: ...
    @property
    def bus(self) -> BusService: ...

    async def open(self) -> None:
        """Its store is open."""
        ...

    async def close(self) -> None:
        """Its store will be closed: all waits end."""
        ...

    async def start(self, request: StartRequest) -> RunRef:
        """Durable when this returns. Raises AlreadyStarted, WrongWorkflow, QuotaExceeded, StoreUnavailable,
        OutcomeUnknown."""
        ...

    async def enqueue(self, request: JobRequest) -> RunRef:
        """Durable when this returns. Raises as `start` does."""
        ...

    async def enqueue_many(self, requests: Sequence[JobRequest], after: JobRequest | None) -> list[RunRef]:
        """All of them together, or none. `after` begins when the last of them has ended; it is the last given back."""
        ...

    async def enter(
        self, transaction: object, requests: Sequence[StartRequest | JobRequest], after: JobRequest | None
    ) -> CallerWrite:
        """Make ready to start all of these inside a transaction of the caller's own. Raises WrongTransaction."""
        ...

    async def prune(self, *, dry_run: bool) -> int:
        """Delete closed runs that were kept for long enough, in short steps. Returns how many."""
        ...

    async def learn_quotas(self) -> None:
        """The quotas were changed: starts of this client are admitted by the new ones."""
        ...

    def worker(
        self,
        workflows: Sequence[Workflow[..., Any]],
        activities: Sequence[object],
        queues: Sequence[str | Queue],
        schedules: Sequence[Schedule] = (),
        on_dead_letter: Callable[[DeadLetter], Any] | None = None,
        retention: Sequence[Retention] = (),
        middleware: Sequence[Middleware] = (),
        **settings: Any,
    ) -> AbstractAsyncContextManager[Any]:
        """A worker, running while the context is open."""
        ...
