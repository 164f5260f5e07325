"""Wakes live runs when their earliest timer is due by the database's clock."""

from __future__ import annotations

import asyncio
import logging
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Protocol

from msgspec import Struct

from batuta.clock import SECOND
from batuta.engine.machine.identity import RunIdentity
from batuta.engine.worker.database_clock import DatabaseClock

log = logging.getLogger("batuta.engine")

_SLICE = 128
_EARLY = 0.001
_MANY = 1_000


class Sleeper(Protocol):
    """A run that is to be woken."""

    identity: RunIdentity

    def ring(self, now: int) -> None: ...
    def drop(self) -> None: ...


class Alarm(Struct, order=True):
    """A place in the heap. Without its run it is only waiting to be thrown away."""

    when: int
    number: int
    """No other alarm has it, so that runs are never compared."""
    run: Sleeper | None


class Timers:
    """One heap for the worker, at most one alarm for each run. Nothing is ever woken early."""

    def __init__(self, clock: DatabaseClock) -> None:
        self._clock = clock
        self._heap: list[Alarm] = []
        self._dead = 0
        self._count = count()
        self._handle: asyncio.TimerHandle | None = None
        self._set_for = 0

    def arm(self, run: Sleeper, when: int, alarm: Alarm | None) -> Alarm:
        """Wake the run at that database time or soon after, never before. The alarm that it has serves, too, if it is
        earlier: the run arms itself again then. Returns the one that it has from now on."""
        if alarm is not None:
            if alarm.when <= when:
                return alarm
            self.disarm(alarm)
        alarm = Alarm(when, next(self._count), run)
        heappush(self._heap, alarm)
        if self._handle is None or when < self._set_for:
            self._schedule()
        return alarm

    def disarm(self, alarm: Alarm) -> None:
        """The run needs no waking any more, and must not be kept alive for it."""
        alarm.run = None
        self._dead += 1
        if self._dead > _MANY and self._dead > len(self._heap) // 2:
            self._heap = [alarm for alarm in self._heap if alarm.run is not None]
            heapify(self._heap)
            self._dead = 0

    def clock_set(self, step: int) -> None:
        """The database's clock was set forward by so much, or back: no wait becomes shorter or longer by that."""
        for alarm in self._heap:
            alarm.when += step
        self.look()

    def look(self) -> None:
        """Ring due alarms. The loop's clock, which calls us otherwise, stood still while the machine slept."""
        if self._heap:
            self._schedule()

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._heap.clear()

    def _schedule(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._heap:
            self._set_for = self._heap[0].when
            wait = (self._set_for - self._clock.now()) / SECOND
            # The loop's clock and ours may differ by its resolution: a little late, never early.
            delay = 0.0 if wait <= 0 else wait + _EARLY
            self._handle = asyncio.get_running_loop().call_later(delay, self._fire)

    def _fire(self) -> None:
        self._handle = None
        now = self._clock.now()
        try:
            for _ in range(_SLICE):
                if not self._heap or self._heap[0].when > now:
                    break
                self._ring(heappop(self._heap), now)
        finally:
            if self._handle is None:
                self._schedule()

    def _ring(self, alarm: Alarm, now: int) -> None:
        run = alarm.run
        if run is None:
            self._dead -= 1
            return
        try:
            run.ring(now)
        except Exception:
            log.exception("run %s is dropped and will be read again", run.identity.id)
            run.drop()
