"""What the monitor reads, writes and sends. Fields are named as in document A."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

OK, WARNING, CRITICAL, UNKNOWN = "OK", "WARNING", "CRITICAL", "UNKNOWN"

TOPIC = "core-events"
ACTION = "ActionRateLimitAlert"


class PolicyState(Struct, frozen=True, kw_only=True):
    """A policy at one moment: a row of `dict_rate_limit_states`."""

    policy_name: str
    category: str
    capacity_max: int
    refill_tokens: int
    refill_period_sec: int
    available_tokens: int
    utilization_pct: float
    """Above 100 when the balance is negative; 0 when the capacity is 0."""
    status: str
    """OK, WARNING, CRITICAL; UNKNOWN when the capacity is 0."""
    checked_at: datetime


class GetPoliciesResult(Struct, frozen=True):
    policies: list[PolicyState]
    checked_at: datetime


class AlertEvent(Struct, frozen=True, kw_only=True):
    """A row of `dict_rate_limit_alerts`, and the data of a message."""

    policy_name: str
    category: str
    severity: str
    """WARNING or CRITICAL."""
    available_tokens: int
    capacity_max: int
    utilization_pct: float
    message: str
    detected_at: datetime


class AnalyzeBalanceResult(Struct, frozen=True):
    alerts: list[AlertEvent]
    warning_count: int
    critical_count: int


class LoopState(Struct, frozen=True):
    """What the long-lived variant carries from one run to the next."""

    checks: int = 0
    alerts: int = 0
    last_checked_at: datetime | None = None
