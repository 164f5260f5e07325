"""The monitor as document A specifies it, in virtual time."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from batuta import RunFailed, workflow
from batuta.errors import InvalidInput
from batuta.testing import double, in_virtual_time
from pixdict.connect.monitor import SCHEDULE_ID, MonitorTables, monitor_rate_limits, monitor_rate_limits_loop
from pixdict.connect.monitor.activities import RateLimitActivities
from pixdict.connect.monitor.analysis import state_of
from pixdict.connect.monitor.models import LoopState
from pixdict.errors import (
    BridgeError,
    BridgeUnavailable,
    ConstraintViolation,
    DatabaseTimeout,
    InvalidArgument,
    NotFound,
    RateLimited,
)
from tests.pixdict.monitor.kit import FULL, LOW, FakeBridge, FakeBus, Monitor, policy

EXPECTED = ("CLAIMS_READ", "ENTRIES_WRITE")


@workflow
async def stores_states_of(at: datetime) -> None:
    await RateLimitActivities.store_policy_state([state_of(policy(), at)], at + timedelta(seconds=1))


class WithoutAudit(MonitorTables):
    async def add_alert(self, alert, id):
        raise ConstraintViolation("no")


class SlowAudit(MonitorTables):
    async def add_alert(self, alert, id):
        await asyncio.sleep(10)
        raise DatabaseTimeout("no answer within 10 s")


#
@in_virtual_time
async def test_a_check_stores_every_policy_and_publishes_nothing_when_all_is_well(tmp_path):
    monitor = Monitor(tmp_path, FakeBridge(*FULL))
    async with monitor.environment() as env:
        assert await env.run(monitor_rate_limits) == 0
        stored = await monitor.tables.states(env.now - timedelta(hours=1))
    assert [(one.policy_name, one.available_tokens, one.status) for one in stored] == [
        ("CLAIMS_READ", 18_000, "OK"),
        ("ENTRIES_WRITE", 36_000, "OK"),
    ]
    assert monitor.bus.sent == []
    #
    labels = {"policy_name": "CLAIMS_READ", "category": "A"}
    assert monitor.sample("dict_rate_limit_available_tokens", **labels) == 18_000
    assert monitor.sample("dict_rate_limit_utilization_pct", **labels) == 0.0
    assert monitor.sample("dict_rate_limit_alerts_total", severity="CRITICAL") == 0


#
@in_virtual_time
async def test_alerts_are_published_in_the_form_of_document_a_and_kept_for_audits(tmp_path):
    monitor = Monitor(tmp_path, FakeBridge(*LOW))
    async with monitor.environment() as env:
        assert await env.run(monitor_rate_limits) == 2
        [checked_at] = {one.checked_at for one in await monitor.tables.states(env.now - timedelta(hours=1))}
        kept = await monitor.tables.alerts()
    message = monitor.bus.messages[f"CLAIMS_READ:{checked_at.isoformat()}"]
    assert (message["topic"], message["key"]) == ("core-events", "CLAIMS_READ")
    assert message["payload"]["action"] == "ActionRateLimitAlert"
    assert set(message["payload"]["data"]) == {
        "policy_name", "category", "severity", "available_tokens", "capacity_max", "utilization_pct", "message",
        "detected_at",
    }  # fmt: skip
    assert message["payload"]["data"]["severity"] == "CRITICAL"
    assert message["payload"]["data"]["utilization_pct"] == 95.0
    assert sorted((one.policy_name, one.severity) for one in kept) == [
        ("CLAIMS_READ", "CRITICAL"),
        ("ENTRIES_WRITE", "WARNING"),
    ]
    assert monitor.sample("dict_rate_limit_alerts_total", severity="WARNING") == 1
    assert monitor.sample("dict_rate_limit_alerts_total", severity="CRITICAL") == 1


#
@pytest.mark.parametrize(
    ("error", "calls", "waits"),
    [
        (BridgeUnavailable("away"), 3, 3.0),
        (BridgeError("INTERNAL"), 3, 3.0),
        (RateLimited(60.0, "the bucket is empty"), 3, 120.0),
        (ConnectionError("reset"), 3, 3.0),
        (InvalidArgument("no"), 1, 0.0),
        (NotFound("no"), 1, 0.0),
    ],
)
def test_a_bridge_that_fails_is_asked_as_often_as_the_retry_matrix_says(tmp_path, error, calls, waits):
    @in_virtual_time
    async def check():
        monitor = Monitor(tmp_path, FakeBridge(errors=[error] * 5))
        async with monitor.environment() as env:
            before = env.now
            with pytest.raises(RunFailed, match=str(error)):
                await env.run(monitor_rate_limits)
            assert monitor.bridge.calls == calls
            assert (env.now - before).total_seconds() == pytest.approx(waits, abs=0.05)
            assert await monitor.tables.states(before) == []

    check()


@pytest.mark.parametrize(
    ("error", "calls", "waits"),
    [(DatabaseTimeout("away"), 2, 0.5), (ConstraintViolation("no"), 1, 0.0), (InvalidArgument("no"), 1, 0.0)],
)
def test_a_database_that_fails_is_asked_as_often_as_the_retry_matrix_says(tmp_path, error, calls, waits):
    stored = double(RateLimitActivities.store_policy_state, results=[error] * 5)

    @in_virtual_time
    async def check():
        monitor = Monitor(tmp_path, FakeBridge(*LOW))
        async with monitor.environment() as env:
            await env.deploy(workflows=[monitor_rate_limits], activities=[monitor.activities, stored])
            before = env.now
            with pytest.raises(RunFailed, match=str(error)):
                await env.run(monitor_rate_limits)
            assert len(stored.calls) == calls
            assert (env.now - before).total_seconds() == pytest.approx(waits, abs=0.05)

    check()


@in_virtual_time
async def test_checks_that_begin_at_once_lose_no_alert_of_each_other(tmp_path):
    monitor = Monitor(tmp_path, FakeBridge(*LOW))
    async with monitor.environment() as env:
        runs = [await env.start(monitor_rate_limits, id=f"check-{number}") for number in range(3)]
        assert await asyncio.gather(*(run.result() for run in runs)) == [2, 2, 2]
        stored = await monitor.tables.states(env.now - timedelta(hours=1))
    checks = {one.checked_at for one in stored}
    assert len(checks) == 3
    assert set(monitor.bus.messages) == {f"{name}:{at.isoformat()}" for name in EXPECTED for at in checks}


@in_virtual_time
async def test_a_bus_that_is_away_for_a_moment_gets_each_alert_once(tmp_path):
    monitor = Monitor(tmp_path, FakeBridge(*LOW), FakeBus(errors=[ConnectionError("away"), ConnectionError("away")]))
    async with monitor.environment() as env:
        assert await env.run(monitor_rate_limits) == 2
    assert len(monitor.bus.sent) == 4
    assert len(monitor.bus.messages) == 2


@in_virtual_time
async def test_an_alert_that_the_bus_refuses_is_not_sent_again_and_the_others_arrive(tmp_path):
    monitor = Monitor(tmp_path, FakeBridge(*LOW), FakeBus(errors=[InvalidInput("too large")]))
    async with monitor.environment() as env:
        assert await env.run(monitor_rate_limits) == 2
        assert len(await monitor.tables.alerts()) == 2
    assert len(monitor.bus.sent) == 2
    assert [one["key"] for one in monitor.bus.messages.values()] == ["CLAIMS_READ"]


@in_virtual_time
async def test_an_alert_that_is_refused_does_not_keep_another_one_from_its_next_attempt(tmp_path):
    for errors in ([InvalidInput("no"), ConnectionError("away")], [ConnectionError("away"), InvalidInput("no")]):
        monitor = Monitor(tmp_path, FakeBridge(*LOW), FakeBus(errors=errors))
        async with monitor.environment() as env:
            await env.run(monitor_rate_limits)
        assert len(monitor.bus.messages) == 2


@in_virtual_time
async def test_states_of_another_check_are_refused(tmp_path):
    monitor = Monitor(tmp_path, FakeBridge())
    at = datetime(2026, 11, 18, tzinfo=UTC)
    async with monitor.environment() as env:
        await env.deploy(workflows=[stores_states_of], activities=[monitor.activities])
        with pytest.raises(RunFailed, match="not that of the check"):
            await env.run(stores_states_of, at)
        assert await monitor.tables.states(at) == []


@in_virtual_time
async def test_a_bus_that_stays_away_does_not_fail_the_check_and_the_alerts_are_in_the_table(tmp_path):
    monitor = Monitor(tmp_path, FakeBridge(*LOW), FakeBus(errors=[ConnectionError("away")] * 100))
    async with monitor.environment() as env:
        before = env.now
        assert await env.run(monitor_rate_limits) == 2
        assert (env.now - before).total_seconds() == pytest.approx(3.0, abs=0.05)
        assert len(await monitor.tables.alerts()) == 2
    assert len(monitor.bus.sent) == 6


@in_virtual_time
async def test_a_table_of_alerts_that_fails_fails_nothing(tmp_path, caplog):
    monitor = Monitor(tmp_path, FakeBridge(*LOW), tables=WithoutAudit)
    async with monitor.environment() as env:
        assert await env.run(monitor_rate_limits) == 2
    assert len(monitor.bus.messages) == 2
    for name in EXPECTED:
        assert f"the alert of {name} is not in dict_rate_limit_alerts" in caplog.text


@in_virtual_time
async def test_a_table_of_alerts_that_does_not_answer_holds_no_alert_back(tmp_path, caplog):
    low = [policy(f"POLICY_{number}", 0) for number in range(29)]
    monitor = Monitor(tmp_path, FakeBridge(*low), tables=SlowAudit)
    async with monitor.environment() as env:
        before = env.now
        assert await env.run(monitor_rate_limits) == 29
        assert (env.now - before).total_seconds() == pytest.approx(10.0, abs=0.05)
    assert len(monitor.bus.sent) == len(monitor.bus.messages) == 29
    assert "alerts from that of POLICY_0 on are not in dict_rate_limit_alerts" in caplog.text


@in_virtual_time
async def test_metrics_that_fail_fail_nothing(tmp_path):
    monitor = Monitor(tmp_path, FakeBridge(*FULL))
    broken = double(RateLimitActivities.publish_metrics, results=[RuntimeError("no registry")])
    async with monitor.environment() as env:
        await env.deploy(workflows=[monitor_rate_limits], activities=[monitor.activities, broken])
        assert await env.run(monitor_rate_limits) == 0
    assert len(broken.calls) == 1


#
@in_virtual_time
async def test_a_day_has_288_checks_on_the_queue_of_document_a_and_skips_none(tmp_path):
    monitor = Monitor(tmp_path, FakeBridge(*[policy(f"POLICY_{n}") for n in range(29)]))
    async with monitor.environment(scheduled=True) as env:
        await asyncio.sleep(86_400)  # unlike advance(), waits for the thread of SQLite
        runs = (await env.client.list(id_prefix=f"{SCHEDULE_ID}:", limit=500)).runs
        [stored] = await monitor.database.run("SELECT count(*) AS count FROM dict_rate_limit_states")
    assert len(runs) == 288
    assert {run.queue for run in runs} == {"dict-task-queue"}
    assert {str(run.state) for run in runs} == {"completed"}
    assert stored["count"] == 288 * 29


#
@in_virtual_time
async def test_the_long_lived_variant_continues_as_new_after_a_day_and_keeps_its_state(tmp_path):
    monitor = Monitor(tmp_path, FakeBridge(*LOW, errors=[NotFound("no")]))
    async with monitor.environment(keep_in_memory=600) as env:
        handle = await env.start(monitor_rate_limits_loop, LoopState(), id="loop")
        first = (await handle.describe()).run_id
        await asyncio.sleep(25 * 3600)
        await env.settle()
        view = await (await env.get("loop")).describe()
        assert view.run_id != first
        [begun, *_] = await (await env.get("loop")).journal(limit=1)
        carried: Any = begun.body.value
        [kept] = msgspec.json.decode(carried, type=list[LoopState])
        assert (kept.checks, kept.alerts) == (289, 288 * 2), "the first check failed"
        assert monitor.bridge.calls == 300
        assert len(await monitor.tables.states(env.now - timedelta(days=2))) == 299 * 3
        await handle.terminate("the test ends")


@in_virtual_time
async def test_the_long_lived_variant_goes_on_after_an_unforeseen_error(tmp_path):
    monitor = Monitor(tmp_path, FakeBridge(*LOW, errors=[ZeroDivisionError("no class of ours")] * 3))
    async with monitor.environment() as env:
        handle = await env.start(monitor_rate_limits_loop, LoopState(), id="loop")
        await asyncio.sleep(11 * 60)
        assert monitor.bridge.calls == 4
        assert len(await monitor.tables.states(env.now - timedelta(hours=1))) == len(LOW)
        await handle.terminate("the test ends")


def test_the_long_lived_variant_continues_as_new_after_10_000_entries_at_the_latest():
    assert monitor_rate_limits_loop.continue_after == 10_000
