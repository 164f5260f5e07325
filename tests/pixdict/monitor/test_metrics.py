"""The metrics of the monitor."""

from datetime import UTC, datetime

import pytest
from prometheus_client import CollectorRegistry

from batuta import RunFailed
from batuta.testing import in_virtual_time
from pixdict.connect.monitor import MonitorMetrics, metrics, monitor_rate_limits
from pixdict.connect.monitor.analysis import state_of
from pixdict.connect.monitor.metrics import MONITOR_METRICS
from pixdict.errors import NotFound
from tests.pixdict.monitor.kit import LOW, FakeBridge, Monitor, policy

NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)


def test_the_balances_of_another_category_and_of_policies_that_went_are_shown_no_more():
    registry = CollectorRegistry()
    gauges = MonitorMetrics(registry)
    gauges.set([state_of(policy(one), NOON) for one in ("STAYS", "GOES")], 0, 0)
    gauges.set([state_of(policy("STAYS", 7, category="B"), NOON)], 0, 0)
    shown = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in registry.collect()
        for sample in family.samples
        if "policy_name" in sample.labels
    }
    assert shown == {
        ("dict_rate_limit_available_tokens", "B", "STAYS"): 7,
        ("dict_rate_limit_utilization_pct", "B", "STAYS"): 100 - 7 / 36_000 * 100,
    }


def test_the_histograms_have_the_buckets_of_document_a():
    go = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)  # prometheus.DefBuckets
    assert {metric.buckets for metric in MONITOR_METRICS} == {go}


#
@in_virtual_time
async def test_checks_and_activities_are_timed_by_how_they_ended(tmp_path):
    counted = metrics()
    monitor = Monitor(tmp_path, FakeBridge(*LOW, errors=[NotFound("no")]))
    async with monitor.environment(middleware=[counted]) as env:
        with pytest.raises(RunFailed):
            await env.run(monitor_rate_limits)
        for _ in range(2):
            await env.run(monitor_rate_limits)

    def times(name, **labels):
        return counted.registry.get_sample_value(f"dict_rate_limit_{name}_duration_seconds_count", labels)

    assert [times("workflow", status=status) for status in ("success", "failed")] == [2, 1]
    for name in ("get_policies", "store_policy_state", "analyze_balance", "publish_alert", "publish_metrics"):
        failed = 1 if name == "get_policies" else None
        assert [times("activity", activity_name=name, status=one) for one in ("success", "failed")] == [2, failed]
