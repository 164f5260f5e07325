"""Telemetry events: one class for each event, sent only after the change is durable.

The worker, client or server that did it sends an event once, after its transaction. A process that dies in between
sends nothing: read the journal if you must not miss anything.
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
    """The name of its workflow, job or activity."""
    kind: str
    """workflow, job, or activity (sent here from another queue)."""
    queue: str
    trace: str
    """The W3C `traceparent` of its start; made from the run's id if it came without one."""
    flow: str = ""
    """The name of the flow, of a run that an event has begun."""


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
    """Seconds since 1970, by the store's clock."""

    def fields(self) -> dict[str, Any]:
        """The event as one dict of plain values, for a log line or a metric."""
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
    """The number of the attempt, of a run with a retry policy."""
    wait: float | None
    """Seconds from its creation, delays included, to its first turn. None: it began where it was started, at once."""
    delay: float
    """Seconds of `wait` that its start asked for. The rest it waited for a worker."""


class RunClosed(RunEvent, frozen=True, gc=False):
    """It has ended."""

    event = "run.closed"

    state: str
    seconds: float
    """From its first turn to its end."""
    entries: int
    error: str
    """The class of the error that it failed with, or empty."""
    message: str
    """The error's message, or why it was ended."""


class RunParked(RunEvent, frozen=True, gc=False):
    """It waits for other code, or for a person."""

    event = "run.parked"

    state: str
    reason: str


class RunReleased(RunEvent, frozen=True, gc=False):
    """It left the worker's memory, and waits in the store."""

    event = "run.released"

    wake_at: float | None
    """When it is due; None if it waits for a message."""
    reason: str


# -- what happens in a run


class ActivityEvent(RunEvent, frozen=True, gc=False):
    """Something that happened to an attempt."""

    activity: str
    seq: int
    attempt: int


class ActivityStarted(ActivityEvent, frozen=True, gc=False):
    """An attempt of an activity, or of a job's function, begins."""

    event = "activity.started"


class ActivityHeartbeat(ActivityEvent, frozen=True, gc=False):
    """An attempt has sent heartbeats: sent once a second at most, and at its end."""

    event = "activity.heartbeat"

    beats: int
    """How many since the last event."""


class ActivityCompleted(ActivityEvent, frozen=True, gc=False):
    """The result of an activity, or of a job's function, is durable."""

    event = "activity.completed"

    seconds: float
    """Of the last attempt, until its result was taken."""


class FailedAttempt(ActivityEvent, frozen=True, gc=False):
    """An attempt has failed."""

    seconds: float
    error: str
    message: str


class ActivityFailed(FailedAttempt, frozen=True, gc=False):
    """An activity has failed for good."""

    event = "activity.failed"


class ActivityRetried(FailedAttempt, frozen=True, gc=False):
    """An attempt has failed, and another one will follow."""

    event = "activity.retried"

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
    """Headers of the signal or update, such as the sender's trace."""


class ChildClosed(RunEvent, frozen=True, gc=False):
    """The run has received the end of a child."""

    event = "child.closed"

    seq: int
    error: str
    """The class of the error that its result() raises; empty if it completed."""


class LetterArrived(RunEvent, frozen=True, gc=False):
    """The run failed for good, and is a dead letter."""

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
    """How long it took, including waits for the store."""
    fenced: int
    """Changes that were refused: their runs were closed, or another worker has them."""


class LeaseRenewed(WorkerEvent, frozen=True, gc=False):
    """A heartbeat of the worker has renewed its lease."""

    event = "lease.renewed"

    runs: int
    """Runs that it owns."""
    seconds: float
    """How long the heartbeat took."""


class ScheduleFired(WorkerEvent, frozen=True, gc=False):
    """A schedule was due, and its runs are started."""

    event = "schedule.fired"

    schedule: str
    runs: int
    late: float
    """Seconds after the time that it was due at."""


class WorkerStarted(WorkerEvent, frozen=True, gc=False):
    """It has registered and begins to work."""

    event = "worker.started"

    queues: list[str]


class WorkerStopped(WorkerEvent, frozen=True, gc=False):
    """It has stopped gracefully."""

    event = "worker.stopped"


class WorkerLost(WorkerEvent, frozen=True, gc=False):
    """It dropped everything, and registers again as a new worker."""

    event = "worker.lost"

    reason: str


# -- the server


class RequestServed(Event, frozen=True, gc=False):
    """The server has answered a request."""

    event = "request.served"

    method: str
    route: str
    """Its path in /openapi.json, such as `/api/v1/runs/{id}`; empty for a path that does not exist."""
    status: int
    seconds: float


class RequestReplayed(Event, frozen=True, gc=False):
    """The server has given the answer of an earlier request with the same idempotency key."""

    event = "request.replayed"

    route: str


class EventAccepted(Event, frozen=True, gc=False):
    """The server has accepted an event for flows, or given the first one back."""

    event = "event.accepted"

    namespace: str
    outcome: str
    """new, or repeated."""


# -- partners


class BreakerChanged(Event, frozen=True, gc=False):
    """A circuit breaker has opened, closed or lets in probes. Sent by the worker that made it change."""

    event = "breaker.changed"

    namespace: str
    breaker: str
    state: str
    """closed, open or half-open."""
    before: str
    reason: str


class PartnerHeld(Event, frozen=True, gc=False):
    """A partner asked for a pause, which all workers obey."""

    event = "partner.held"

    namespace: str
    limit: str
    key: str
    seconds: float


class CacheAsked(Event, frozen=True, gc=False):
    """An operation of a cache has ended."""

    event = "cache.asked"

    entity: str
    """Its keys without their identifiers, such as `dict:entry:id`."""
    operation: str
    """get, put, delete, load and so on."""
    outcome: str
    """hit, miss, absent (known not to exist), ok, failed, skipped (the breaker of the cache is open)."""
    seconds: float


class WebhookAttempted(Event, frozen=True, gc=False):
    """An attempt to deliver a webhook has ended."""

    event = "webhook.attempted"

    namespace: str
    endpoint: str
    type: str
    outcome: str
    """delivered; 3xx, 4xx or 5xx: the receiver's answer; unreachable: there was none; refused: no attempt helps."""
    seconds: float


EVENTS: tuple[type[Event], ...] = (
    RunStarted,
    RunClosed,
    RunParked,
    RunReleased,
    ActivityStarted,
    ActivityHeartbeat,
    ActivityCompleted,
    ActivityFailed,
    ActivityRetried,
    TimerFired,
    MessageReceived,
    ChildClosed,
    LetterArrived,
    BatchWritten,
    LeaseRenewed,
    ScheduleFired,
    WorkerStarted,
    WorkerStopped,
    WorkerLost,
    RequestServed,
    RequestReplayed,
    EventAccepted,
    BreakerChanged,
    PartnerHeld,
    CacheAsked,
    WebhookAttempted,
)
"""All events."""
