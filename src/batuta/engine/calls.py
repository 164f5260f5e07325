"""A call of an activity, as it is known while it is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

from batuta.authoring.attempt import ActivityInfo
from batuta.authoring.checkpoints import BatchInfo
from batuta.authoring.definitions import Activity, Place
from batuta.authoring.failures import to_failure
from batuta.authoring.middleware import AttemptFacts
from batuta.authoring.tokens import AttemptRef
from batuta.engine.pending import PendingActivity
from batuta.engine.routes import Caller, caller_of
from batuta.errors import ActivityCancelled, ActivityTimeout, LostAttempt, WorkerError
from batuta.journal.failures import Failure
from batuta.journal.records import Attempt

if TYPE_CHECKING:
    from batuta.authoring.transactions import Transaction
    from batuta.engine.jobs import CallRun
    from batuta.engine.live import LiveRun

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

SHORT_WAIT = 1.0
"""A run that is one call, and waits longer for its next attempt, leaves memory and its place in its queue."""

CANCELLED = "its call or its run was cancelled"
ENDED = "its run has ended"
DROPPED = "its run is not this worker's any more"
ANSWERED = "it was completed from outside"
OVERDUE = "it is over its time"
STOPPED = "its worker has stopped"
LEASE_OVER = "the worker's lease is over, and another one may have its run"
"""Why an attempt is lost."""


class _Soon:
    """In place of a task, of a call that will have one. Nothing of it is to be interrupted."""

    def done(self) -> bool:
        return True


SOON = cast("asyncio.Future[Any]", _Soon())


class Beats:
    """What the heartbeats of a call have brought, over its attempts."""

    __slots__ = ("at", "details", "progress", "saving", "unwritten")

    def __init__(self, details: str | None = None) -> None:
        self.at = 0
        """When the last one came; 0 when none came in this process."""
        self.details = details
        self.unwritten = False
        self.progress: str | None = None
        """What was said of it and is not written."""
        self.saving: list[Future[None]] = []
        """Whoever waits for a checkpoint to be durable."""


class Call(Struct, eq=False):
    """One activity call of one run, over all its attempts. A struct, for it is made for every step."""

    run: LiveRun
    seq: int
    pending: PendingActivity
    activity: Activity[..., Any]
    attempt: int
    started_at: int = 0
    task: asyncio.Future[Any] | None = None
    """What executes it, or `SOON`. Set as rarely as can be: attributes of a struct are set slowly."""
    begun: bool = False
    """An attempt has been begun before, here or elsewhere: it did start in time."""
    finished: bool = False
    """Its code has ended, and its transaction has not."""
    waking: asyncio.TimerHandle | None = None
    deadline: int | None = None
    next_at: int | None = None
    """When the next attempt is due, while the call waits for it. Outside: when this one is over its time."""
    queued: bool = False
    """It waits for a place, and nothing of it has begun."""
    shelved: bool = False
    """There was a place for it while its run was held."""
    over: bool = False
    """Its answer is given, or nobody wants it."""
    noted: bool = False
    """Its start is in the attempts table."""
    outside: bool = False
    """Its code has ended, and its answer is to come from outside."""
    beats: Beats | None = None
    lost: str = ""
    """Why nobody wants its answer."""

    def successor(self, attempt: int) -> Call:
        """The same call, to be tried again."""
        fresh = Call(self.run, self.seq, self.pending, self.activity, attempt, 0, None, True)
        fresh.beats = self.beats
        return fresh

    @property
    def in_flight(self) -> bool:
        """Whether its code is at work, or about to be."""
        return self.task is not None and not self.finished

    @property
    def idle(self) -> bool:
        """Whether it only waits, and needs no memory for that."""
        return self.outside or self.next_at is not None

    # -- what its code asks, in whatever thread

    def info(self) -> ActivityInfo:
        run, seq = self.run, self.seq
        caller = caller_of(run.machine.start) or Caller(run.identity.id, run.run_id, seq)
        namespace = run.identity.namespace
        return ActivityInfo(
            key=run.machine.key(seq, self.pending.name),
            name=self.pending.name,
            attempt=self.attempt,
            run_id=caller.run_id,
            id=caller.id,
            seq=caller.seq,
            started_at=_EPOCH + timedelta(microseconds=self.started_at),
            namespace=namespace,
            ref=AttemptRef(namespace, run.run_id, seq, self.attempt, self.pending.entry),
            last_details=self.details,
            is_lost=self.is_lost,
            trace=run.machine.start.trace,
            headers=run.machine.start.headers,
        )

    def facts(self) -> AttemptFacts:
        id, queue = self.run.named
        caller = caller_of(self.run.started_with) if self.run.is_call else None
        kind = "job" if self.run.is_call and caller is None else "activity"
        by = caller or Caller(id, self.run.run_id, self.seq)
        return AttemptFacts(self.pending.name, self.attempt, by.id, by.run_id, by.seq, kind, queue)

    def heartbeat(self, details: Any) -> None:
        self.run.executor.beats.take(self, details)

    def checkpoint(self, state: Any) -> Future[None]:
        if self.activity.place is Place.STORE:
            raise WorkerError(
                f"checkpoint() was called in activity {self.pending.name!r}, which is transactional: an attempt that "
                f"is not committed has done nothing that another one need not do"
            )
        return self.run.executor.beats.checkpoint(self, state)

    def progress(self, value: Any) -> None:
        self.run.executor.beats.progress(self, value)

    def batch(self) -> Future[BatchInfo]:
        if not self.run.is_call:
            raise WorkerError("batch_info() was called in an activity of a workflow: it is for jobs that a batch calls")
        return cast("CallRun", self.run).batch(self.run.executor.beats.loop)

    def transaction(self) -> Transaction:
        return self.run.executor.transactions.of(self)

    def is_lost(self) -> bool:
        return self.over

    def complaint(self) -> LostAttempt | ActivityCancelled:
        """What tells the attempt's code that nobody waits for it."""
        kind = ActivityCancelled if self.lost in (CANCELLED, ENDED) else LostAttempt
        why = self.lost or "it has ended"
        return kind(
            f"nobody waits for attempt {self.attempt} of activity {self.pending.name!r} of run "
            f"{self.run.identity.id!r} any more ({why}): stop"
        )

    # -- what is written of it

    @property
    def details(self) -> str | None:
        """JSON of the last heartbeat's details."""
        return None if self.beats is None else self.beats.details

    def row(self, **more: Any) -> Attempt:
        return Attempt(
            seq=self.seq,
            number=self.attempt,
            started_at=self.started_at,
            details=self.details,
            name=self.pending.name,
            **more,
        )


def last_beats(attempts: Sequence[Attempt]) -> Beats | None:
    """What heartbeats brought before, here or elsewhere. The attempts are in order."""
    details = next((a.details for a in reversed(attempts) if a.details is not None), None)
    return None if details is None else Beats(details)


def timeout(call: Call, kind: str, what: str, seconds: float) -> Failure:
    """The failure of a call that took too long."""
    message = f"activity {call.pending.name!r} {what} {seconds:g} s (attempt {call.attempt})"
    return to_failure(ActivityTimeout(message, kind))


def fatal(failure: Failure) -> Failure:
    """After which no other attempt is made."""
    failure.retryable = False
    return failure
