"""The worker that runs the monitor."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

from batuta import Batuta, job
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

    async def publish(topic: str, payload: Any, *, key: str, id: str, type: str) -> None:
        await client.enqueue(core_event, topic, key, type, payload, id=id, queue=QUEUE)

    activities = RateLimitActivities(bridge, tables, MonitorMetrics(registry), publish)
    return client.worker(
        workflows=WORKFLOWS,
        activities=[activities],
        jobs=[core_event],
        queues=[QUEUE],
        schedules=[schedule()],
        **settings,
    )


@job
async def core_event(topic: str, key: str, type: str, payload: Any) -> str:
    """A message of a topic, for whoever takes the queue."""
    return f"{topic}: {type} of {key}, {payload}"
