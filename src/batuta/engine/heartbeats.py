"""Heartbeats of attempts: taken in whatever thread, written now and then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from batuta.engine.calls import LEASE_OVER, Beats, Call
from batuta.engine.dbclock import DatabaseClock
from batuta.serde import encode


class Heartbeats:
    """All of one worker's."""

    def __init__(self, clock: DatabaseClock, may_act: Callable[[], bool], limit: int) -> None:
        self._clock, self._may_act, self._limit = clock, may_act, limit

    def take(self, call: Call, details: Any) -> None:
        """One came, from the attempt's own code. Raises LostAttempt when nobody waits for the attempt."""
        if call.over:
            call.complain()
        if not self._may_act():
            call.lost = LEASE_OVER  # not `over`: if the lease is renewed, the run is still ours
            call.complain()
        text = None if details is None else encode(details, "the details of a heartbeat", self._limit).decode()
        self.note(call, text)

    def note(self, call: Call, details: str | None) -> None:
        """The attempt is alive. `details` are JSON."""
        beats = call.beats = call.beats or Beats()
        beats.at = self._clock.now()
        if details is not None:
            beats.details, beats.unwritten = details, True

    def write(self, call: Call) -> bool:
        """Have the last details written with the next batch, if they are not. Whether there was anything."""
        beats = call.beats
        if beats is None or not beats.unwritten or call.over:
            return False
        beats.unwritten = False
        call.noted = True
        call.run.record_attempt(call.row())
        return True
