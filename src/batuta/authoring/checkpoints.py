"""What a job may say and ask while it runs: where it has come to, how far it is, and what became of its batch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from concurrent.futures import Future
from typing import Any, TypeVar, overload

from msgspec import Struct

from batuta.authoring.attempt import current_attempt
from batuta.errors import WorkerError

T = TypeVar("T")


class _Checkpoint:
    """`await checkpoint(state)` in async code, `checkpoint.sync(state)` in code that runs in a thread or process."""

    def __call__(self, state: Any) -> Awaitable[None]:
        """Save where this job or activity has come to. It is durable when this returns: the next attempt, after an
        error or a crash, finds it with `last_checkpoint()`.

        It is also a heartbeat, and takes the place of what `heartbeat(details)` said before, and the other way round.
        None is no state. Raises ActivityCancelled or LostAttempt when nobody waits for this attempt any more.
        """
        loop = _loop_for("checkpoint(state)", "checkpoint.sync(state)")
        return asyncio.wrap_future(current_attempt("checkpoint()").checkpoint(state), loop=loop)

    def sync(self, state: Any) -> None:
        """The same for code that is not async. It blocks."""
        _refuse_on_loop("checkpoint.sync(state)", "await checkpoint(state)")
        current_attempt("checkpoint.sync()").checkpoint(state).result()


checkpoint = _Checkpoint()


@overload
def last_checkpoint() -> Any: ...
@overload
def last_checkpoint(kind: type[T]) -> T | None: ...
@overload
def last_checkpoint(kind: type[T], default: T) -> T: ...
def last_checkpoint(kind: Any = Any, default: Any = None) -> Any:
    """Inside a job or activity: the state that the last `checkpoint` saved, of this attempt or one before; `default`
    when there is none. Raises InvalidInput when it does not fit `kind`."""
    info = current_attempt("last_checkpoint()").info()
    if info.last_details is None:
        return default
    return info.details if kind is Any else info.details_as(kind)


def progress(value: Any) -> None:
    """Inside a job: say how far it is, in any form that JSON has. Cheap: what is said last is written about once a
    second, and at the end. Others read it with `handle.progress()`.

    Also a heartbeat. In an activity of a workflow it is only that: a workflow says itself what it publishes.
    Raises ActivityCancelled or LostAttempt when nobody waits for this attempt any more.
    """
    current_attempt("progress()").progress(value)


class BatchInfo(Struct, kw_only=True):
    """What became of a batch."""

    total: int
    """Jobs that the batch added. One that was there already, by its unique key or id, is not counted."""
    completed: int
    failed: int
    cancelled: int
    timed_out: int
    terminated: int
    not_completed: list[str]
    """The ids of those that did not complete, 1,000 of them at most."""

    @property
    def ok(self) -> bool:
        """Whether all of them completed."""
        return self.completed == self.total


class _BatchInfo:
    """`await batch_info()` in async code, `batch_info.sync()` in code that runs in a thread."""

    def __call__(self) -> Awaitable[BatchInfo]:
        """Inside the job that `enqueue_many(..., on_done=...)` named: what became of the batch."""
        loop = _loop_for("batch_info()", "batch_info.sync()")
        return asyncio.wrap_future(self._ask("batch_info()"), loop=loop)

    def sync(self) -> BatchInfo:
        """The same for code that is not async. It blocks."""
        _refuse_on_loop("batch_info.sync()", "await batch_info()")
        return self._ask("batch_info.sync()").result()

    def _ask(self, asked: str) -> Future[BatchInfo]:
        return current_attempt(asked).batch()


batch_info = _BatchInfo()


def _loop_for(asked: str, instead: str) -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise WorkerError(f"{asked} was called where there is no event loop to await it: use {instead}") from None


def _refuse_on_loop(asked: str, instead: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise WorkerError(f"{asked} would stop everything else in this event loop: use {instead}")
