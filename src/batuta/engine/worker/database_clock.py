"""The database's time, between two heartbeats."""

from __future__ import annotations

from math import ceil, floor

from batuta.clock import SECOND, Clock

_DRIFT = 0.01
"""Seconds by which two honest readings may differ beyond their round trips."""
_STEP = SECOND
"""Readings that disagree by less are a clock that is being corrected: time stands still until it has caught up."""
_MICROS = float(SECOND)  # Python has a short way for two floats, and none for a float and an integer
_LONG_AGO = -1e18
"""Before the first reading nothing is known to be past."""


class DatabaseClock:
    """Carries readings of the database's clock forward by the monotonic clock, as two bounds.

    A reading was taken some time between the question and the answer, so it gives a bound from below (`now`) and one
    from above (`latest`). Entries record the later bound, and timers are due by the earlier: a timer never fires early,
    whatever this machine's wall clock says and however slow the answers are.

    When the database's clock is set, time steps with it: what counts elapsed time has to take the step out again.
    """

    def __init__(self, clock: Clock) -> None:
        self.monotonic = clock.monotonic
        self._low: tuple[int, float] | None = None
        self._high: tuple[int, float] = (0, 0.0)
        # The same bounds as microseconds to add to the monotonic clock, computed once because every step needs them.
        self._low_base, self._high_base = _LONG_AGO, 0.0
        self._last = 0
        self._last_high = 0.0
        self.standing = 0
        """The moment that `now` is until `go_on`; else 0."""

    def learn(self, now: int, sent: float, received: float) -> int:
        """The database said `now` between these two monotonic times. Keeps the tightest bounds that agree with it.

        Returns the microseconds by which the database's clock was set since the last reading, or 0. They are counted
        from the lower bound before to the upper bound now: taking them out of a time never makes it early.
        """
        low, high, step = (now, received), (now, sent), 0
        if self._low is not None:
            agrees = _ahead(low, self._high) <= _DRIFT and _ahead(self._low, high) <= _DRIFT
            if agrees:
                low = low if _ahead(low, self._low) >= 0 else self._low
                high = high if _ahead(self._high, high) >= 0 else self._high
            else:
                step = ceil(_ahead(high, self._low) * _MICROS)
        self._low, self._high = low, high
        self._low_base, self._high_base = low[0] - low[1] * _MICROS, high[0] - high[1] * _MICROS
        if abs(step) < _STEP:
            return 0
        self._last, self._last_high = 0, 0.0
        return step

    def now(self) -> int:
        """Not ahead of the database. Never less than before, unless its clock was set."""
        if self.standing:
            return self.standing
        monotonic = self.monotonic  # on a line of its own: `self.monotonic()` looks in the class first, which is slower
        estimate = floor(monotonic() * _MICROS + self._low_base)  # floor() of a float takes half as long as int()
        if estimate > self._last:
            self._last = estimate
            return estimate
        return self._last

    def stand(self) -> None:
        """Let `now` be this moment until `go_on`: for work that is done together, without waiting in between."""
        self.standing = self.now()

    def go_on(self) -> None:
        self.standing = 0

    def latest(self) -> int:
        """Not behind the database, and not before `now`. Never less than before, unless its clock was set."""
        monotonic = self.monotonic
        estimate = monotonic() * _MICROS + self._high_base
        if estimate > self._last_high:
            self._last_high = estimate
            return floor(estimate)
        return floor(self._last_high)


def _ahead(one: tuple[int, float], other: tuple[int, float]) -> float:
    """By how many seconds the clock of one reading is ahead of that of another."""
    return (one[0] - other[0]) / SECOND - (one[1] - other[1])
