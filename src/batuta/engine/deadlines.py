"""Attempts in flight and time: who takes too long, who is silent for too long, and what is to be noted of the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from batuta.clock import SECOND
from batuta.engine.calls import Call, fatal, timeout
from batuta.engine.dbclock import DatabaseClock
from batuta.engine.heartbeats import Heartbeats
from batuta.engine.pausing import counted_from
from batuta.ids import jitter
from batuta.journal.failures import Failure

_TICK = 1.0


class Deadlines:
    """Looks at what is in flight once a second, and when a limit is due."""

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
        call.deadline = ends_at(call)
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
        now = self._clock.now()
        for call in in_flight:
            if call.deadline is not None and now >= call.deadline:
                self._check(call)
            elif call.deadline is not None and call.deadline - now < _TICK * SECOND:
                self._loop.call_later((call.deadline - now) / SECOND, self._check, call)
            silence = call.pending.options.heartbeat
            if silence is not None and silence >= _TICK and (wait := self._silent_in(call, silence)) < _TICK * SECOND:
                self._loop.call_later(max(wait, 0) / SECOND + 0.001, self._check_beat, call)
            if call.beats is not None and self._beats.write(call):
                continue
            if not call.noted and not call.over and now - call.started_at >= _TICK * SECOND:
                call.noted = True
                call.run.record_attempt(call.row())

    def _check(self, call: Call) -> None:
        if call.over or not call.in_flight or call.deadline is None:
            return
        now = self._clock.now()
        if now < call.deadline:
            self._loop.call_later((call.deadline - now) / SECOND + 0.001, self._check, call)
        else:
            self._overdue(call, too_long(call, now))

    def _check_beat(self, call: Call) -> None:
        silence = call.pending.options.heartbeat
        if call.over or not call.in_flight or silence is None:
            return
        wait = self._silent_in(call, silence)
        if wait <= 0:
            self._overdue(call, timeout(call, "heartbeat", "sent no heartbeat for", silence))
        elif silence < _TICK:  # else the tick looks again: a timer that outlives its attempt would hold the whole run
            self._loop.call_later(wait / SECOND + 0.001, self._check_beat, call)

    def _silent_in(self, call: Call, silence: float) -> int:
        """Microseconds until it has been silent for too long."""
        last = max(call.started_at, call.beats.at if call.beats is not None else 0)
        return last + int(silence * SECOND) - self._clock.now()


def ends_at(call: Call) -> int | None:
    """When the attempt, begun at its `started_at`, is over its time."""
    options = call.pending.options
    ends = []
    if options.timeout is not None:
        ends.append(counted_from(call.run, call.started_at) + int(options.timeout * SECOND))
    if options.total_timeout is not None:
        ends.append(counted_from(call.run, call.pending.issued_at) + int(options.total_timeout * SECOND))
    return min(ends, default=None)


def too_long(call: Call, now: int) -> Failure:
    """What an attempt over its time fails with."""
    options = call.pending.options
    total, since = options.total_timeout, counted_from(call.run, call.pending.issued_at)
    if total is not None and now >= since + total * SECOND:
        return fatal(timeout(call, "total", "took longer than its", total))
    return timeout(call, "attempt", "took longer than its", options.timeout or 0)


def again_in(call: Call, failure: Failure, now: int) -> float | None:
    """Seconds until the next attempt after this failure; None when there is none."""
    options = call.pending.options
    if options.once or not failure.retryable or not failure.kinds.isdisjoint(options.retry.never):
        return None
    delay = options.retry.delay(call.attempt, jitter())
    if delay is not None and options.total_timeout is not None:
        end = counted_from(call.run, call.pending.issued_at) + options.total_timeout * SECOND
        if now + delay * SECOND >= end:
            return None
    return delay
