"""Enforces attempt and heartbeat timeouts, and writes the starts of long attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from batuta.clock import SECOND
from batuta.engine.activities.call import Call
from batuta.engine.activities.heartbeats import Heartbeats
from batuta.engine.worker.database_clock import DatabaseClock
from batuta.journal.failures import Failure

_TICK = 1.0


class Deadlines:
    """Looks at attempts in flight once a second, and when a limit is due."""

    def __init__(
        self,
        clock: DatabaseClock,
        in_flight: Callable[[], Sequence[Call]],
        beats: Heartbeats,
        overdue: Callable[[Call, Failure], None],
    ) -> None:
        self._clock, self._in_flight, self._beats, self._overdue = clock, in_flight, beats, overdue
        self._loop: asyncio.AbstractEventLoop
        self.ticking: asyncio.TimerHandle | None = None

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def close(self) -> None:
        if self.ticking is not None:
            self.ticking.cancel()

    def watch(self, call: Call, now: int) -> None:
        """An attempt with a limit begins."""
        silence = call.pending.options.heartbeat
        if silence is not None and silence < _TICK:
            self._loop.call_later(silence, self._check_beat, call)
        call.deadline = call.ends_at()
        if call.deadline is None:
            return
        wait = (call.deadline - now) / SECOND
        if wait < _TICK:  # the tick is too coarse for it
            self._loop.call_later(max(wait, 0.0), self._check, call)

    def begin(self) -> None:
        """Something is in flight."""
        self.ticking = self._loop.call_later(_TICK, self._tick)

    def _tick(self) -> None:
        """Once a second while anything is in flight: timeouts, and a note of what takes long or has news."""
        in_flight = self._in_flight()
        self.ticking = self._loop.call_later(_TICK, self._tick) if in_flight else None
        moment = self._clock.now()
        for call in in_flight:
            now = moment + call.run.ahead
            if call.deadline is not None and now >= call.deadline:
                self._check(call)
            elif call.deadline is not None and call.deadline - now < _TICK * SECOND:
                self._loop.call_later((call.deadline - now) / SECOND, self._check, call)
            silence = call.pending.options.heartbeat
            if silence is not None and silence >= _TICK and (wait := self._silent_in(call, silence)) < _TICK * SECOND:
                self._loop.call_later(max(wait, 0) / SECOND + 0.001, self._check_beat, call)
            if call.beats is not None:
                self._beats.tell(call)
                if self._beats.write(call):
                    continue
            if not call.noted and not call.over and now - call.started_at >= _TICK * SECOND:
                call.noted = True
                call.run.record_attempt(call.row())

    def _check(self, call: Call) -> None:
        if call.over or not call.in_flight or call.deadline is None:
            return
        now = call.run.now()
        if now < call.deadline:
            self._loop.call_later((call.deadline - now) / SECOND + 0.001, self._check, call)
        else:
            self._overdue(call, call.too_long(now))

    def _check_beat(self, call: Call) -> None:
        silence = call.pending.options.heartbeat
        if call.over or not call.in_flight or silence is None:
            return
        wait = self._silent_in(call, silence)
        if wait <= 0:
            self._overdue(call, call.silent(silence))
        elif silence < _TICK:  # else the tick looks again: a timer that outlives its attempt would hold the whole run
            self._loop.call_later(wait / SECOND + 0.001, self._check_beat, call)

    def _silent_in(self, call: Call, silence: float) -> int:
        """Microseconds until it has been silent for too long."""
        last = max(call.started_at, call.beats.at if call.beats is not None else 0)
        return last + int(silence * SECOND) - call.run.now()
