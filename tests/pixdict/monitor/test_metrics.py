"""The metrics of the monitor."""

from datetime import UTC, datetime

from prometheus_client import CollectorRegistry

from pixdict.connect.monitor import MonitorMetrics
from pixdict.connect.monitor.analysis import state_of
from pixdict.connect.monitor.metrics import MONITOR_METRICS
from tests.pixdict.monitor.kit import policy

NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)


def test_the_balances_of_another_category_and_of_policies_that_went_are_shown_no_more():
    registry = CollectorRegistry()
    metrics = MonitorMetrics(registry)
    metrics.set([state_of(policy(one), NOON) for one in ("STAYS", "GOES")], 0, 0)
    metrics.set([state_of(policy("STAYS", 7, category="B"), NOON)], 0, 0)
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
