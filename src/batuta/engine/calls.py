"""A call of an activity, as it is known while it is under way."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from batuta.authoring.context import ActivityInfo
from batuta.authoring.definitions import Activity
from batuta.authoring.failures import to_failure
from batuta.engine.machine import PendingActivity
from batuta.errors import ActivityTimeout
from batuta.journal.failures import Failure
from batuta.journal.records import Attempt

if TYPE_CHECKING:
    from batuta.engine.live import LiveRun

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Call:
    """One activity call of one run, over all its attempts."""

    __slots__ = (
        "activity",
        "attempt",
        "begun",
        "deadline",
        "next_at",
        "noted",
        "over",
        "pending",
        "run",
        "seq",
        "started_at",
        "task",
        "waking",
    )

    def __init__(
        self, run: LiveRun, seq: int, pending: PendingActivity, activity: Activity[..., Any], attempt: int
    ) -> None:
        self.run, self.seq, self.pending, self.activity, self.attempt = run, seq, pending, activity, attempt
        self.task: asyncio.Future[Any] | None = None
        self.waking: asyncio.TimerHandle | None = None
        self.started_at = 0
        self.deadline: int | None = None
        self.next_at: int | None = None
        """When the next attempt is due, while the call waits for it."""
        self.begun = attempt > 1
        """An attempt has been begun before, here or elsewhere: it did start in time."""
        self.over = False
        """Its answer is given, or nobody wants it."""
        self.noted = False
        """Its start is in the attempts table."""

    def info(self) -> ActivityInfo:
        run = self.run
        return ActivityInfo(
            key=run.machine.key(self.seq, self.pending.name),
            name=self.pending.name,
            attempt=self.attempt,
            run_id=run.run_id,
            id=run.identity.id,
            seq=self.seq,
            started_at=_EPOCH + timedelta(microseconds=self.started_at),
        )

    def row(self, **more: Any) -> Attempt:
        return Attempt(seq=self.seq, number=self.attempt, started_at=self.started_at, **more)


def timeout(call: Call, what: str, seconds: float) -> Failure:
    """The failure of a call that took too long."""
    return to_failure(ActivityTimeout(f"activity {call.pending.name!r} {what} {seconds:g} s (attempt {call.attempt})"))


def fatal(failure: Failure) -> Failure:
    """After which no other attempt is made."""
    failure.retryable = False
    return failure
