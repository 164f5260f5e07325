"""Checkpoints, progress and batch info of a running job."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from concurrent.futures import Future
from typing import Any, TypeVar, overload

from batuta.authoring.activity.attempt import BatchInfo, current_attempt
from batuta.errors import WorkerError

T = TypeVar("T")


class _Checkpoint:
    """`await checkpoint(state)` in async code, `checkpoint.sync(state)` in code that runs in a thread or process."""

    def __call__(self, state: Any) -> Awaitable[None]:
        """Save how far this job or activity has come. It is durable when this returns.

        The next attempt, after an error or a crash, reads it with `last_checkpoint()`. It is also a heartbeat:
        checkpoint and `heartbeat(details)` replace each other. None means no state. Raises ActivityCancelled or
        LostAttempt when this attempt no longer counts.
        """
        loop = loop_for("checkpoint(state)", "checkpoint.sync(state)")
        return asyncio.wrap_future(current_attempt("checkpoint()").checkpoint(state), loop=loop)

    def sync(self, state: Any) -> None:
        """The same for code that is not async. It blocks."""
        refuse_on_loop("checkpoint.sync(state)", "await checkpoint(state)")
        current_attempt("checkpoint.sync()").checkpoint(state).result()


checkpoint = _Checkpoint()


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


class _BatchInfo:
    """`await batch_info()` in async code, `batch_info.sync()` in code that runs in a thread."""

    def __call__(self) -> Awaitable[BatchInfo]:
        """Inside the job that `enqueue_many(..., on_done=...)` named: what became of the batch."""
        loop = loop_for("batch_info()", "batch_info.sync()")
        return asyncio.wrap_future(self._ask("batch_info()"), loop=loop)

    def sync(self) -> BatchInfo:
        """The same for code that is not async. It blocks."""
        refuse_on_loop("batch_info.sync()", "await batch_info()")
        return self._ask("batch_info.sync()").result()

    def _ask(self, asked: str) -> Future[BatchInfo]:
        return current_attempt(asked).batch()


batch_info = _BatchInfo()


def loop_for(asked: str, instead: str) -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise WorkerError(f"{asked} was called where there is no event loop to await it: use {instead}") from None


def refuse_on_loop(asked: str, instead: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise WorkerError(f"{asked} would stop everything else in this event loop: use {instead}")
