"""Timers that have a name."""

from __future__ import annotations

from datetime import datetime

from batuta.authoring.workflow.context import noticed, runtime_for
from batuta.clock import as_micros
from batuta.errors import InvalidInput
from batuta.names import check_name


@noticed
async def wait_for_timer(timer_id: str, fire_at: datetime) -> bool:
    """Wait until `fire_at`: True when it is reached, False when `cancel_timer(timer_id)` was called before.

    An id can be used once in a run; DuplicateTimer otherwise. A time that is past has been reached.
    """
    check_name(timer_id, "timer id")
    given: object = fire_at
    if not isinstance(given, datetime) or given.tzinfo is None:
        raise InvalidInput(f"fire_at={fire_at!r} must be a datetime with a time zone")
    return await runtime_for("wait_for_timer()").named_timers().wait(timer_id, as_micros(fire_at))


def cancel_timer(timer_id: str) -> bool:
    """End the wait for a timer of this run, which gives False there. Returns whether one was waiting."""
    return runtime_for("cancel_timer()").named_timers().cancel(timer_id)
