"""Waiting for a short reply without falling asleep.

An event loop that has nothing to do sleeps, and so does its processor. When the reply to a lone commit comes, a third
of a millisecond later, both must be woken, and find little of their code in the processor's caches: that took longer
than all that Python does for a step. So the loop is asked again and again for as long as a quick reply takes.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath

MOST_SKIPPED = 64


def processors(root: Path = Path("/")) -> float:
    """Processors that this process may use: by its affinity, and by the quota of its container."""
    several = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min([several, *_quotas(root)])


def _quotas(root: Path) -> Iterator[float]:
    """Those of the control groups that this process is in, of version 1 or 2, and of the groups around them."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        # In a container a group's files may lie where those of the host's first group would.
        for group in (PurePath(path), *PurePath(path).parents):
            there = root / "sys/fs/cgroup" / controllers / group.relative_to("/")
            told = _read(there / "cpu.max").split()
            told = told or [*_read(there / "cpu.cfs_quota_us").split(), *_read(there / "cpu.cfs_period_us").split()]
            if len(told) == 2 and told[0].isdigit() and told[1].isdigit() and int(told[1]):
                yield int(told[0]) / int(told[1])


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeError):
        return ""


class BusyPoll:
    """Keeps an event loop awake for a reply, for `seconds` at most.

    When the reply takes longer, the next ones are waited for asleep: one, then two, then four, up to 64, until one is
    quick again. A slow disk or a busy machine so costs next to nothing. Nor is anything done where there is only one
    processor: the database needs it.
    """

    def __init__(self, seconds: float, now: Callable[[], float] = time.perf_counter) -> None:
        self._seconds = seconds if processors() >= 2 else 0.0
        self._now = now
        self._until = 0.0
        """Rest at this time; 0: the reply is here."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop that is kept awake."""
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
        """The reply has arrived. Not needed after an error: polling always ends."""
        self._until = 0.0

    def _ask_again(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._until:
            self._loop, self._skipped = None, 0
        elif self._now() < self._until:
            loop.call_soon(self._ask_again, loop)
        else:
            self._loop, self._skip = None, max(1, min(self._skipped * 2, MOST_SKIPPED))
            self._skipped = self._skip
