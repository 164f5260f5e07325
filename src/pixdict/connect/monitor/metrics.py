"""The metrics of document A, by its names, in the registry of `batuta.metrics`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from prometheus_client import Counter, Gauge

from batuta.metrics import METRICS, Metric, Metrics
from batuta.telemetry import ActivityCompleted, ActivityFailed, RunClosed
from pixdict.connect.monitor.models import CRITICAL, WARNING, PolicyState

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""`prometheus.DefBuckets` of Go, which document A names."""
WORKFLOWS = frozenset(("monitor_rate_limits", "monitor_rate_limits_loop"))
ACTIVITIES = frozenset(("get_policies", "store_policy_state", "analyze_balance", "publish_alert", "publish_metrics"))


def _run_seconds(event: Any) -> float | None:
    return event.seconds if event.run.name in WORKFLOWS else None


def _run_status(event: Any) -> str:
    return "success" if event.state in ("completed", "continued") else "failed"


def _activity_seconds(event: Any) -> float | None:
    return event.seconds if event.activity in ACTIVITIES else None


MONITOR_METRICS = (
    Metric(
        name="dict_rate_limit_workflow_duration_seconds",
        help="Duration of MonitorRateLimitsWorkflow execution",
        events=(RunClosed,),
        labels={"status": _run_status},
        value=_run_seconds,
        buckets=BUCKETS,
    ),
    Metric(
        name="dict_rate_limit_activity_duration_seconds",
        help="Duration of activity execution",
        events=(ActivityCompleted, ActivityFailed),
        labels={"activity_name": "activity", "status": {ActivityCompleted: "success", ActivityFailed: "failed"}},
        value=_activity_seconds,
        buckets=BUCKETS,
    ),
)


def metrics() -> Metrics:
    """Middleware for the worker, with the metrics of Batuta and both histograms."""
    return Metrics(table=[*METRICS, *MONITOR_METRICS])


class MonitorMetrics:
    """Gauges and the counter, which the last activity sets."""

    def __init__(self, registry: Any) -> None:
        by_policy = ["policy_name", "category"]
        self._available = Gauge(
            "dict_rate_limit_available_tokens",
            "Available tokens for each rate limit policy",
            by_policy,
            registry=registry,
        )
        self._utilisation = Gauge(
            "dict_rate_limit_utilization_pct",
            "Utilization percentage for each rate limit policy",
            by_policy,
            registry=registry,
        )
        self._alerts = Counter(
            "dict_rate_limit_alerts", "Total number of rate limit alerts", ["severity"], registry=registry
        )
        self._checked = Gauge(
            "dict_rate_limit_last_check_timestamp_seconds",
            "When the policies were read last, in seconds since 1970",
            registry=registry,
        )

        self._shown: set[tuple[str, str]] = set()
        """Labels of the last check."""

    def set(self, policies: Iterable[PolicyState], warnings: int, criticals: int) -> None:
        shown = self._shown
        self._shown = set()
        for policy in policies:
            labels = policy.policy_name, policy.category
            self._shown.add(labels)
            self._available.labels(*labels).set(policy.available_tokens)
            self._utilisation.labels(*labels).set(policy.utilization_pct)
            self._checked.set(policy.checked_at.timestamp())
        for labels in shown - self._shown:  # else the last balance of another category would stay, and its alert
            self._available.remove(*labels)
            self._utilisation.remove(*labels)
        for severity, count in ((WARNING, warnings), (CRITICAL, criticals)):
            self._alerts.labels(severity).inc(count)
