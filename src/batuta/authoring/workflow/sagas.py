"""Sagas: steps that are undone, the last one first, when a later step fails."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine
from contextvars import Token
from types import TracebackType
from typing import Any, Self, TypeVar

from batuta.authoring.definitions import Activity, compensation_arguments
from batuta.authoring.workflow.context import Compensations, StepGuard, current_saga, runtime_for
from batuta.authoring.workflow.continue_as_new import ContinueAsNew
from batuta.errors import CompensationFailed, InvalidInput, RunNotCompleted, WorkflowBroken

T = TypeVar("T")

_UNSEEN = (GeneratorExit, KeyboardInterrupt, WorkflowBroken)
"""The run is leaving memory, or is parked: its code does not end here."""


def saga() -> Saga:
    """A block whose steps are undone when it fails: `async with saga() as undo: ...; undo(refund, receipt.id)`.

    When an error or a cancellation leaves the block, the registered compensations are called, the last one first, each
    with its own retry policy, in a run of their own. The error goes on when they are done, with a note of what was
    undone. A compensation that fails for good does not stop the others; it becomes a dead letter. When the run
    times out they are called, too; when it is terminated they are not.
    """
    return Saga()


class Saga:
    """What `saga()` gives: call it to register a compensation."""

    def __init__(self) -> None:
        self._log: Compensations | None = None
        self._outer: Saga | None = None
        self._token: Token[StepGuard | None] | None = None
        self._seqs: list[int] = []
        self._steps: list[asyncio.Future[Any]] = []
        self.undone: list[str] = []
        """Compensations that were called, after the block has failed."""
        self.failed: list[str] = []
        """Compensations that failed for good."""

    async def __aenter__(self) -> Self:
        if self._token is not None:
            raise InvalidInput("this saga has begun already: call saga() again for another one")
        self._log = runtime_for("saga()").compensations()
        outer = current_saga.get()
        self._outer = outer if isinstance(outer, Saga) else None
        self._token = current_saga.set(self)
        return self

    def __call__(self, activity: Activity[..., Any], /, *args: Any, **kwargs: Any) -> None:
        """Have this activity called with these arguments if the saga fails from here on."""
        if not isinstance(activity, Activity):
            raise InvalidInput(f"undo({activity!r}, ...) must be given an activity: decorate it with @activity")
        self._register(activity, args, kwargs, "")

    def _register(self, activity: Activity[..., Any], args: tuple[Any, ...], kwargs: Any, undoes: str) -> None:
        if self._log is None:
            raise InvalidInput(
                f"undo({activity.name}, ...) was called outside its saga: call it within `async with saga() as undo:`"
            )
        self._seqs.append(self._log.register(activity.name, activity.codec, args, kwargs, activity.options, undoes))

    async def step(
        self,
        activity: Activity[..., Any] | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        call: Coroutine[Any, Any, T],
    ) -> T:
        """An activity that is called in the block. A cancellation waits for its answer: else it could happen and not be
        undone. Its own compensation, if it has one, is registered with its result."""
        task = asyncio.ensure_future(self._perform(activity, args, kwargs, call))
        self._steps.append(task)
        try:
            value, cancelled = await _answered(task)
        finally:
            if task.done() and task in self._steps:
                self._steps.remove(task)
            if inspect.getcoroutinestate(call) == inspect.CORO_CREATED:
                call.close()  # the run left memory before the call began
        if cancelled is not None:  # raised where the code waits next, so that it can register what it got
            asyncio.get_running_loop().call_soon(_cancel_again, asyncio.current_task(), cancelled.args)
        return value

    async def _perform(
        self,
        activity: Activity[..., Any] | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        call: Coroutine[Any, Any, T],
    ) -> T:
        value = await call
        if activity is not None and activity.compensate is not None and self._log is not None:
            given = compensation_arguments(activity.name, activity.fn, activity.compensate, args, kwargs, value)
            self._register(activity.compensate, (), given, activity.name)
        return value

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, _UNSEEN):
            return
        if self._token is not None:
            current_saga.reset(self._token)
        cancelled = await self._settle()
        log, self._log = self._log, None
        seqs, self._seqs = self._seqs, []
        misused: InvalidInput | None = None
        if isinstance(error, ContinueAsNew) and seqs:
            misused = InvalidInput("continue_as_new() was called in a saga with compensations: call it after the block")
        failure = misused or error or cancelled
        if log is None or not seqs:
            pass
        elif failure is not None:
            cancelled = await self._undo(log, seqs, failure) or cancelled
        elif self._outer is not None and self._outer._log is not None:
            self._outer._seqs += seqs
        else:
            log.keep(seqs)
        if cancelled is not None and not isinstance(error, asyncio.CancelledError):
            raise cancelled
        if misused is not None:
            raise misused

    async def _settle(self) -> asyncio.CancelledError | None:
        """Wait for steps of the block that are still under way, as those that `gather` leaves behind when one fails."""
        cancelled: asyncio.CancelledError | None = None
        while self._steps:
            task = self._steps[0]
            try:
                _, came = await _answered(task)
            except asyncio.CancelledError as error:
                came = error
            except Exception:  # noqa: BLE001 - another error has left the block, or its own task is told
                came = None
            cancelled = came or cancelled
            if task in self._steps:
                self._steps.remove(task)
        return cancelled

    async def _undo(self, log: Compensations, seqs: list[int], error: BaseException) -> asyncio.CancelledError | None:
        """Call the compensations, and tell the error what became of them. Returns a cancellation that came then."""
        cancelled: asyncio.CancelledError | None = None
        try:
            self.undone, cancelled = await _answered(asyncio.ensure_future(log.run(seqs)))
        except RunNotCompleted as not_done:
            why = not_done.__cause__
            known = why if isinstance(why, CompensationFailed) else CompensationFailed("", [], ["all compensations"])
            self.undone, self.failed = known.undone, known.failed
            error.add_note(f"not undone: {', '.join(self.failed)} (run {not_done.id!r} tells why)")
        if self.undone:
            error.add_note(f"undone: {', '.join(self.undone)}")
        return cancelled


def _cancel_again(task: asyncio.Task[Any] | None, why: tuple[Any, ...]) -> None:
    """Unless the cancel was taken back, as a timeout does when its block has ended."""
    if task is not None and task.cancelling():
        task.uncancel()
        task.cancel(*why)


async def _answered(task: asyncio.Future[T]) -> tuple[T, asyncio.CancelledError | None]:
    """Wait for the answer, also when this task is cancelled meanwhile: then with the cancellation. An error is raised,
    unless a cancellation came before it."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error
        except Exception:  # noqa: BLE001, S110 - raised below
            pass
    if cancelled is not None and task.exception() is not None:
        raise cancelled
    return task.result(), cancelled
