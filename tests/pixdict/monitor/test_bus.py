"""Alerts on the bus of Batuta."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

import batuta
from batuta import activity_info, bus, job
from batuta.bus import Message
from pixdict.connect.database import SqliteDatabase
from pixdict.connect.monitor import WORKFLOWS, MonitorMetrics, MonitorTables, RateLimitActivities, monitor_rate_limits
from tests.pixdict.monitor.kit import LOW, FakeBridge


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_a_subscription_of_core_events_gets_each_alert_once_though_it_is_published_twice(tmp_path, store):
    arrived = []

    @job
    async def note(message: Message[Any]) -> None:
        arrived.append(message)

    async def lost(*args, **options):
        """The first attempt publishes, and does not hear of it."""
        await bus.publish(*args, **options)
        if activity_info().attempt == 1:
            raise ConnectionError("the answer was lost")

    url = "memory://" if store == "memory" else f"sqlite:///{tmp_path}/batuta.db"
    database = SqliteDatabase(tmp_path / "pixdict.db")
    tables = MonitorTables(database)
    activities = RateLimitActivities(FakeBridge(*LOW), tables, MonitorMetrics(CollectorRegistry()), lost)
    subscriptions = [bus.subscribe("core-events", note)]
    async with (
        batuta.connect(url) as client,
        client.worker(workflows=WORKFLOWS, activities=[activities], subscriptions=subscriptions),
    ):
        handle = await client.start(monitor_rate_limits)
        assert await handle.result() == 2
        async with asyncio.timeout(30):
            while any(one.waiting + one.running for one in (await client.bus.status()).subscriptions) or not arrived:
                await asyncio.sleep(0.01)
        [checked_at] = {one.checked_at for one in await tables.states(datetime.now(UTC) - timedelta(hours=1))}
    await database.close()
    assert sorted((one.topic, one.key, one.id) for one in arrived) == [
        ("core-events", name, f"{name}:{checked_at.isoformat()}") for name in ("CLAIMS_READ", "ENTRIES_WRITE")
    ]
    assert {one.type for one in arrived} == {"ActionRateLimitAlert"}
    assert arrived[0].payload["action"] == "ActionRateLimitAlert"
