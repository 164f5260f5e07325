"""Conditions that workflow code waits for: looked at whenever its turn has come to rest."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any

from batuta.engine.machine.core import MachineCore
from batuta.engine.machine.loop import MOST_CALLBACKS, Waiter
from batuta.errors import Forbidden, Spins

_WHAT = "the condition of wait_until()"


class _Waiting:
    """Code that waits. Its condition is looked at in its own context: contextvars are those of its task."""

    __slots__ = ("condition", "context", "future")

    def __init__(self, condition: Callable[[], Any], future: Waiter) -> None:
        self.condition, self.future, self.context = condition, future, contextvars.copy_context()


class Conditions:
    """The conditions of one run. Made when its code first waits for one.

    A look issues no command and reads nothing from the journal, and there is one in each turn, at the same place in
    every replay: so they need no entry.
    """

    def __init__(self, machine: MachineCore) -> None:
        self._machine = machine
        self.waiting: list[_Waiting] = []
        """In the order in which they began to wait."""
        self._entry = self._looks = 0

    async def wait(self, condition: Callable[[], Any], timeout: float | None) -> None:
        """Raises TimeoutError, and what the condition raises."""
        machine = self._machine
        machine.check_alive()
        self._count()
        if self._holds(condition, contextvars.copy_context()):
            return
        waiting = _Waiting(condition, asyncio.Future(loop=machine.loop))
        self.waiting.append(waiting)
        try:
            async with asyncio.timeout(timeout):
                await waiting.future
        finally:
            if waiting in self.waiting:
                self.waiting.remove(waiting)

    def settle(self, is_over: Callable[[], bool]) -> None:
        """Wake those whose condition holds, one at a time and each at once: when it goes on, its condition holds."""
        while not is_over():
            woken = next((one for one in self.waiting if not one.future.done() and self._is_answered(one)), None)
            if woken is None:
                return
            self.waiting.remove(woken)
            self._machine.loop.run_until_idle()

    def _is_answered(self, one: _Waiting) -> bool:
        try:
            if not self._holds(one.condition, one.context):
                return False
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - it is the waiting code's own
            one.future.set_exception(error)
        else:
            one.future.set_result(None)
        return True

    def _holds(self, condition: Callable[[], Any], context: contextvars.Context) -> bool:
        machine = self._machine
        if machine.loop.broken is not None:
            raise machine.loop.broken
        try:
            return bool(machine.only_looking(_WHAT, condition, context.copy()))
        except Forbidden as error:
            machine.loop.breaks(error)
            raise

    def _count(self) -> None:
        """A loop around a condition that holds never waits, so that nothing else would end its turn."""
        if self._entry != self._machine.entries:
            self._entry, self._looks = self._machine.entries, 0
        self._looks += 1
        if self._looks > MOST_CALLBACKS:
            raise self._machine.loop.breaks(
                Spins(
                    f"the workflow called wait_until() {MOST_CALLBACKS:,} times in one turn, with conditions that "
                    f"held: change in the loop what the condition looks at"
                )
            )
