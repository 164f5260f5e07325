"""Wakes live runs when their earliest timer is due by the database's clock."""

from __future__ import annotations

import asyncio
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from batuta.clock import SECOND
from batuta.engine.dbclock import DatabaseClock

if TYPE_CHECKING:
    from batuta.engine.live import LiveRun

_SLICE = 128
_EARLY = 0.001


class Timers:
    """One heap for the worker, at most one useful place in it for each run. Nothing is ever woken early."""

    def __init__(self, clock: DatabaseClock) -> None:
        self._clock = clock
        self._heap: list[tuple[int, int, LiveRun]] = []
        self._count = count()
        self._handle: asyncio.TimerHandle | None = None
        self._set_for = 0

    def arm(self, run: LiveRun, when: int) -> None:
        """Wake the run at `when`. An earlier wake that is already set serves, too: the run arms itself again then."""
        if run.armed_at is not None and run.armed_at <= when:
            return
        run.armed_at = when
        heappush(self._heap, (when, next(self._count), run))
        if self._handle is None or when < self._set_for:
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
            self._set_for = self._heap[0][0]
            wait = max(0.0, (self._set_for - self._clock.now()) / SECOND)
            self._handle = asyncio.get_running_loop().call_later(wait, self._fire)

    def _fire(self) -> None:
        self._handle = None
        now = self._clock.now()
        for _ in range(_SLICE):
            if not self._heap or self._heap[0][0] > now:
                break
            when, _number, run = heappop(self._heap)
            if run.armed_at == when:
                run.armed_at = None
                run.wake(now)
        if self._heap and self._handle is None:
            self._set_for = self._heap[0][0]
            wait = (self._set_for - now) / SECOND
            # The loop's clock and ours may differ by its resolution: a little late, never early.
            delay = 0.0 if wait <= 0 else wait + _EARLY
            self._handle = asyncio.get_running_loop().call_later(delay, self._fire)
