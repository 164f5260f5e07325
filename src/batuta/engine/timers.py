"""Wakes live runs when their earliest timer is due by the database's clock."""

from __future__ import annotations

import asyncio
import logging
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from batuta.clock import SECOND
from batuta.engine.dbclock import DatabaseClock

if TYPE_CHECKING:
    from batuta.engine.live import LiveRun

log = logging.getLogger("batuta.engine")

_SLICE = 128
_EARLY = 0.001
_MANY = 1_000


class Alarm:
    """A place in the heap. Without its run it is only waiting to be thrown away."""

    __slots__ = ("number", "run", "when")

    def __init__(self, when: int, number: int, run: LiveRun) -> None:
        self.when, self.number = when, number
        self.run: LiveRun | None = run

    def __lt__(self, other: Alarm) -> bool:
        return (self.when, self.number) < (other.when, other.number)


class Timers:
    """One heap for the worker, at most one alarm for each run. Nothing is ever woken early."""

    def __init__(self, clock: DatabaseClock) -> None:
        self._clock = clock
        self._heap: list[Alarm] = []
        self._dead = 0
        self._count = count()
        self._handle: asyncio.TimerHandle | None = None
        self._set_for = 0

    def arm(self, run: LiveRun, when: int) -> None:
        """Wake the run at `when`. An earlier alarm serves, too: the run arms itself again then."""
        if run.alarm is not None:
            if run.alarm.when <= when:
                return
            self.disarm(run)
        run.alarm = Alarm(when, next(self._count), run)
        heappush(self._heap, run.alarm)
        if self._handle is None or when < self._set_for:
            self._schedule()

    def disarm(self, run: LiveRun) -> None:
        """The run needs no waking any more, and must not be kept alive for it."""
        if run.alarm is not None:
            run.alarm.run = None
            run.alarm = None
            self._dead += 1
            if self._dead > _MANY and self._dead > len(self._heap) // 2:
                self._heap = [alarm for alarm in self._heap if alarm.run is not None]
                heapify(self._heap)
                self._dead = 0

    def look(self) -> None:
        """See what is due by now. The loop's clock, which calls us otherwise, stood still while the machine slept."""
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
        run.alarm = None
        try:
            run.wake(now)
        except Exception:
            log.exception("run %s is dropped and will be read again", run.identity.id)
            run.drop()
