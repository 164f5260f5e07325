"""The database's time, between two heartbeats."""

from __future__ import annotations

from math import floor

from batuta.clock import SECOND, Clock

_DRIFT = 0.01
"""Seconds by which two honest readings may differ beyond their round trips."""
_MICROS = float(SECOND)  # Python has a short way for two floats, and none for a float and an integer
_LONG_AGO = -1e18
"""Before the first reading nothing is known to be past."""


class DatabaseClock:
    """Carries readings of the database's clock forward by the monotonic clock, as two bounds.

    A reading was taken some time between the question and the answer, so it gives a bound from below (`now`) and one
    from above (`latest`). What is recorded is the later, what is found due is due by the earlier: a timer never fires
    early, whatever this machine's wall clock says and however slow the answers are.
    """

    def __init__(self, clock: Clock) -> None:
        self.monotonic = clock.monotonic
        self._low: tuple[int, float] | None = None
        self._high: tuple[int, float] = (0, 0.0)
        # The same, as what the monotonic clock's microseconds are to be raised by: they are asked for in every step.
        self._low_base, self._high_base = _LONG_AGO, 0.0
        self._last = 0
        self._last_high = 0.0
        self.standing = 0
        """The moment that `now` is until `go_on`; else 0."""

    def learn(self, now: int, sent: float, received: float) -> None:
        """The database said `now` between these two monotonic times. Keeps the tightest bounds that agree with it."""
        low, high = (now, received), (now, sent)
        if self._low is not None:
            agrees = _ahead(low, self._high) <= _DRIFT and _ahead(self._low, high) <= _DRIFT
            if agrees:  # otherwise the database's clock was set
                low = low if _ahead(low, self._low) >= 0 else self._low
                high = high if _ahead(self._high, high) >= 0 else self._high
        self._low, self._high = low, high
        self._low_base, self._high_base = low[0] - low[1] * _MICROS, high[0] - high[1] * _MICROS

    def now(self) -> int:
        """Not ahead of the database. Never less than before."""
        if self.standing:
            return self.standing
        monotonic = self.monotonic  # apart from its call: as a method it would be looked for in the class first
        estimate = floor(monotonic() * _MICROS + self._low_base)  # of a float, half of what int() costs
        if estimate > self._last:
            self._last = estimate
            return estimate
        return self._last

    def stand(self) -> None:
        """Let `now` be this moment until `go_on`: for what is done together, and does not wait in between."""
        self.standing = self.now()

    def go_on(self) -> None:
        self.standing = 0

    def latest(self) -> int:
        """Not behind the database, and not before `now`. Never less than before."""
        monotonic = self.monotonic
        estimate = monotonic() * _MICROS + self._high_base
        if estimate > self._last_high:
            self._last_high = estimate
            return floor(estimate)
        return floor(self._last_high)


def _ahead(one: tuple[int, float], other: tuple[int, float]) -> float:
    """By how many seconds the clock of one reading is ahead of that of another."""
    return (one[0] - other[0]) / SECOND - (one[1] - other[1])
