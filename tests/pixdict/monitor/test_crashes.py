"""The monitor when its worker, its database and the bus fail: no alert is lost or comes twice, no slot is skipped."""

import asyncio
import random
from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import pytest

from batuta import activity_info, bus, job
from batuta.bus import Message
from batuta.testing import crash_sweep, in_virtual_time
from pixdict.connect.monitor import SCHEDULE_ID, MonitorTables, monitor_rate_limits
from pixdict.errors import BridgeUnavailable, DatabaseTimeout
from tests.long import LONG
from tests.pixdict.monitor.kit import LOW, FakeBridge, FakeBus, Monitor

EXPECTED = {"ENTRIES_WRITE", "CLAIMS_READ"}


class Flaky(MonitorTables):
    """The first attempt of each insert fails after it was done, so that it is made again."""

    async def add_states(self, states, activity_key):
        await super().add_states(states, activity_key)
        if activity_info().attempt == 1:
            raise DatabaseTimeout("the answer was lost")


class FlakyBus(FakeBus):
    """The first attempt sends one message that arrives and one that does not, and fails for both."""

    async def publish(self, topic, payload, *, key, id, type):
        first = activity_info().attempt == 1
        if not first or key == "CLAIMS_READ":
            await super().publish(topic, payload, key=key, id=id, type=type)
        if first:
            raise ConnectionError("the answer was lost")


@pytest.mark.parametrize(("store", "most"), [("memory", None if LONG else 40), ("sqlite", None if LONG else 12)])
def test_a_worker_that_dies_at_any_point_loses_no_alert_and_sends_none_twice(tmp_path, store, most):
    made: list[Monitor] = []

    def activities():
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Monitor(folder, FakeBridge(*LOW, errors=[BridgeUnavailable("away")]), FlakyBus(), tables=Flaky))
        return [made[-1].activities]

    swept = crash_sweep(monitor_rate_limits, activities=activities, store=store, most=most)
    assert swept.ending == 2
    assert len(swept.points) >= 12
    for monitor in made:
        assert sorted(one["key"] for one in monitor.bus.messages.values()) == sorted(EXPECTED)
        rows = monitor.rows("SELECT policy_name, count(*) AS times FROM dict_rate_limit_states GROUP BY policy_name")
        assert {row["policy_name"]: row["times"] for row in rows} == dict.fromkeys([one.policy_name for one in LOW], 1)


@pytest.mark.parametrize("seed", range(3))
def test_hours_of_crashes_skip_no_slot(tmp_path, seed):
    @in_virtual_time
    async def day():
        chance = random.Random(seed)
        monitor = Monitor(tmp_path, FakeBridge(*LOW), FlakyBus(), tables=Flaky)
        async with monitor.environment(scheduled=True) as env:
            until = env.now + timedelta(hours=6)
            while env.now < until:
                await asyncio.sleep(chance.uniform(10, 900))
                await env.crash()
            await asyncio.sleep(600)
            runs = (await env.client.list(id_prefix=f"{SCHEDULE_ID}:", limit=500)).runs
            slots = sorted(run.id.removeprefix(f"{SCHEDULE_ID}:") for run in runs)
            assert {str(run.state) for run in runs} == {"completed"}
            stored = await monitor.tables.states(env.now - timedelta(days=1))
        assert len(slots) >= 72
        assert slots == [f"{slot:%Y-%m-%dT%H:%M:%SZ}" for slot in _every_five_minutes(slots[0], len(slots))]
        checks = {state.checked_at for state in stored}
        assert len(checks) == len(slots)
        assert set(monitor.bus.messages) == {f"{name}:{at.isoformat()}" for name in EXPECTED for at in checks}
        assert max(Counter((one.policy_name, one.checked_at) for one in stored).values()) == 1

    day()


@pytest.mark.parametrize("seed", range(2))
def test_who_subscribes_to_core_events_gets_each_alert_once_through_hours_of_crashes(tmp_path, seed):
    """With the bus of the store. Every first attempt to publish sends all alerts, and does not hear of it."""
    deliveries: dict[str, set[str]] = {}

    @job
    async def note(message: Message[Any]) -> None:
        deliveries.setdefault(message.id, set()).add(activity_info().key)

    async def lost(*args, **options):
        await bus.publish(*args, **options)
        if activity_info().attempt == 1:
            raise ConnectionError("the answer was lost")

    @in_virtual_time
    async def hours():
        chance = random.Random(seed)
        monitor = Monitor(tmp_path, FakeBridge(*LOW), tables=Flaky, publish=lost)
        async with monitor.environment(scheduled=True, subscriptions=[bus.subscribe("core-events", note)]) as env:
            until = env.now + timedelta(hours=2)
            while env.now < until:
                await asyncio.sleep(chance.uniform(1, 400))
                await env.crash()
            await asyncio.sleep(600)
            checks = {state.checked_at for state in await monitor.tables.states(env.now - timedelta(days=1))}
        assert len(checks) >= 24
        assert set(deliveries) == {f"{name}:{at.isoformat()}" for name in EXPECTED for at in checks}
        assert {len(one) for one in deliveries.values()} == {1}, "more jobs than one for a message"

    hours()


def _every_five_minutes(first, count):
    begin = datetime.fromisoformat(first)
    return [begin + timedelta(minutes=5 * n) for n in range(count)]
