"""Python's cyclic garbage collector, told that runs in memory are no garbage."""

from __future__ import annotations

import gc
import os
from threading import Lock
from typing import ClassVar

_DEFAULTS = (700, 2000)
"""Python's defaults for the youngest generation, before and since 3.13. Another number is the program's choice."""

_CONTAINERS = 10_000
_OF_A_RUN = 100
"""Containers that a run in memory has at most, as a rule, together with the caller that started it and waits."""
_FEW = 100
"""Fewer runs are not worth it: with those the threshold is as it was."""


def tune_collector() -> None:
    """Let runs in memory raise the threshold from here on, if it has Python's default.

    Ten thousand runs in memory are a million objects; with the default of 700 the collector walks over them again and
    again and takes a third of a worker's time, to find nothing: an ended run leaves no cycles behind. The process may
    be the user's own: nothing is frozen, and while there are few runs nothing is changed.
    """
    if gc.get_threshold()[0] in _DEFAULTS:
        GcHeadroom.begin()


class GcHeadroom:
    """For the runs of one worker: that there are more of them is no reason to look for garbage."""

    _lock: ClassVar[Lock] = Lock()
    """Workers may have threads of their own."""
    _at_rest: ClassVar[int] = 0
    """The threshold before."""
    _set: ClassVar[int | None] = None
    """The threshold that was set here last. Another number is the program's choice, and stays."""
    _all: ClassVar[int] = 0
    """Runs that all workers of this process have room for."""

    def __init__(self) -> None:
        self.runs = 0

    @classmethod
    def begin(cls) -> None:
        """Nothing else has set the threshold."""
        with cls._lock:
            cls._at_rest = cls._set = gc.get_threshold()[0]
            cls._apply()

    def fit(self, runs: int) -> None:
        """Make room for so many."""
        runs = 0 if runs < _FEW else runs
        if runs != self.runs:
            with GcHeadroom._lock:
                GcHeadroom._all += runs - self.runs
                self.runs = runs
                GcHeadroom._apply()

    @classmethod
    def _apply(cls) -> None:
        first, second, third = gc.get_threshold()
        if first == cls._set:
            cls._set = _CONTAINERS + cls._all * _OF_A_RUN if cls._all else cls._at_rest
            if cls._set != first:
                gc.set_threshold(cls._set, second, third)


os.register_at_fork(after_in_child=GcHeadroom._lock._at_fork_reinit)  # type: ignore[attr-defined]
