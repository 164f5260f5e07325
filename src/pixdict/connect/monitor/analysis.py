"""The rules of document A: utilisation, status and alerts. Nothing here touches the outside world."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from pixdict.connect.monitor.models import (
    CRITICAL,
    OK,
    UNKNOWN,
    WARNING,
    AlertEvent,
    AnalyzeBalanceResult,
    PolicyState,
)
from pixdict.readings import PolicyReading


def utilisation(available: int, capacity: int) -> float:
    """Per cent of the capacity that is in use: more than 100 for a negative balance, 0 without a capacity."""
    return 100.0 - available / capacity * 100.0 if capacity > 0 else 0.0


def status_of(policy: PolicyReading) -> str:
    """Thresholds are inclusive: 10 of 100 tokens is CRITICAL when the threshold is 10 per cent."""
    if policy.capacity <= 0:
        return UNKNOWN
    remaining = 100.0 * policy.available_tokens / policy.capacity
    if remaining <= policy.critical_threshold_pct:
        return CRITICAL
    return WARNING if remaining <= policy.warning_threshold_pct else OK


def state_of(policy: PolicyReading, checked_at: datetime) -> PolicyState:
    return PolicyState(
        policy_name=policy.policy_name,
        category=policy.category,
        capacity_max=policy.capacity,
        refill_tokens=policy.refill_tokens,
        refill_period_sec=policy.refill_period_sec,
        available_tokens=policy.available_tokens,
        utilization_pct=utilisation(policy.available_tokens, policy.capacity),
        status=status_of(policy),
        checked_at=checked_at,
    )


def message_of(policy: PolicyState) -> str:
    """The text of an alert, as document A has it."""
    urgent = "URGENT: " if policy.status == CRITICAL else ""
    return (
        f"{urgent}Policy {policy.policy_name} (Category {policy.category}) is at "
        f"{policy.utilization_pct:.2f}% utilization ({policy.status} threshold exceeded)"
    )


def analyze(policies: Iterable[PolicyState], detected_at: datetime) -> AnalyzeBalanceResult:
    """One alert for each policy that is WARNING or CRITICAL."""
    alerts = [
        AlertEvent(
            policy_name=policy.policy_name,
            category=policy.category,
            severity=policy.status,
            available_tokens=policy.available_tokens,
            capacity_max=policy.capacity_max,
            utilization_pct=policy.utilization_pct,
            message=message_of(policy),
            detected_at=detected_at,
        )
        for policy in policies
        if policy.status in (WARNING, CRITICAL)
    ]
    critical = sum(alert.severity == CRITICAL for alert in alerts)
    return AnalyzeBalanceResult(alerts, len(alerts) - critical, critical)


_FEWEST, _SHORTEST = 3, 600.0
"""Readings that a forecast needs, and seconds that they must be apart: a dip of one minute is filled in the next."""


def seconds_to_empty(history: Sequence[tuple[datetime, float]]) -> float | None:
    """When the balance is 0 if it goes on falling as it did: a straight line through the readings. 0 when it is empty;
    None when it does not fall, or there are too few readings."""
    if not history:
        return None
    last_at, last = history[-1]
    if last <= 0:
        return 0.0
    if len(history) < _FEWEST or (last_at - history[0][0]).total_seconds() < _SHORTEST:
        return None
    points = [((at - last_at).total_seconds(), tokens) for at, tokens in history]
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
    return last / -slope if slope < 0 else None
