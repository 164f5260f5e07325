"""How the end of a run reaches those who wait for it in the same process."""

from __future__ import annotations

import asyncio

from msgspec import Struct

from batuta.journal.entries import Command
from batuta.journal.states import RunState


class Completion(Struct, eq=False):
    """A run's end, once known. Kept by handles, so that a result that came first is still there."""

    unknown: bool = True
    """Whether it is to be waited for here. Else `end` says how it ended; None: ask the store, for the run left this
    process before its end."""
    end: tuple[RunState, Command | None] | None = None
    _waiters: list[asyncio.Future[None]] = []

    def settle(self, end: tuple[RunState, Command | None]) -> None:
        self.end = end
        self.lose()

    def lose(self) -> None:
        """No more will be known here."""
        self.unknown = False
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    def known(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """Done when it is not unknown any more. Whoever does not wait so long must `give_up`."""
        waiter = loop.create_future()
        self._waiters.append(waiter)
        return waiter

    def give_up(self, waiter: asyncio.Future[None]) -> None:
        if waiter in self._waiters:
            self._waiters.remove(waiter)
