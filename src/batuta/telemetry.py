"""What happened, told to whoever listens: one class for each event, made only of what is durable.

An event is told once, by the worker that did it, and after the transaction that made it true. A worker that dies
between the two tells nothing: who must not miss anything reads the journal.
"""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec import Struct, structs

from batuta.ids import RunId


class RunFacts(Struct, frozen=True, gc=False):
    """The run that an event is about."""

    namespace: str
    run_id: RunId
    id: str
    name: str
    """Of its workflow, job or activity."""
    kind: str
    """workflow, job, or activity: one that was sent here from another queue."""
    queue: str
    trace: str
    """The W3C `traceparent` of whoever started it; empty: nobody traced that."""


class WorkerFacts(Struct, frozen=True, gc=False):
    """The worker that an event is about."""

    namespace: str
    worker: str
    """Its id."""


class Event(Struct, frozen=True, gc=False):
    """Something that happened."""

    event: ClassVar[str] = ""
    """Its name in the table."""

    at: float
    """Seconds since 1970, of the store's clock."""

    def fields(self) -> dict[str, Any]:
        """All of it as plain values in one dict, for a log line or a metric."""
        found: dict[str, Any] = {"event": self.event}
        for name, value in structs.asdict(self).items():
            if isinstance(value, RunFacts | WorkerFacts):
                found |= structs.asdict(value)
            else:
                found[name] = value
        return {name: str(value) if name == "run_id" else value for name, value in found.items()}


# -- runs


class RunEvent(Event, frozen=True, gc=False):
    """Something that happened to a run."""

    run: RunFacts


class RunStarted(RunEvent, frozen=True, gc=False):
    """Its first turn is durable."""

    event = "run.started"

    attempt: int
    """Counts the tries of a run that is retried."""
    wait: float | None
    """Seconds from its creation, delays included, to its first turn. None: it began where it was started, at once."""


class RunClosed(RunEvent, frozen=True, gc=False):
    """It has come to its end."""

    event = "run.closed"

    state: str
    seconds: float
    """From its first turn to its end."""
    entries: int
    error: str
    """The class of the error that it failed with; else empty."""
    message: str
    """That error's message, or the reason it was ended for."""


class RunParked(RunEvent, frozen=True, gc=False):
    """It waits for other code, or for a person."""

    event = "run.parked"

    state: str
    reason: str


class RunReleased(RunEvent, frozen=True, gc=False):
    """It left the worker's memory, and waits in the store."""

    event = "run.released"

    wake_at: float | None
    """When it is due; None: when a message comes."""
    reason: str


# -- what happens in a run


class ActivityCompleted(RunEvent, frozen=True, gc=False):
    """The result of an activity, or of a job's function, is durable."""

    event = "activity.completed"

    activity: str
    seq: int
    attempt: int
    seconds: float
    """Of the last attempt, until its result was taken."""


class ActivityFailed(RunEvent, frozen=True, gc=False):
    """An activity has failed for good."""

    event = "activity.failed"

    activity: str
    seq: int
    attempt: int
    seconds: float
    error: str
    message: str


class ActivityRetried(RunEvent, frozen=True, gc=False):
    """An attempt has failed, and another one will be made."""

    event = "activity.retried"

    activity: str
    seq: int
    attempt: int
    """The one that failed."""
    seconds: float
    error: str
    message: str
    next_at: float | None


class TimerFired(RunEvent, frozen=True, gc=False):
    """A timer was due, and the run has gone on."""

    event = "timer.fired"

    seq: int


class MessageReceived(RunEvent, frozen=True, gc=False):
    """The run has read a message."""

    event = "message.received"

    message: str
    """signal, update or cancel."""
    about: str
    """The signal's or update's name, or the reason of the cancel."""
    headers: dict[str, str] = {}
    """Those of a signal or update that came with some: the sender's trace, say."""


class ChildClosed(RunEvent, frozen=True, gc=False):
    """The run has heard of the end of a child."""

    event = "child.closed"

    seq: int
    error: str
    """The class of what its result() raises; empty: it is completed."""


class LetterArrived(RunEvent, frozen=True, gc=False):
    """The run was given up, and is a dead letter."""

    event = "letter.arrived"

    reason: str
    error: str
    message: str
    fingerprint: str
    activity: str
    attempts: int


# -- workers


class WorkerEvent(Event, frozen=True, gc=False):
    """Something that happened to a worker."""

    worker: WorkerFacts


class BatchWritten(WorkerEvent, frozen=True, gc=False):
    """A transaction of the worker is durable."""

    event = "batch.written"

    runs: int
    entries: int
    seconds: float
    """What it took, with all waiting for the store."""


class WorkerStarted(WorkerEvent, frozen=True, gc=False):
    """It has registered and begins to work."""

    event = "worker.started"

    queues: list[str]


class WorkerStopped(WorkerEvent, frozen=True, gc=False):
    """It has left, as it was told to."""

    event = "worker.stopped"


class WorkerLost(WorkerEvent, frozen=True, gc=False):
    """It dropped everything, and registers anew as another worker."""

    event = "worker.lost"

    reason: str


EVENTS: tuple[type[Event], ...] = (
    RunStarted,
    RunClosed,
    RunParked,
    RunReleased,
    ActivityCompleted,
    ActivityFailed,
    ActivityRetried,
    TimerFired,
    MessageReceived,
    ChildClosed,
    LetterArrived,
    BatchWritten,
    WorkerStarted,
    WorkerStopped,
    WorkerLost,
)
"""All that a listener may be told."""
