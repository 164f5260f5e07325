"""Names the code that holds up the worker's event loop."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Callable

from batuta.clock import Clock
from batuta.durations import human_duration
from batuta.engine.activities.threads import ended
from batuta.printable import paragraph

log = logging.getLogger("batuta.watchdog")


class Watchdog:
    """A thread that looks twice a second whether a turn has gone on for too long."""

    def __init__(self, limit: float, current: Callable[[], str | None], clock: Clock) -> None:
        self._limit = limit
        self._clock = clock
        self._current = current
        self._watched = threading.get_ident()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="batuta-watchdog", daemon=True)

    def start(self) -> None:
        self._watched = threading.get_ident()
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    async def stopped(self) -> None:
        """Wait until the thread has ended."""
        if self._thread.ident:
            await ended(self._thread)

    def _watch(self) -> None:
        seen: str | None = None
        since = 0.0
        told = False
        while not self._stopping.wait(min(0.5, self._limit / 4)):
            found = self._current()
            if found is None or found != seen:
                seen, since, told = found, self._clock.monotonic(), False
            elif not told and (held := self._clock.monotonic() - since) >= self._limit:
                told = True
                self._tell(found, held)

    def _tell(self, turn: str, held: float) -> None:
        frame = sys._current_frames().get(self._watched)
        stack = "".join(traceback.format_stack(frame)[-8:]) if frame else "no stack"
        said = (
            "%s has held up the worker for over %s: code on the event loop must not block; "
            "move it into an activity that is a plain function, which runs in a thread"
        )
        args = (turn, human_duration(round(held, 1)))
        lines = f"  {paragraph(stack)}"  # of the other thread: logging could only give that of this one
        log.handle(log.makeRecord(log.name, logging.ERROR, __file__, 0, said, args, None, "_tell", sinfo=lines))
