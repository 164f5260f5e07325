"""Python's cyclic garbage collector, told that a worker holds many objects and makes no cycles."""

from __future__ import annotations

import gc
from threading import Lock
from typing import ClassVar

_DEFAULTS = (700, 2000)
"""What Python sets for the youngest generation, before and since 3.13. Another number is somebody's choice."""

_CONTAINERS = 50_000
_OF_A_RUN = 100
"""Containers that a run in memory consists of at most, as a rule, with whoever has started it and waits for it."""
_FEW = 250
"""Runs that are not worth a call."""


def tune_collector() -> None:
    """Look for garbage less often, and never again among what is loaded now. Once in a process.

    Ten thousand runs in memory are a million objects; with the default of 700 the collector walks over them again and
    again and takes half of a worker's time, to find nothing: an ended run leaves no cycles behind.
    """
    if gc.get_threshold()[0] in _DEFAULTS:
        gc.freeze()
        Room.begin()


class Room:
    """For the runs of one worker: that there are more of them is no reason to look for garbage.

    Without it a thousand runs that begin at once are all looked through, which is a twentieth of what they cost.
    """

    _lock: ClassVar[Lock] = Lock()
    """Workers may have threads of their own."""
    _set: ClassVar[int | None] = None
    """The threshold that was set here last. Another one is somebody's choice, and stays."""
    _all: ClassVar[int] = 0
    """Runs that all workers of this process have room for."""

    def __init__(self) -> None:
        self.runs = 0

    @classmethod
    def begin(cls) -> None:
        """What the threshold is now is nobody's choice."""
        with cls._lock:
            cls._set = gc.get_threshold()[0]
            cls._apply()

    def fit(self, runs: int) -> None:
        """Make room for so many."""
        runs = 0 if runs < _FEW else runs
        if runs != self.runs:
            with Room._lock:
                Room._all += runs - self.runs
                self.runs = runs
                Room._apply()

    @classmethod
    def _apply(cls) -> None:
        first, second, third = gc.get_threshold()
        if first == cls._set:
            cls._set = _CONTAINERS + cls._all * _OF_A_RUN
            gc.set_threshold(cls._set, second, third)
