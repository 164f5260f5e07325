"""What the Bridge tells of a policy. The monitor and the client of the Bridge share it."""

from __future__ import annotations

from msgspec import Struct


class PolicyReading(Struct, frozen=True, kw_only=True):
    """A policy as the Bridge tells it."""

    policy_name: str
    category: str
    capacity: int
    refill_tokens: int
    refill_period_sec: int
    available_tokens: int
    """May be negative."""
    warning_threshold_pct: float = 25.0
    critical_threshold_pct: float = 10.0
