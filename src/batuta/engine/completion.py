"""How the end of a run reaches those who wait for it in the same process."""

from __future__ import annotations

import asyncio

from batuta.ids import RunId
from batuta.journal.entries import Command
from batuta.journal.states import RunState


class Completion:
    """A run's end, once known. Kept by handles, so that a result that came first is still there."""

    __slots__ = ("_waiters", "lost", "outcome", "run_id", "state")

    def __init__(self, run_id: RunId) -> None:
        self.run_id = run_id
        self.state: RunState | None = None
        self.outcome: Command | None = None
        self.lost = False
        """The run left this process before its end: ask the store."""
        self._waiters: list[asyncio.Future[None]] = []

    def settle(self, state: RunState, outcome: Command | None) -> None:
        self.state, self.outcome = state, outcome
        self._wake()

    def lose(self) -> None:
        self.lost = True
        self._wake()

    async def wait(self) -> bool:
        """Wait for the end here. False when it must be looked for in the store."""
        if self.state is None and not self.lost:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
        return self.state is not None

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()
