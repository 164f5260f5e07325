"""The worker that runs the monitor."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

from batuta import Batuta
from pixdict.connect.monitor import (
    QUEUE,
    WORKFLOWS,
    MonitorMetrics,
    MonitorTables,
    PolicySource,
    RateLimitActivities,
    schedule,
)


def monitor_worker(
    client: Batuta, bridge: PolicySource, tables: MonitorTables, registry: Any, **settings: Any
) -> AbstractAsyncContextManager[Any]:
    """Takes `dict-task-queue` and declares the schedule. `registry`: of Prometheus, for the gauges."""
    activities = RateLimitActivities(bridge, tables, MonitorMetrics(registry))
    return client.worker(
        workflows=WORKFLOWS,
        activities=[activities],
        queues=[QUEUE],
        schedules=[schedule()],
        **settings,
    )
