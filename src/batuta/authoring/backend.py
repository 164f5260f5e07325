"""The high door: what runs workflows. The native engine is one backend, Temporal will be another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, overload

from msgspec import Raw, Struct

from batuta.authoring.definitions import Workflow
from batuta.authoring.enqueueing import JobRequest
from batuta.authoring.forks import Edits
from batuta.authoring.jobs import Job
from batuta.authoring.queues import Queue, QueueInfo
from batuta.authoring.retry import Retry
from batuta.authoring.tokens import AttemptRef
from batuta.ids import RunId
from batuta.journal.entries import Body, EntryKind
from batuta.journal.failures import Failure
from batuta.journal.records import IfExists, RunFilter, RunKind
from batuta.journal.states import RunState
from batuta.journal.store import Borrowed

Code = Workflow[..., Any] | Job[..., Any]
"""What runs are of."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@overload
def as_datetime(micros: int) -> datetime: ...
@overload
def as_datetime(micros: None) -> None: ...
@overload
def as_datetime(micros: int | None) -> datetime | None: ...
def as_datetime(micros: int | None) -> datetime | None:
    """A stored time for people."""
    return None if micros is None else _EPOCH + timedelta(microseconds=micros)


class Letter(Struct):
    """A message to a run: JSON of a signal's value, or of an update's arguments."""

    name: str
    body: bytes
    message_id: str
    """A second one of the same id is not delivered."""
    headers: dict[str, str] | None = None


class StartRequest(Struct, kw_only=True):
    """A run to be started. Times are seconds."""

    workflow: str
    version: str = ""
    input: bytes
    """JSON of the arguments."""
    id: str | None = None
    queue: str = "default"
    priority: int = 0
    delay: float = 0.0
    timeout: float | None = None
    execution_timeout: float | None = None
    retry: Retry | None = None
    tags: dict[str, str] = {}
    memo: Any = None
    if_exists: IfExists = IfExists.RETURN
    key: str = ""
    """What its queue's limits per key count by, and what the queue is fair between."""
    expires: float | None = None
    """It times out when nobody has begun it by then."""
    signal: Letter | None = None
    """Sent to the run of that id, whether it is new or not."""
    headers: dict[str, str] = {}
    """Kept in its journal, and given to everything that it calls and starts."""


class RunRef(Struct):
    """Names a run. `local` is the backend's own, to find the result without asking the store."""

    id: str
    run_id: RunId
    local: Any = None
    chain_id: RunId | None = None
    """None: not known here yet."""


class Ending(Struct):
    """How a run ended."""

    id: str
    state: RunState
    value: Raw | None = None
    error: Failure | None = None
    reason: str = ""


class Answer(Struct):
    """To an update. The error is UpdateRejected, UpdateFailed, UpdateInterrupted or RunClosed."""

    value: Raw | None = None
    error: Failure | None = None


class AttemptView(Struct, kw_only=True):
    """A try of an activity."""

    seq: int
    number: int
    started_at: datetime | None
    ended_at: datetime | None
    next_at: datetime | None
    error: str | None
    details: str | None
    """JSON of the last heartbeat's details."""
    outside: bool
    """It waits for an answer from outside."""
    worker: str | None = None
    """Who is at it now. Of one that has ended that is not kept."""


class Description(Struct, kw_only=True):
    """A run, as of now."""

    id: str
    run_id: RunId
    workflow: str
    """Of a run of an activity: the activity."""
    kind: RunKind
    state: RunState
    reason: str
    """Why it is parked, was handed back or was ended, or why nobody takes it."""
    queue: str
    priority: int
    entries: int
    worker: str | None
    created_at: datetime | None
    closed_at: datetime | None
    wake_at: datetime | None
    deadline: datetime | None
    deaths: int
    key: str = ""
    """What its queue's limits per key count by."""
    expires_at: datetime | None = None
    """When it times out if nobody has begun it."""
    paused_at: datetime | None = None
    """Since when an operator holds it."""
    version: str
    tags: dict[str, str]
    memo: Any
    forked_from: RunId | None = None
    """The run that it was made from: by a retry, a reset or a fork."""
    forked_at: int | None = None
    """The last entry that they have in common; -1 when it has begun anew."""
    attempts: list[AttemptView]


class JournalLine(Struct, kw_only=True):
    """An entry of a run's journal, read."""

    ord: int
    kind: EntryKind
    at: datetime
    body: Body


class RunPage(Struct):
    """Some runs, newest first; `cursor` gives the next page, None after the last."""

    runs: list[Description]
    cursor: str | None


class Entering(Protocol):
    """Runs that are ready to be started inside a transaction of the caller's own."""

    suits_a_loop: bool
    """`write` may be awaited in an event loop: it does not block, or only for a moment."""
    suits_a_thread: bool
    """`write` never suspends, so that a thread without an event loop can go through it."""

    async def write(self) -> list[RunRef]:
        """Start them, with the caller's connection alone. They exist when its transaction commits. Raises
        WrongTransaction, TransactionFailed, AlreadyStarted, and the errors of the connection's driver."""
        ...


class Backend(Protocol):
    """Starts runs, talks to them and tells about them."""

    home: asyncio.AbstractEventLoop | None
    """Where its client was opened: what is awaited of it is awaited there."""

    @property
    def letters(self) -> Any:
        """An `authoring.deadletters.LetterBackend`."""
        ...

    @property
    def schedules(self) -> Any:
        """An `authoring.schedules.ScheduleBackend`."""
        ...

    @property
    def operating(self) -> Any:
        """An `authoring.operating.OperatingBackend`."""
        ...

    @property
    def retention(self) -> Any:
        """An `authoring.retention.RetentionBackend`."""
        ...

    @property
    def quotas(self) -> Any:
        """An `authoring.quotas.QuotaBackend`."""
        ...

    async def open(self) -> None:
        """Its store is open."""
        ...

    async def close(self) -> None:
        """Its store will be closed: nobody waits for anything any more."""
        ...

    async def start(self, request: StartRequest) -> RunRef:
        """Durable when this returns. Raises AlreadyStarted, QuotaExceeded, StoreUnavailable, OutcomeUnknown."""
        ...

    async def enqueue(self, request: JobRequest) -> RunRef:
        """Durable when this returns. Raises as `start` does."""
        ...

    async def enqueue_many(self, requests: Sequence[JobRequest], after: JobRequest | None) -> list[RunRef]:
        """All of them together, or none. `after` begins when the last of them has ended; it is the last given back."""
        ...

    async def enter(
        self, transaction: object, requests: Sequence[StartRequest | JobRequest], after: JobRequest | None
    ) -> Entering:
        """Make ready to start all of these inside a transaction of the caller's own. Raises WrongTransaction."""
        ...

    def borrow(self, connection: object) -> Borrowed:
        """A transaction on the caller's own connection, which needs the store's locks. Raises WrongTransaction."""
        ...

    async def find(self, id: str) -> RunRef:
        """The current run of an id. Raises UnknownRun."""
        ...

    async def find_run(self, run_id: RunId) -> RunRef:
        """Exactly that run. Raises UnknownRun."""
        ...

    async def ending(self, ref: RunRef) -> Ending:
        """Wait for the end."""
        ...

    async def cancel(self, ref: RunRef, reason: str, *, again: bool) -> bool:
        """Ask the run to end. False when it was asked before, and is not to be asked `again`. Raises RunClosed."""
        ...

    async def terminate(self, ref: RunRef, reason: str) -> None:
        """End the run without a word to its code. Raises RunClosed."""
        ...

    async def pause(self, ref: RunRef, reason: str) -> bool:
        """Hold the run. False when it is held already. Raises RunClosed."""
        ...

    async def resume(self, ref: RunRef, reason: str) -> bool:
        """Let it go on. False when it is not held. Raises RunClosed."""
        ...

    async def delete(self, ref: RunRef, reason: str) -> int:
        """Delete the run, its chain and its children; how many runs are gone. Raises RunOpen."""
        ...

    async def retry(self, ref: RunRef, reason: str = "") -> RunRef:
        """Let a parked run be tried again, or one that has failed, from where it did. Gives the run that goes on.
        Raises NotParked, RunClosed, InvalidFork, RunMoved."""
        ...

    async def reset(self, ref: RunRef, to: int, edits: Edits, code: Code | None, reason: str) -> RunRef:
        """Let another run go on in the place of the last one of the chain, from after its entry `to`."""
        ...

    async def fork(self, ref: RunRef, id: str, at: int | None, edits: Edits, code: Code | None, reason: str) -> RunRef:
        """Begin a run under `id` with what this one has done up to entry `at`. None: where the edits are."""
        ...

    async def signal(self, ref: RunRef, letter: Letter) -> None:
        """Durable when this returns. Raises RunClosed."""
        ...

    async def update(self, ref: RunRef, letter: Letter) -> Answer:
        """Wait for the answer. Raises RunClosed when none will come."""
        ...

    async def query(self, ref: RunRef, name: str, arguments: bytes, workflow: Workflow[..., Any] | None) -> Raw:
        """Raises QueryFailed, UnknownQuery."""
        ...

    async def published(self, ref: RunRef) -> dict[str, Raw]:
        """By name."""
        ...

    async def describe(self, ref: RunRef) -> Description: ...
    async def journal(self, ref: RunRef) -> list[JournalLine]: ...
    async def list_runs(self, where: RunFilter, cursor: str | None, limit: int) -> RunPage: ...
    async def count_runs(self, where: RunFilter) -> int: ...

    async def attempts(self, ref: RunRef) -> list[AttemptView]:
        """Those of each call, from the first to the last."""
        ...

    async def timeline(self, ref: RunRef) -> Any:
        """An `authoring.timeline.Timeline`."""
        ...

    async def diff(self, left: RunRef | None, right: RunRef) -> Any:
        """An `authoring.diffs.Diff`. Without `left`: against the run that `right` was made from. Raises InvalidInput,
        UnknownRun, PayloadSealed."""
        ...

    async def queues(self) -> list[QueueInfo]: ...
    async def pause_queue(self, name: str, paused: bool, note: str) -> None: ...

    async def limit_queue(self, name: str, changes: dict[str, Any]) -> None:
        """Set some limits, as `journal.queues.QueueLimits` has them, and leave the others."""
        ...

    async def answer_activity(self, ref: AttemptRef, answer: Raw | Failure) -> None:
        """Complete an attempt, or have it fail. Raises InvalidToken, UnknownRun, RunClosed, LostAttempt, TokenUsed."""
        ...

    async def beat_activity(self, ref: AttemptRef, details: Raw) -> None:
        """A heartbeat of an attempt. Raises as `answer_activity`."""
        ...

    def worker(
        self,
        workflows: Sequence[Workflow[..., Any]],
        activities: Sequence[object],
        queues: Sequence[str | Queue],
        schedules: Sequence[Any] = (),
        on_dead_letter: Callable[[Any], Any] | None = None,
        retention: Sequence[Any] = (),
        middleware: Sequence[Any] = (),
        **settings: Any,
    ) -> AbstractAsyncContextManager[Any]:
        """A worker, running while the context is open."""
        ...
