"""How an activity is to be called."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, structs

from batuta.authoring.names import check_name
from batuta.authoring.retry import Retry
from batuta.errors import InvalidInput


def check_seconds(name: str, seconds: object) -> None:
    """A time limit as a caller may give it. Raises InvalidInput."""
    if seconds is None:
        return
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < _FOR_EVER:
        raise InvalidInput(f"{name}={seconds!r} must be more than 0 seconds, as a number; leave it out for no limit")


_FOR_EVER = 1e10


class ActivityOptions(Struct, frozen=True, kw_only=True):
    """Times are seconds. None is no limit."""

    retry: Retry = Retry()
    timeout: float | None = None
    """For one attempt, from its start."""
    start_timeout: float | None = None
    """From the call until the first attempt begins."""
    total_timeout: float | None = None
    """For all attempts together, with the waits between them."""
    heartbeat: float | None = None
    """How long an attempt may be silent: one that calls `heartbeat()` too seldom fails, and is tried again."""
    queue: str | None = None
    """Execute it on this queue, by a worker that has it: for what needs other machines. None: where the run is."""
    once: bool = False
    """Make the start durable first, and never start it again: raises Interrupted when its worker died."""

    def __post_init__(self) -> None:
        for name in ("timeout", "start_timeout", "total_timeout", "heartbeat"):
            check_seconds(name, getattr(self, name))
        if self.queue is not None:
            check_name(self.queue, "queue")
        if not isinstance(self.retry, Retry):
            raise InvalidInput(f"retry={self.retry!r} must be a Retry(...)")

    def merged(self, changes: dict[str, Any]) -> ActivityOptions:
        """These options with some replaced."""
        unknown = changes.keys() - set(self.__struct_fields__)
        if unknown:
            raise InvalidInput(
                f"unknown activity options {', '.join(sorted(unknown))}; there are: {', '.join(self.__struct_fields__)}"
            )
        found: ActivityOptions = structs.replace(self, **changes)
        if found.once and "retry" in changes and found.retry.attempts != 1:
            raise InvalidInput(f"once=True has one attempt, and retry={found.retry!r} no use: leave it out")
        return found
