"""What tests of batuta, and of programs built on it, need: virtual time, doubles, servers, conformance suites."""

from __future__ import annotations

from batuta.failpoints import SITES
from batuta.testing.doubles import double
from batuta.testing.environment import Environment
from batuta.testing.virtualtime import Stuck, VirtualClock, VirtualLoop, in_virtual_time, run

__all__ = ["Environment", "Stuck", "VirtualClock", "VirtualLoop", "double", "failpoints", "in_virtual_time", "run"]


def failpoints() -> dict[str, str]:
    """Every site at which a test can kill, stop, delay or fail a process, with the state of the world there."""
    return dict(SITES)
