"""Time enters here and nowhere else, so that tests can move it."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol, overload

SECOND = 1_000_000
"""One second in the unit of every stored time: integer microseconds since 1970, UTC."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EXACT = 1 << 52  # in the year 2112

wall_ns = time.time_ns
"""The machine's wall time in nanoseconds, as tracers want it."""


@overload
def as_datetime(micros: int) -> datetime: ...
@overload
def as_datetime(micros: None) -> None: ...
@overload
def as_datetime(micros: int | None) -> datetime | None: ...
def as_datetime(micros: int | None) -> datetime | None:
    """A stored time for people, UTC."""
    if micros is None:
        return None
    if 0 <= micros < _EXACT:  # a float tells them apart, and takes a quarter of the time
        return datetime.fromtimestamp(micros / 1e6, UTC)
    return _EPOCH + timedelta(microseconds=micros)


def as_micros(moment: datetime) -> int:
    """The other way round, without rounding. `moment` has a zone."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


class Clock(Protocol):
    """Wall time for people and stores, monotonic time for measuring how long something took."""

    def now(self) -> int:
        """Microseconds since 1970, UTC. May jump."""
        ...

    def monotonic(self) -> float:
        """Seconds since some moment. Never goes back, and goes on while the machine is suspended."""
        ...


def _monotonic() -> Callable[[], float]:
    # A lease must expire while the machine sleeps, too: a clock that stops meanwhile would show it as valid.
    boot: int | None = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic if boot is None else functools.partial(time.clock_gettime, boot)


class SystemClock:
    """The machine's clocks."""

    def now(self) -> int:
        return time.time_ns() // 1000

    monotonic = staticmethod(_monotonic())  # asked for several times a step: no call of our own around it


class ManualClock:
    """A clock that only moves when a test moves it."""

    def __init__(self, now: int = 1_700_000_000 * SECOND) -> None:
        self._now = now
        self._monotonic = 0.0

    def now(self) -> int:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Move both clocks forward."""
        self._now += round(seconds * SECOND)
        self._monotonic += seconds

    def jump(self, seconds: float) -> None:
        """Move the wall clock alone, as an administrator or a bad time server would."""
        self._now += round(seconds * SECOND)
