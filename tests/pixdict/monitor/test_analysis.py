"""Utilisation, status, alerts and forecasts."""

from datetime import UTC, datetime, timedelta

import pytest

from pixdict.connect.monitor.analysis import analyze, seconds_to_empty, state_of
from tests.pixdict.monitor.kit import policy

NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)


#
@pytest.mark.parametrize(
    ("available", "capacity", "status", "utilisation"),
    [
        (300, 300, "OK", 0.0),
        (76, 300, "OK", 74.666667),
        (75, 300, "WARNING", 75.0),
        (31, 300, "WARNING", 89.666667),
        (30, 300, "CRITICAL", 90.0),
        (29, 290, "CRITICAL", 90.0),
        (7, 70, "CRITICAL", 90.0),
        (0, 300, "CRITICAL", 100.0),
        (-15, 100, "CRITICAL", 115.0),
        (0, 0, "UNKNOWN", 0.0),
        (-5, 0, "UNKNOWN", 0.0),
    ],
)
def test_a_policy_has_the_status_of_what_remains(available, capacity, status, utilisation):
    state = state_of(policy(available=available, capacity=capacity), NOON)
    assert state.status == status
    assert state.utilization_pct == pytest.approx(utilisation)


def test_thresholds_are_those_that_the_bridge_gives():
    strict = policy(available=50, capacity=100, warning_threshold_pct=60.0, critical_threshold_pct=50.0)
    assert state_of(strict, NOON).status == "CRITICAL"
    assert state_of(policy(available=50, capacity=100, warning_threshold_pct=50.0), NOON).status == "WARNING"


#
def test_one_alert_for_each_policy_that_runs_dry_with_the_text_of_document_a():
    states = [
        state_of(one, NOON)
        for one in (
            policy("A_FULL", 100, 100),
            policy("B_LOW", 20, 100),
            policy("C_DRY", 5, 100, category="H"),
            policy("D_NONE", 0, 0),
        )
    ]
    result = analyze(states, NOON)
    assert (result.warning_count, result.critical_count) == (1, 1)
    assert [alert.message for alert in result.alerts] == [
        "Policy B_LOW (Category A) is at 80.00% utilization (WARNING threshold exceeded)",
        "URGENT: Policy C_DRY (Category H) is at 95.00% utilization (CRITICAL threshold exceeded)",
    ]
    assert {alert.detected_at for alert in result.alerts} == {NOON}


def falling(*tokens: float) -> list[tuple[datetime, float]]:
    return [(NOON + timedelta(minutes=5 * n), one) for n, one in enumerate(tokens)]


@pytest.mark.parametrize(
    ("tokens", "seconds"),
    [
        ((300, 200, 100), 300.0),
        ((100, 100, 100), None),
        ((100, 200, 300), None),
        ((300, 200), None),
        ((), None),
        ((10, 5, 0), 0.0),
        ((10, 5, -20), 0.0),
    ],
)
def test_a_forecast_goes_on_at_the_rate_of_the_last_readings(tokens, seconds):
    assert seconds_to_empty(falling(*tokens)) == (None if seconds is None else pytest.approx(seconds))


def test_readings_of_a_few_minutes_tell_no_rate():
    readings = [(NOON + timedelta(minutes=3 * n), 20 - n) for n in range(4)]
    assert seconds_to_empty(readings) is None
    assert seconds_to_empty([*readings, (NOON + timedelta(minutes=12), 16)]) == pytest.approx(16 * 180)
