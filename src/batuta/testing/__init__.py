"""For tests of batuta and of programs built on it: virtual time, doubles, crashes, seeds, recorded journals."""

from __future__ import annotations

from batuta.failpoints import SITES
from batuta.testing.crashes import CrashChangesResult, Sweep, crash_sweep
from batuta.testing.doubles import Double, DoubleCall, UnfitDouble, double
from batuta.testing.environment import Environment
from batuta.testing.events import Happening
from batuta.testing.recorded_journals import assert_replays, record
from batuta.testing.seeds import Interleavings, OrderChangesResult, interleavings
from batuta.testing.virtualtime import Stuck, VirtualClock, VirtualLoop, in_virtual_time, run
from batuta.testing.worker_lives import Point

__all__ = [
    "CrashChangesResult",
    "Double",
    "DoubleCall",
    "Environment",
    "Happening",
    "Interleavings",
    "OrderChangesResult",
    "Point",
    "Stuck",
    "Sweep",
    "UnfitDouble",
    "VirtualClock",
    "VirtualLoop",
    "assert_replays",
    "crash_sweep",
    "double",
    "failpoints",
    "in_virtual_time",
    "interleavings",
    "record",
    "run",
]


def failpoints() -> dict[str, str]:
    """Every site at which a test can kill, stop, delay or fail a process, with the state of the world there."""
    return dict(SITES)
