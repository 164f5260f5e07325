"""How the end of a run reaches those who wait for it in the same process."""

from __future__ import annotations

import asyncio

from msgspec import Struct

from batuta.journal.entries import Command
from batuta.journal.states import RunState


class Completion(Struct, eq=False):
    """A run's end, once known. Kept by handles, so that a result that came first is still there."""

    unknown: bool = True
    """True while the run is open and in this process. When False, `end` is its outcome; if `end` is None, the run left
    this process before its end, so ask the store."""
    end: tuple[RunState, Command | None] | None = None
    _waiters: list[asyncio.Future[None]] = []

    def settle(self, end: tuple[RunState, Command | None]) -> None:
        self.end, self.unknown = end, False
        if self._waiters:
            self.lose()

    def lose(self) -> None:
        """The run has left this process: waiters must ask the store."""
        self.unknown = False
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    def known(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """Done when the end is known. A caller that stops waiting must `give_up`."""
        waiter = loop.create_future()
        self._waiters.append(waiter)
        return waiter

    def give_up(self, waiter: asyncio.Future[None]) -> None:
        if waiter in self._waiters:
            self._waiters.remove(waiter)
