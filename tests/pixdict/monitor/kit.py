"""Stand-ins for what the monitor talks to."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from batuta.testing import Environment
from pixdict.connect.database import SqliteDatabase
from pixdict.connect.monitor import (
    QUEUE,
    WORKFLOWS,
    MonitorMetrics,
    MonitorTables,
    PolicyReading,
    RateLimitActivities,
    schedule,
)


def policy(name: str = "ENTRIES_WRITE", available: int = 36_000, capacity: int = 36_000, **more: Any) -> PolicyReading:
    return PolicyReading(
        policy_name=name,
        category=more.pop("category", "A"),
        capacity=capacity,
        refill_tokens=1_200,
        refill_period_sec=60,
        available_tokens=available,
        **more,
    )


FULL = [policy(), policy("CLAIMS_READ", 18_000, 18_000)]
LOW = [policy(available=7_200), policy("CLAIMS_READ", 900, 18_000), policy("KEYS_CHECK", 70, 70)]


class FakeBridge:
    """Answers with `policies`; `errors` are raised first, one for each call."""

    def __init__(self, *policies: PolicyReading, errors: list[Exception] | None = None) -> None:
        self.policies, self.errors, self.calls = list(policies), errors or [], 0

    async def list_policies(self) -> list[PolicyReading]:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.policies


class FakeBus:
    """A bus that drops a message whose id it has."""

    def __init__(self, errors: list[Exception] | None = None) -> None:
        self.sent: list[str] = []
        self.messages: dict[str, Any] = {}
        self.errors = errors or []

    async def publish(self, topic: str, payload: Any, *, key: str, id: str, type: str) -> None:
        self.sent.append(id)
        if self.errors:
            raise self.errors.pop(0)
        self.messages.setdefault(id, {"topic": topic, "key": key, "type": type, "payload": payload})


class Monitor:
    """The monitor with stand-ins, and an environment for it."""

    def __init__(
        self,
        folder: Path,
        bridge: Any,
        bus: Any = None,
        *,
        tables: type[MonitorTables] = MonitorTables,
        publish: Any = None,
    ) -> None:
        """`publish`: instead of that of the stand-in for the bus."""
        self.bridge, self.bus, self.registry = bridge, bus or FakeBus(), CollectorRegistry()
        self.file = folder / "pixdict.db"
        self.database = SqliteDatabase(self.file)
        self.tables = tables(self.database)
        metrics = MonitorMetrics(self.registry)
        self.activities = RateLimitActivities(bridge, self.tables, metrics, publish or self.bus.publish)

    def environment(self, *, scheduled: bool = False, **options: Any) -> Environment:
        return Environment(
            workflows=WORKFLOWS,
            activities=[self.activities],
            queues=["default", QUEUE],
            schedules=[schedule()] if scheduled else [],
            **options,
        )

    def rows(self, statement: str) -> list[dict[str, Any]]:
        """What the file has."""
        with closing(sqlite3.connect(self.file)) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(statement)]

    def sample(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)
