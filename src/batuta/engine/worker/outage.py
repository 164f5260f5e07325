"""Failures that repeat: each is logged once when it begins and once when it ends, not once per attempt."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from batuta.durations import human_duration
from batuta.errors import OutcomeUnknown, StoreError, StoreUnavailable, told

log = logging.getLogger("batuta.engine")

BEATING = "sending a heartbeat"


class Outage:
    """What the loops of a client and of its workers cannot do at the moment. The lease reports from its own thread.

    A store that does not answer is one outage, however many loops notice it. It ends when the loops that hold it open
    have succeeded, and the heartbeat where there is none.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._since: float | None = None
        """Since when the store does not answer."""
        self._holding: set[str] = set()
        self._broken: dict[str, tuple[type[Exception], float]] = {}
        """Loops that fail though the store answers: with which class, and since when."""
        self._lock = threading.Lock()

    def failed(self, doing: str, error: Exception, *, holds: bool = True) -> None:
        """`doing`, such as "looking for due runs", failed and is tried again. `holds`: the outage lasts until it
        succeeds. Without it the next heartbeat ends the outage: for loops that try again late, or never."""
        with self._lock:
            if isinstance(error, StoreUnavailable | OutcomeUnknown):
                is_new = self._since is None
                if is_new:
                    self._since = self._monotonic()
                if holds:
                    self._holding.add(doing)
            else:
                before = self._broken.get(doing)
                is_new = before is None or before[0] is not type(error)
                self._broken[doing] = type(error), self._monotonic() if before is None else before[1]
        if is_new and isinstance(error, StoreUnavailable | OutcomeUnknown):
            log.warning("the store does not answer, and is asked again until it does: %s: %s", doing, told(error))
        elif is_new:
            trace = None if isinstance(error, StoreError) else error
            log.error("%s fails, and is tried again: %s", doing, told(error), exc_info=trace)

    def worked(self, doing: str) -> None:
        """It succeeded."""
        if self._since is None and not self._broken:
            return
        with self._lock:
            held, broken, now = doing in self._holding, self._broken.pop(doing, None), self._monotonic()
            self._holding.discard(doing)
            lasted = None
            if self._since is not None and not self._holding and (held or doing == BEATING):
                lasted, self._since = now - self._since, None
        if broken is not None:
            log.warning("%s works again after %s", doing, _shown(now - broken[1]))
        if lasted is not None:
            log.warning("the store answers again after %s", _shown(lasted))

    def ceased(self, doing: str) -> None:
        """It is not tried any more."""
        with self._lock:
            self._holding.discard(doing)
            self._broken.pop(doing, None)
            if not self._holding:
                self._since = None

    def over(self) -> None:
        """A worker has registered: its former loops have ended, and the store answers."""
        self._holding.clear()
        self._broken.clear()
        self.worked(BEATING)

    def forget(self) -> None:
        """The loops that failed have ended."""
        with self._lock:
            self._since = None
            self._holding.clear()
            self._broken.clear()


def _shown(seconds: float) -> str:
    return human_duration(round(seconds, 1) if seconds < 60 else round(seconds))
