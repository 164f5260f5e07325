"""One table of all metrics. A row is a metric: to add one, add a row, and a line to docs/reference/metrics.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct

from batuta.telemetry import (
    ActivityCompleted,
    ActivityFailed,
    ActivityHeartbeat,
    ActivityRetried,
    ActivityStarted,
    BatchWritten,
    BreakerChanged,
    CacheAsked,
    Event,
    EventAccepted,
    LeaseRenewed,
    LetterArrived,
    MessageReceived,
    PartnerHeld,
    RequestReplayed,
    RequestServed,
    RunClosed,
    RunParked,
    RunStarted,
    ScheduleFired,
    TimerFired,
    WebhookAttempted,
    WorkerLost,
)


class Kind(StrEnum):
    """The value of a metric."""

    COUNTER = "counter"
    HISTOGRAM = "histogram"
    GAUGE = "gauge"


Read = str | Callable[[Any], Any]
"""How something is read from an event: by the name of an attribute, such as "run.name", or by a function."""

ByEvent = Mapping[type[Event], str | Callable[[Any], Any]]
"""The value of a label that depends on the class of the event: a word, or a function."""

FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Seconds, for what takes moments."""
LONG = (0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 86_400.0)
"""Seconds, for what may take days."""
SIZES = (1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1_000.0)

FREE = frozenset({"name", "queue", "activity", "namespace", "breaker", "limit", "entity", "flow"})
"""Labels whose values are names that users choose: past a limit they become "other"."""


class Metric(Struct, frozen=True, kw_only=True):
    """A metric that is made of events."""

    name: str
    help: str
    events: tuple[type[Event], ...]
    labels: Mapping[str, Read | ByEvent] = {}
    value: Read | None = None
    """The number to add or observe; None counts the event. An event whose value is None is left out."""
    buckets: tuple[float, ...] = ()

    @property
    def kind(self) -> Kind:
        return Kind.HISTOGRAM if self.buckets else Kind.COUNTER


class Gauge(Struct, frozen=True, kw_only=True):
    """A metric of a whole namespace, read from its store at each scrape."""

    name: str
    help: str
    labels: tuple[str, ...] = ("namespace",)
    kind: Kind = Kind.GAUGE


def _failed(event: ActivityFailed) -> str:
    return "timed_out" if event.error == "ActivityTimeout" else "failed"


def _waited(event: RunStarted) -> float | None:
    return None if event.wait is None else max(0.0, event.wait - event.delay)


def _of_flow(event: RunClosed) -> float | None:
    return event.seconds if event.run.flow else None


_STATUS: ByEvent = {ActivityCompleted: "completed", ActivityRetried: "retried", ActivityFailed: _failed}
_RUN: dict[str, Read | ByEvent] = {"namespace": "run.namespace", "kind": "run.kind", "name": "run.name"}
_ACTIVITY: dict[str, Read | ByEvent] = {"namespace": "run.namespace", "activity": "activity"}
_WORKER: dict[str, Read | ByEvent] = {"namespace": "worker.namespace"}
_CACHE: dict[str, Read | ByEvent] = {"entity": "entity", "operation": "operation"}
_WEBHOOK: dict[str, Read | ByEvent] = {"namespace": "namespace", "outcome": "outcome"}

METRICS = (
    Metric(
        name="batuta_runs_started_total",
        help="Runs whose first turn is durable.",
        events=(RunStarted,),
        labels=_RUN | {"queue": "run.queue"},
    ),
    Metric(
        name="batuta_runs_closed_total",
        help="Runs that ended: completed, failed, timed_out, cancelled, terminated or continued.",
        events=(RunClosed,),
        labels=_RUN | {"state": "state"},
    ),
    Metric(
        name="batuta_run_duration_seconds",
        help="Time from the first turn of a run to its end.",
        events=(RunClosed,),
        labels=_RUN | {"state": "state"},
        value="seconds",
        buckets=LONG,
    ),
    Metric(
        name="batuta_flow_run_duration_seconds",
        help="Time from the first turn of a run of a flow to its end, by the name of the flow.",
        events=(RunClosed,),
        labels={"namespace": "run.namespace", "flow": "run.flow", "state": "state"},
        value=_of_flow,
        buckets=LONG,
    ),
    Metric(
        name="batuta_runs_parked_total",
        help="Runs that were stopped for other code or for a person: needs_code, poisoned or paused.",
        events=(RunParked,),
        labels=_RUN | {"state": "state"},
    ),
    Metric(
        name="batuta_queue_latency_seconds",
        help="Time that a run waited in its queue for a worker, without delays that its start asked for.",
        events=(RunStarted,),
        labels={"namespace": "run.namespace", "queue": "run.queue"},
        value=_waited,
        buckets=(*FAST, 60.0, 300.0, 900.0, 3_600.0),
    ),
    Metric(
        name="batuta_activities_started_total",
        help="Attempts of activities, and of functions of jobs, that began.",
        events=(ActivityStarted,),
        labels=_ACTIVITY,
    ),
    Metric(
        name="batuta_activity_duration_seconds",
        help="Time of an attempt that ended: completed, failed or timed_out for good, or retried.",
        events=(ActivityCompleted, ActivityFailed, ActivityRetried),
        labels=_ACTIVITY | {"status": _STATUS},
        value="seconds",
        buckets=LONG,
    ),
    Metric(
        name="batuta_activity_retries_total",
        help="Attempts that failed and are followed by another one.",
        events=(ActivityRetried,),
        labels=_ACTIVITY,
    ),
    Metric(
        name="batuta_activity_heartbeats_total",
        help="Heartbeats that attempts sent.",
        events=(ActivityHeartbeat,),
        labels=_ACTIVITY,
        value="beats",
    ),
    Metric(
        name="batuta_timers_fired_total",
        help="Timers that were due.",
        events=(TimerFired,),
        labels={"namespace": "run.namespace"},
    ),
    Metric(
        name="batuta_messages_received_total",
        help="Messages that runs read: signal, update or cancel.",
        events=(MessageReceived,),
        labels={"namespace": "run.namespace", "message": "message"},
    ),
    Metric(
        name="batuta_dead_letters_total",
        help="Runs that became dead letters.",
        events=(LetterArrived,),
        labels=_RUN | {"reason": "reason"},
    ),
    Metric(
        name="batuta_fenced_writes_total",
        help="Changes that the store refused, because the run was closed or another worker has it.",
        events=(BatchWritten,),
        labels=_WORKER,
        value=lambda e: e.fenced or None,
    ),
    Metric(
        name="batuta_batch_entries",
        help="Journal entries of a transaction.",
        events=(BatchWritten,),
        labels=_WORKER,
        value="entries",
        buckets=SIZES,
    ),
    Metric(
        name="batuta_commit_duration_seconds",
        help="Time of a transaction, including waits for the store.",
        events=(BatchWritten,),
        labels=_WORKER,
        value="seconds",
        buckets=FAST,
    ),
    Metric(
        name="batuta_lease_renewal_duration_seconds",
        help="Time of a heartbeat that renewed the lease of the worker.",
        events=(LeaseRenewed,),
        labels=_WORKER,
        value="seconds",
        buckets=FAST,
    ),
    Metric(
        name="batuta_leases_lost_total",
        help="Times that the worker dropped all its runs and registered again.",
        events=(WorkerLost,),
        labels=_WORKER,
    ),
    Metric(
        name="batuta_schedule_lateness_seconds",
        help="How late a schedule fired.",
        events=(ScheduleFired,),
        labels=_WORKER,
        value=lambda e: max(0.0, e.late),
        buckets=(*FAST, 60.0, 300.0, 900.0, 3_600.0),
    ),
    Metric(
        name="batuta_breaker_changes_total",
        help="Times that a circuit breaker became open, half-open or closed.",
        events=(BreakerChanged,),
        labels={"namespace": lambda e: e.namespace, "breaker": lambda e: e.breaker, "state": lambda e: e.state},
    ),
    Metric(
        name="batuta_partner_holds_total",
        help="Pauses that a partner asked for with Retry-After.",
        events=(PartnerHeld,),
        labels={"namespace": lambda e: e.namespace, "limit": lambda e: e.limit},
    ),
    Metric(
        name="batuta_cache_operations_total",
        help="Operations of a cache by entity: a get is a hit, a miss or absent; others are ok; failed or skipped.",
        events=(CacheAsked,),
        labels=_CACHE | {"outcome": "outcome"},
    ),
    Metric(
        name="batuta_cache_duration_seconds",
        help="Time of an operation of a cache, as its caller waited for it.",
        events=(CacheAsked,),
        labels=_CACHE,
        value="seconds",
        buckets=(0.00025, 0.0005, *FAST),
    ),
    Metric(
        name="batuta_webhook_attempts_total",
        help="Attempts to deliver webhooks: delivered, 3xx, 4xx, 5xx, unreachable or refused.",
        events=(WebhookAttempted,),
        labels=_WEBHOOK,
    ),
    Metric(
        name="batuta_webhook_duration_seconds",
        help="Time of an attempt to deliver a webhook.",
        events=(WebhookAttempted,),
        labels=_WEBHOOK,
        value="seconds",
        buckets=FAST,
    ),
    Metric(
        name="batuta_http_requests_total",
        help="Requests that the server answered, by route and status.",
        events=(RequestServed,),
        labels={
            "method": "method",
            "route": lambda e: e.route or "other",
            "status": lambda e: str(e.status),
        },
    ),
    Metric(
        name="batuta_http_request_duration_seconds",
        help="Time until the server answered a request.",
        events=(RequestServed,),
        labels={"method": "method", "route": lambda e: e.route or "other"},
        value="seconds",
        buckets=FAST,
    ),
    Metric(
        name="batuta_idempotency_replays_total",
        help="Requests that got the answer of an earlier one with the same idempotency key.",
        events=(RequestReplayed,),
        labels={"route": "route"},
    ),
    Metric(
        name="batuta_events_total",
        help="Events for flows that the server accepted; `repeated`: they were there already.",
        events=(EventAccepted,),
        labels={"namespace": "namespace", "outcome": "outcome"},
    ),
)
"""Metrics of events, in each process that sends them: workers, clients and the server."""

GAUGES = (
    Gauge(name="batuta_runs_open", help="Open runs by state.", labels=("namespace", "state")),
    Gauge(
        name="batuta_queue_depth",
        help="Runs of a queue that are ready (due, and wait for a worker), delayed or running.",
        labels=("namespace", "queue", "state"),
    ),
    Gauge(
        name="batuta_queue_oldest_seconds",
        help="How long the run that has been due for longest has waited.",
        labels=("namespace", "queue"),
    ),
    Gauge(name="batuta_queue_workers", help="Live workers that serve a queue.", labels=("namespace", "queue")),
    Gauge(name="batuta_queue_paused", help="1 if the queue is paused.", labels=("namespace", "queue")),
    Gauge(name="batuta_runs_retrying", help="Open runs of which something failed and is tried again."),
    Gauge(name="batuta_workers_live", help="Workers whose lease is valid."),
    Gauge(name="batuta_dead_letters_open", help="Open dead letters."),
    Gauge(name="batuta_schedule_overdue_seconds", help="How long the schedule that has been due for longest is late."),
    Gauge(
        name="batuta_breaker_state",
        help="1 for the state that a circuit breaker is in (closed, open or half-open), 0 for the others.",
        labels=("namespace", "breaker", "state"),
    ),
    Gauge(
        name="batuta_bus_waiting",
        help="Messages of the bus that a subscription has yet to get, and that are no runs yet.",
        labels=("namespace", "subscription"),
    ),
    Gauge(
        name="batuta_bus_running",
        help="Deliveries of a subscription that are open runs.",
        labels=("namespace", "subscription"),
    ),
    Gauge(
        name="batuta_bus_lag_seconds",
        help="How long the oldest message that a subscription has yet to get has been published.",
        labels=("namespace", "subscription"),
    ),
    Gauge(
        name="batuta_bus_behind",
        help="Messages that the broker still holds for a subscription; it needs BATUTA_BUS_ADMIN_URL.",
        labels=("namespace", "subscription"),
    ),
    Gauge(
        name="batuta_bus_unsent",
        help="Messages of a topic that wait in the store for the broker.",
        labels=("namespace", "topic"),
    ),
    Gauge(
        name="batuta_cache_up",
        help="1 if the Redis of the application answered this scrape, else 0.",
        labels=("cache",),
    ),
    Gauge(name="batuta_cache_keys", help="Keys in it.", labels=("cache",)),
    Gauge(name="batuta_cache_memory_bytes", help="Memory that it uses.", labels=("cache",)),
    Gauge(name="batuta_cache_memory_max_bytes", help="Memory that it may use; 0 is no limit.", labels=("cache",)),
    Gauge(
        name="batuta_cache_evictions_total",
        help="Values that it dropped for lack of memory.",
        labels=("cache",),
        kind=Kind.COUNTER,
    ),
    Gauge(name="batuta_store_up", help="1 if the store answered this scrape, else 0."),
)
"""Gauges of the store and of the application's Redis, which the server asks at each scrape."""
