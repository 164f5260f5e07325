"""What the Bridge tells beyond the messages of the directory. The Bridge, its client and those who use it share it."""

from __future__ import annotations

from msgspec import Struct

from pixdict.dict.messages import GetEntryResponse


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


class LookUp(GetEntryResponse, frozen=True, kw_only=True):
    """A look-up, and for how many seconds the directory lets it be kept (`Cache-Control`). 0: not at all."""

    max_age: int = 0
