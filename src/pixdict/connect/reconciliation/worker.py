"""The worker that runs reconciliations."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from batuta import Batuta
from pixdict.connect.database import Database
from pixdict.connect.keys.tables import KeyTables
from pixdict.connect.reconciliation.activities import Bridge, ReconciliationActivities
from pixdict.connect.reconciliation.audit import Audit
from pixdict.connect.reconciliation.held import HeldEntries
from pixdict.connect.reconciliation.metrics import ReconciliationMetrics
from pixdict.connect.reconciliation.mirror import Mirror
from pixdict.connect.reconciliation.models import AGREES, BUSY, DIFFERS, Options
from pixdict.connect.reconciliation.workflow import QUEUE, reconcile_keys, schedule
from pixdict.dict.keys import KeyType

WORKFLOWS: list[Any] = [reconcile_keys]


@asynccontextmanager
async def reconciliation_worker(
    client: Batuta,
    bridge: Bridge,
    tables: KeyTables,
    database: Database,
    registry: Any,
    *,
    options: Options = Options(),
    **settings: Any,
) -> AsyncIterator[Any]:
    """Takes the queue `dict-reconciliation` and declares the schedule. `tables`: our entries. `database`: for the
    identifiers of the directory and the audit. `registry`: of Prometheus, for the gauges."""
    audit, metrics = Audit(database), ReconciliationMetrics(registry)
    for key_type in KeyType:
        for outcomes in ((DIFFERS,), (AGREES, BUSY), (AGREES, BUSY, DIFFERS)):
            if (report := await audit.last(str(key_type), *outcomes)) is not None:
                metrics.known(report)
    activities = ReconciliationActivities(bridge, HeldEntries(tables), Mirror(database), audit, metrics)
    async with client.worker(
        workflows=WORKFLOWS, activities=[activities], queues=[QUEUE], schedules=[schedule(options)], **settings
    ) as worker:
        yield worker
