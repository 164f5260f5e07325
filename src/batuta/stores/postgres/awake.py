"""Waiting for a short reply without falling asleep.

An event loop that has nothing to do sleeps, and so does its processor. When the reply to a lone commit comes, a third
of a millisecond later, both must be woken, and find little of their code in the processor's caches: that took longer
than all that Python does for a step. So the loop is asked again and again for as long as a quick reply takes.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

MOST_SKIPPED = 64


def processors() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Awake:
    """Keeps an event loop awake for a reply, for `seconds` at most.

    When the reply takes longer, the next ones are waited for asleep: one, then two, then four, up to 64, until one is
    quick again. A slow disk or a busy machine so costs next to nothing. Nor is anything done where there is only one
    processor: the database needs it.
    """

    def __init__(self, seconds: float, now: Callable[[], float] = time.perf_counter) -> None:
        self._seconds = seconds if processors() > 1 else 0.0
        self._now = now
        self._until = 0.0
        """Rest at this time; 0: the reply is here."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """The one that is kept awake."""
        self._skip = self._skipped = 0

    @property
    def is_awake(self) -> bool:
        return self._loop is not None

    def stay(self) -> None:
        """A reply is waited for from now on."""
        if self._skip:
            self._skip -= 1
        elif self._seconds:
            self._until = self._now() + self._seconds
            if self._loop is None:
                self._loop = asyncio.get_running_loop()
                self._loop.call_soon(self._ask_again, self._loop)

    def rest(self) -> None:
        """It is here. Not needed after an error: nobody stays awake for ever."""
        self._until = 0.0

    def _ask_again(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._until:
            self._loop, self._skipped = None, 0
        elif self._now() < self._until:
            loop.call_soon(self._ask_again, loop)
        else:
            self._loop, self._skip = None, max(1, min(self._skipped * 2, MOST_SKIPPED))
            self._skipped = self._skip
