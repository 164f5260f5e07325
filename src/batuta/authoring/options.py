"""How an activity is to be called."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, structs

from batuta.authoring.retry import Retry
from batuta.errors import InvalidInput


class ActivityOptions(Struct, frozen=True, kw_only=True):
    """Times are seconds. None is no limit."""

    retry: Retry = Retry()
    timeout: float | None = None
    """For one attempt, from its start."""
    start_timeout: float | None = None
    """From the call until the first attempt begins."""
    total_timeout: float | None = None
    """For all attempts together, with the waits between them."""
    once: bool = False
    """Make the start durable first, and never start it again: raises Interrupted when its worker died."""

    def __post_init__(self) -> None:
        for name in ("timeout", "start_timeout", "total_timeout"):
            seconds = getattr(self, name)
            if seconds is not None and not seconds > 0:
                raise InvalidInput(f"{name}={seconds!r} must be more than 0 seconds; leave it out for no limit")
        if not isinstance(self.retry, Retry):
            raise InvalidInput(f"retry={self.retry!r} must be a Retry(...)")

    def merged(self, changes: dict[str, Any]) -> ActivityOptions:
        """These options with some replaced."""
        unknown = changes.keys() - set(self.__struct_fields__)
        if unknown:
            raise InvalidInput(
                f"unknown activity options {', '.join(sorted(unknown))}; there are: {', '.join(self.__struct_fields__)}"
            )
        return structs.replace(self, **changes)
