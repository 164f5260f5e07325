"""The workers of connect: the monitor alone, or all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from batuta import Batuta
from pixdict.bridge import BridgeClient
from pixdict.connect.database import Database
from pixdict.connect.keys import KeyTables, keys_worker
from pixdict.connect.monitor import (
    QUEUE,
    WORKFLOWS,
    MonitorMetrics,
    MonitorTables,
    PolicySource,
    RateLimitActivities,
    schedule,
)
from pixdict.connect.reconciliation import reconciliation_worker


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


@asynccontextmanager
async def connect_workers(
    client: Batuta,
    bridge: BridgeClient,
    tables: KeyTables,
    database: Database,
    registry: Any,
    *,
    participant: str,
    attempts: int = 3,
    **settings: Any,
) -> AsyncIterator[None]:
    """Everything that connect runs: the monitor, keys and claims with the polling of claims, and the nightly
    reconciliation. `tables`: our entries and claims. `database`: for the tables of the monitor and reconciliation.
    `attempts`: as of `keys_worker`."""
    async with (
        monitor_worker(client, bridge, MonitorTables(database), registry, **settings),
        keys_worker(client, bridge, tables, participant=participant, attempts=attempts, **settings),
        reconciliation_worker(client, bridge, tables, database, registry, **settings),
    ):
        yield
