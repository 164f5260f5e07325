"""The engine as a client sees it: starts, and a service for each noun."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from msgspec import Raw

from batuta.authoring.activity.tokens import AttemptRef
from batuta.authoring.backend import CallerWrite, RunBackend, RunRef, StartRequest
from batuta.authoring.client.api_keys import ApiKeyService
from batuta.authoring.client.bulk_operations import BulkService
from batuta.authoring.client.dead_letters import DeadLetterService
from batuta.authoring.client.enqueue import JobRequest
from batuta.authoring.client.flows import FlowService
from batuta.authoring.client.idempotency import IdempotencyService
from batuta.authoring.client.namespace import NamespaceService
from batuta.authoring.client.queues import Queue
from batuta.authoring.client.quotas import QuotaService
from batuta.authoring.client.retention import RetentionService
from batuta.authoring.client.schedules import Schedule, ScheduleService
from batuta.authoring.client.workers import WorkerService
from batuta.authoring.definitions import Workflow
from batuta.authoring.middleware import Middleware
from batuta.journal.audit import Act, Verb
from batuta.journal.bus.messages import BusStore, NewMessage
from batuta.journal.dead_letters import DeadLetter
from batuta.journal.failures import Failure
from batuta.journal.queues import QueueInfo
from batuta.journal.records import Hint
from batuta.journal.resilience.partners import PartnerStore
from batuta.journal.retention import Retention
from batuta.journal.store import Borrowed


class QueueService(Protocol):
    """Shows queues and changes them."""

    async def list(self) -> Sequence[QueueInfo]: ...
    async def pause(self, name: str, paused: bool, reason: str) -> None: ...

    async def limit(self, name: str, changes: dict[str, Any]) -> None:
        """Set some limits, as `journal.queues.QueueLimits` has them, and leave the others."""
        ...


class CompletionService(Protocol):
    """Completes attempts from outside. Raises InvalidToken, UnknownRun, RunClosed, LostAttempt, TokenUsed."""

    async def answer(self, ref: AttemptRef, answer: Raw | Failure) -> None: ...
    async def beat(self, ref: AttemptRef, details: Raw) -> None: ...


class PartnerService(Protocol):
    """The store's part about partners, and the actor."""

    @property
    def namespace(self) -> str: ...
    @property
    def store(self) -> PartnerStore: ...
    @property
    def monotonic(self) -> Callable[[], float]: ...
    def act(self, verb: Verb, reason: str, *, before: Any = None, after: Any = None) -> Act: ...


class BusService(Protocol):
    """Messages of the bus."""

    @property
    def store(self) -> BusStore: ...
    @property
    def namespace(self) -> str: ...

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

    def listen(self, callback: Callable[[Hint], None]) -> Callable[[], None]:
        """Call back when something may have happened. Returns the undo."""
        ...

    @property
    def poll_seconds(self) -> float | None:
        """How often to look when no hint comes; None when hints are certain."""
        ...

    def act(self, verb: Verb, reason: str) -> Act: ...
    async def note(self, target: str, verb: Verb, after: Any = None) -> None:
        """Record an action of many transactions in the audit log."""
        ...


class Backend(RunBackend, Protocol):
    """Starts runs, makes workers, and has a service for each noun of the client."""

    @property
    def queues(self) -> QueueService: ...
    @property
    def completions(self) -> CompletionService: ...
    @property
    def workers(self) -> WorkerService: ...
    @property
    def dead_letters(self) -> DeadLetterService: ...
    @property
    def schedules(self) -> ScheduleService: ...
    @property
    def bulk(self) -> BulkService: ...
    @property
    def retention(self) -> RetentionService: ...
    @property
    def quotas(self) -> QuotaService: ...
    @property
    def api_keys(self) -> ApiKeyService: ...
    @property
    def idempotency(self) -> IdempotencyService: ...
    @property
    def partners(self) -> PartnerService: ...
    @property
    def flows(self) -> FlowService: ...
    @property
    def bus(self) -> BusService: ...
    @property
    def namespace(self) -> NamespaceService: ...

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

    def borrow(self, connection: object) -> Borrowed:
        """A transaction on the caller's own connection, which needs the store's locks. Raises WrongTransaction."""
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
