"""The high door: what runs workflows. The native engine is one backend, Temporal will be another."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import datetime
from typing import Any, Protocol

from msgspec import Raw, Struct

from batuta.authoring.client.forks import Edits
from batuta.authoring.definitions import Workflow
from batuta.authoring.jobs import Job
from batuta.authoring.retry import Retry
from batuta.ids import RunId
from batuta.journal.entries import Body, EntryKind
from batuta.journal.failures import Failure
from batuta.journal.records import IfExists, RunFilter, RunKind
from batuta.journal.states import RunState

Code = Workflow[..., Any] | Job[..., Any]
"""What runs are of."""


class ClientMessage(Struct):
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
    """The key for limits per key and fairness of its queue."""
    expires: float | None = None
    """It times out if no worker has taken it by then."""
    signal: ClientMessage | None = None
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
    is_new: bool | None = None
    """Whether the call that gave it began the run; None: it was asked for, not started."""


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
    """For a lost attempt: when it was asked for, or when its worker could begin it."""
    ended_at: datetime | None
    """For a lost attempt: when its run was taken from the dead worker."""
    next_at: datetime | None = None
    error: str | None = None
    details: str | None = None
    """JSON of the last heartbeat's details."""
    outside: bool = False
    """It waits for an answer from outside."""
    worker: str | None = None
    """The worker that executes it now; not kept after its end."""
    lost: bool = False
    """Its worker died. Another one made the attempt again, under the same number."""


class Description(Struct, kw_only=True):
    """A run, as of now."""

    id: str
    run_id: RunId
    workflow: str
    """For a run of an activity: the activity."""
    kind: RunKind
    state: RunState
    reason: str
    """Why it is parked, was released or was ended, or why no worker takes it."""
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
    """The key for limits per key of its queue."""
    expires_at: datetime | None = None
    """When it times out if no worker has taken it."""
    paused_at: datetime | None = None
    """Since when an operator holds it."""
    version: str
    tags: dict[str, str]
    memo: Any
    parent: RunId | None = None
    """The run that started it, or that waits for it and other jobs."""
    forked_from: RunId | None = None
    """The run that it was made from: by a retry, a reset or a fork."""
    forked_at: int | None = None
    """The last entry that they have in common; -1 if it began anew."""
    trace_id: str = ""
    """Of the `traceparent` that it came with, else made from its id. Empty in lists."""
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


class CallerWrite(Protocol):
    """Runs, or a signal, that are ready to be written inside a transaction of the caller's own."""

    suits_a_loop: bool
    """`write` may be awaited in an event loop: it does not block, or only for a moment."""
    suits_a_thread: bool
    """`write` never suspends, so that a thread without an event loop can go through it."""

    def write(self) -> Coroutine[Any, Any, list[RunRef]]:
        """Start them, with the caller's connection alone. They exist when its transaction commits. Raises
        WrongTransaction, TransactionFailed, AlreadyStarted, WrongWorkflow, and the errors of the connection's
        driver."""
        ...


Lines = list[JournalLine]
Attempts = list[AttemptView]
"""Named here: in the service `list` is a verb."""


class RunService(Protocol):
    """Finds runs, waits for them, ends them, tries them again and tells about them."""

    async def find(self, id: str, code: Code | None = None) -> RunRef:
        """The current run of an id. Raises UnknownRun; WrongWorkflow when it is not of that code."""
        ...

    async def find_run(self, run_id: RunId, code: Code | None = None) -> RunRef:
        """Exactly that run. Raises UnknownRun; WrongWorkflow when it is not of that code."""
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
        """Hold the run. False when it is already paused. Raises RunClosed."""
        ...

    async def resume(self, ref: RunRef, reason: str) -> bool:
        """Let it go on. False when it is not paused. Raises RunClosed."""
        ...

    async def delete(self, ref: RunRef, reason: str) -> int:
        """Delete the run, its chain and its children; returns the number of deleted runs. Raises RunOpen."""
        ...

    async def retry(self, ref: RunRef, reason: str = "") -> RunRef:
        """Try a parked run again, or a failed one from where it failed, or attempts that wait for their next try now.
        Returns the run that goes on.

        Raises NotParked, RunClosed, InvalidFork, RunMoved.
        """
        ...

    async def reset(self, ref: RunRef, to: int, edits: Edits, code: Code | None, reason: str) -> RunRef:
        """Let another run go on in the place of the last one of the chain, from after its entry `to`."""
        ...

    async def fork(self, ref: RunRef, id: str, at: int | None, edits: Edits, code: Code | None, reason: str) -> RunRef:
        """Begin a run under `id` with what this one has done up to entry `at`. None: where the edits are."""
        ...

    async def describe(self, ref: RunRef) -> Description: ...

    async def journal(self, ref: RunRef, after: int = -1, limit: int | None = None) -> Lines:
        """Entries after that one; without a limit all of them."""
        ...

    async def list(self, where: RunFilter, cursor: str | None, limit: int, waiting_for: str | None = None) -> RunPage:
        """`waiting_for`: only open runs that wait for an activity or child of that name. Then not more than some
        hundred runs are looked at: a page may hold fewer than `limit`, and there is more while it has a cursor."""
        ...

    async def attempts(self, ref: RunRef) -> Attempts:
        """The attempts of each call, from the first to the last."""
        ...

    async def timeline(self, ref: RunRef) -> Any:
        """An `authoring.timeline.Timeline`."""
        ...

    async def diff(self, left: RunRef | None, right: RunRef) -> Any:
        """An `authoring.diffs.Diff`. Without `left`: against the run that `right` was made from. Raises InvalidInput,
        UnknownRun, PayloadSealed."""
        ...


class MessageService(Protocol):
    """Talks to runs."""

    async def signal(self, ref: RunRef, client_message: ClientMessage) -> None:
        """Durable when this returns. Raises RunClosed."""
        ...

    async def enter_signal(self, transaction: object, ref: RunRef, client_message: ClientMessage) -> CallerWrite:
        """Make ready to send a signal inside a transaction of the caller's own; `write` gives no run, and raises
        RunClosed and UnknownRun, too. Raises WrongTransaction."""
        ...

    async def update(self, ref: RunRef, client_message: ClientMessage) -> Answer:
        """Wait for the answer. Raises RunClosed when none will come."""
        ...

    async def query(self, ref: RunRef, name: str, arguments: bytes, workflow: Workflow[..., Any] | None) -> Raw:
        """Raises QueryFailed, UnknownQuery."""
        ...

    async def published(self, ref: RunRef) -> dict[str, Raw]:
        """By name."""
        ...


class RunBackend(Protocol):
    """The services that a handle uses."""

    home: asyncio.AbstractEventLoop | None
    """The event loop on which its client was opened: its methods are awaited there."""

    @property
    def runs(self) -> RunService: ...
    @property
    def messages(self) -> MessageService: ...
