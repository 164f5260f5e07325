"""The database's time, between two heartbeats."""

from __future__ import annotations

from batuta.clock import SECOND, Clock


class DatabaseClock:
    """Carries the last known database time forward by the monotonic clock. A lower bound: never ahead of the database.

    So a timer that is due here is due there, whatever this machine's own wall clock says.
    """

    def __init__(self, clock: Clock) -> None:
        self.monotonic = clock.monotonic
        self._base = 0
        self._at = 0.0
        self._last = 0

    def learn(self, now: int, received_at: float) -> None:
        """The database said `now`; the answer was here at monotonic time `received_at`."""
        self._base, self._at = now, received_at

    def now(self) -> int:
        """Never less than before."""
        estimate = self._base + int((self.monotonic() - self._at) * SECOND)
        if estimate > self._last:
            self._last = estimate
        return self._last
