"""Checkpoints, progress and batch info of a running job."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, TypeVar, overload

from batuta.authoring.activity.attempt import Attempt, AttemptVerb, BatchInfo, current_attempt

T = TypeVar("T")


@AttemptVerb
def checkpoint(attempt: Attempt, state: Any) -> Future[None]:
    """Save how far this job or activity has come. It is durable when this returns.

    The next attempt, after an error or a crash, reads it with `last_checkpoint()`. It is also a heartbeat: checkpoint
    and `heartbeat(details)` replace each other. None means no state. Raises ActivityCancelled or LostAttempt when this
    attempt no longer counts.
    """
    return attempt.checkpoint(state)


@overload
def last_checkpoint() -> Any: ...
@overload
def last_checkpoint(kind: type[T]) -> T | None: ...
@overload
def last_checkpoint(kind: type[T], default: T) -> T: ...
def last_checkpoint(kind: Any = Any, default: Any = None) -> Any:
    """Inside a job or activity: the state of the last `checkpoint`, of this or an earlier attempt; `default` when
    there is none. Raises InvalidInput when it does not fit `kind`."""
    info = current_attempt("last_checkpoint()").info()
    if info.last_details is None:
        return default
    return info.details if kind is Any else info.details_as(kind)


def progress(value: Any) -> None:
    """Inside a job: report progress, as any JSON value. Others read it with `handle.progress()`.

    Cheap: the last value is written about once a second, and at the end. It is also a heartbeat. In an activity of a
    workflow it is only that: the workflow publishes its own values. Raises ActivityCancelled or LostAttempt when this
    attempt no longer counts.
    """
    current_attempt("progress()").progress(value)


@AttemptVerb
def batch_info(attempt: Attempt) -> Future[BatchInfo]:
    """Inside the job that `enqueue_many(..., on_done=...)` named: what became of the batch."""
    return attempt.batch()
