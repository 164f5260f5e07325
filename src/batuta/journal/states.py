"""The states of a run and the moves between them."""

from __future__ import annotations

from enum import StrEnum


class RunState(StrEnum):
    """The state of a run. Every run is in exactly one of them."""

    PENDING = "pending"
    """Accepted, not begun: its first turn has not run."""
    RUNNING = "running"
    """Owned by a live worker."""
    WAITING = "waiting"
    """Begun, without an owner: it waits for a time, a message or a worker."""
    PAUSED = "paused"
    """An operator holds it."""
    COMPLETED = "completed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    TERMINATED = "terminated"
    CONTINUED = "continued"
    """Closed; another run of the chain goes on under the same id."""
    NEEDS_CODE = "needs_code"
    """Parked: today's code does not replay its journal. A worker with other code may take it."""
    POISONED = "poisoned"
    """Parked: its workers died again and again without progress."""


CLOSED = frozenset(
    {
        RunState.COMPLETED,
        RunState.FAILED,
        RunState.TIMED_OUT,
        RunState.CANCELLED,
        RunState.TERMINATED,
        RunState.CONTINUED,
    }
)
"""Ended for good: nothing is ever written to such a run again."""

PARKED = frozenset({RunState.NEEDS_CODE, RunState.POISONED})
"""Stopped visibly with a reason; a person or a deploy moves it on."""

OPEN = frozenset(RunState) - CLOSED

CLAIMABLE = frozenset({RunState.PENDING, RunState.WAITING})
"""States in which a worker may claim a run once it is due."""
