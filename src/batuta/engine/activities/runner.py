"""The tasks in which async activities run."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from typing import Any, cast

from batuta.authoring.activity.attempt import current_activity
from batuta.authoring.definitions import ExecutionMode
from batuta.engine.activities.call import Call
from batuta.engine.machine.async_generators import are_hooked
from batuta.engine.worker.lease import Lease
from batuta.serde import UNFIT

_set_current = current_activity.set  # found once: it is called for every attempt
_LOOP = ExecutionMode.LOOP


class _Seat:
    """The call that a task is at."""

    __slots__ = ("call",)
    call: Call


class Runner:
    """Calls async activities, one after the other in one task for as long as none of them waits.

    An activity that waits has the task to itself from then on, and another task goes on with the rest. So each has a
    real task, a context that no other has changed, and its cancellation; but those that never wait cost no task each.
    """

    def __init__(
        self,
        lease: Lease,
        permission: Callable[[], Coroutine[Any, Any, None]],
        done: Callable[[Call, Any], None],
        failed: Callable[[Call, BaseException], None],
    ) -> None:
        self._lease, self._permission, self._done, self._failed = lease, permission, done, failed
        self.begun: deque[Call] = deque()
        """Attempts that a task will begin."""
        self._seats: dict[_Seat, None] = {}
        self.standing_by = False
        """A task will look for calls in the next round of the loop."""
        self._passes = 0
        """Rises when anything but the task that runs now has looked for calls, or brought one."""
        self.choose: Callable[[Call], Callable[..., Any]] | None = None
        """Middleware may choose what to call, and prepare its context. Once the run knows how to, it is not asked."""
        self.alike = False
        """It prepares the same variables for every call: what it has set for one need not be kept from the next."""

    def choose_with(self, choose: Callable[[Call], Callable[..., Any]] | None, alike: bool) -> None:
        self.choose, self.alike = choose, alike

    def open(self, loop: asyncio.AbstractEventLoop, context: Context) -> None:
        self._loop, self._context = loop, context

    def calls(self) -> list[Call]:
        """Whatever is in flight here."""
        return [*(seat.call for seat in self._seats), *self.begun]

    def stand_by(self) -> None:
        """Have a task come to what has begun, if none is about to; its end goes to `done` or `failed`."""
        self._passes += 1
        self.standing_by = True
        _task(self._loop, self._run(), self._context.copy())

    async def _run(self) -> None:
        self.standing_by = False
        self._passes = passes = self._passes + 1
        seat = _Seat()
        self._seats[seat] = None
        begun, task = self.begun, cast("asyncio.Task[None]", asyncio.current_task())
        done, choose, alike = self._done, self.choose, self.alike
        lease, monotonic = self._lease, self._lease.monotonic
        while begun:
            call = seat.call = begun.popleft()
            if begun and not self.standing_by:
                self.standing_by = True
                asyncio.Task(self._run(), loop=self._loop, name=_NAME, context=self._context.copy())
            call.task = task
            activity = call.activity
            _set_current(call)
            if choose is None:
                fn, before = activity.fn, copy_context()
            elif not alike:
                before, fn = copy_context(), choose(call)
            elif (prepare := call.run.prepare) is None or activity.execution_mode is not _LOOP:
                fn, before = choose(call), copy_context()
            else:
                try:
                    prepare()
                    fn = activity.fn
                except KeyboardInterrupt:
                    raise
                except BaseException:  # noqa: BLE001 - it is called again there, and told if it fails again
                    fn = choose(call)
                before = copy_context()
            try:
                if call.over:
                    raise asyncio.CancelledError
                codec, data = activity.codec, call.pending.data
                args = kwargs = None
                if codec.plain is not None:
                    try:
                        args = codec.plain.decode(data)
                    except KeyboardInterrupt:
                        raise
                    except UNFIT:
                        args = None
                if args is None:  # it takes others, or they do not fit: then that is told
                    args, kwargs = codec.decode_args(data)
                # `may_act`, asked where the effect begins: this process may have stood still until now.
                if monotonic() >= lease.valid_until:
                    await self._permission()
                if call.passes is not None:
                    call.check_gates()
                value = await (fn(*args, **kwargs) if kwargs else fn(*args))
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - whatever an activity raises is its answer
                self._failed(call, error)
            else:
                done(call, value)
            if self._passes != passes or _differ(copy_context(), before) or task.cancelling():
                break  # it has waited, has changed its context, or was asked to end
        del self._seats[seat]


def _differ(context: Context, before: Context) -> bool:
    """Whether a variable has another value. Values that are not the same object are compared by their own `__eq__`."""
    try:
        return context != before
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - as of numpy arrays, or whatever somebody has put into a variable
        return True


_NAME = "batuta-activity"

if sys.version_info >= (3, 12):

    def _task(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None], context: Context) -> asyncio.Task[None]:
        """Begun at once: an activity that never waits costs no round of the loop. But not between turns, where its
        async generators would be taken for those of a run."""
        return asyncio.Task(work, loop=loop, name=_NAME, context=context, eager_start=not are_hooked())
else:

    def _task(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None], context: Context) -> asyncio.Task[None]:
        return asyncio.Task(work, loop=loop, name=_NAME, context=context)
