"""How an activity is to be called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs
from msgspec.structs import force_setattr

from batuta.authoring.gates import Gate, check_gates
from batuta.authoring.retry import Retry
from batuta.durations import Duration, fields_in_seconds, in_seconds
from batuta.errors import InvalidInput
from batuta.names import check_name


def check_seconds(name: str, seconds: object) -> None:
    """A time limit as a caller may give it. Raises InvalidInput."""
    if seconds is None:
        return
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < _FOR_EVER:
        raise InvalidInput(
            f"{name}={seconds!r} must be more than 0 seconds, as a number or a timedelta; leave it out for no limit"
        )


def check_wait(name: str, wait: object) -> float:
    """The seconds of a wait as a caller may give it; 0 is no wait. Raises InvalidInput."""
    seconds: object = in_seconds(wait)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        raise InvalidInput(f"{name}={wait!r} must be a number of seconds or a timedelta, not negative")
    return seconds


_FOR_EVER = 1e10
_TIMES = ("timeout", "start_timeout", "total_timeout", "heartbeat")


class ActivityOptions(Struct, frozen=True, kw_only=True):
    """Times are seconds or timedeltas, and are kept as seconds. None means no limit."""

    retry: Retry = Retry()
    timeout: float | None = None
    """For one attempt, from its start."""
    start_timeout: float | None = None
    """From the call until the first attempt begins."""
    total_timeout: float | None = None
    """For all attempts together, with the waits between them."""
    heartbeat: float | None = None
    """How long an attempt may go without `heartbeat()`; after that it fails and is tried again."""
    queue: str | None = None
    """Execute it on this queue, by a worker that has it. None: by the worker of the run."""
    once: bool = False
    """Make the start durable first, and never start it again: raises Interrupted when its worker died."""
    gates: tuple[Any, ...] = ()
    """Asked before each attempt: see `batuta.authoring.gates`. An activity on another queue has those of its definition
    there."""

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            retry: Retry = ...,
            timeout: Duration | None = None,
            start_timeout: Duration | None = None,
            total_timeout: Duration | None = None,
            heartbeat: Duration | None = None,
            queue: str | None = None,
            once: bool = False,
            gates: Sequence[Gate] = (),
        ) -> None: ...

    def __post_init__(self) -> None:
        fields_in_seconds(self, *_TIMES)
        for name in _TIMES:
            check_seconds(name, getattr(self, name))
        if self.queue is not None:
            force_setattr(self, "queue", check_name(self.queue, "queue"))
        if self.gates != ():
            force_setattr(self, "gates", check_gates(self.gates))
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
