"""Timers with names, which other code of the run can cancel."""

from __future__ import annotations

import asyncio
import contextvars

from batuta.clock import SECOND
from batuta.engine.machine.core import MachineCore
from batuta.engine.machine.loop import RunTimerHandle, Waiter
from batuta.errors import DuplicateTimer


class NamedTimers:
    """The named timers of one run. Made when its code first sets one."""

    __slots__ = ("_machine", "_set", "_used")

    def __init__(self, machine: MachineCore) -> None:
        self._machine = machine
        self._set: dict[str, tuple[Waiter, RunTimerHandle]] = {}
        self._used: set[str] = set()

    async def wait(self, timer_id: str, fire_at: int) -> bool:
        """True when it fired, False when it was cancelled by name."""
        machine = self._machine
        if timer_id in self._used:
            raise DuplicateTimer(timer_id)
        future: Waiter = asyncio.Future(loop=machine.loop)
        delay = (fire_at - machine.at) / SECOND
        due = machine.seconds() + delay
        handle = RunTimerHandle((_fire, future), contextvars.copy_context(), host=machine, due=due)
        handle.seq = machine.set_timer(handle, delay, timer_id)
        self._used.add(timer_id)
        self._set[timer_id] = (future, handle)
        try:
            return bool(await future)
        finally:
            del self._set[timer_id]
            handle.cancel()

    def cancel(self, timer_id: str) -> bool:
        """False when no such timer waits."""
        found = self._set.get(timer_id)
        if found is None or found[0].done():
            return False
        found[1].cancel()
        found[0].set_result(False)
        return True


def _fire(future: Waiter) -> None:
    if not future.done():
        future.set_result(True)
