"""One at a time, for what is passed with every commit."""

from __future__ import annotations

import asyncio
from collections import deque


class Gate:
    """A lock that calls nothing while nobody else wants it: asyncio's passes through three functions of Python.

    Who finds it `taken` waits; whoever comes in sets `taken`, and leaves whatever happens::

        if gate.taken:
            await gate.wait()
        gate.taken = True
        try: ...
        finally: gate.leave()
    """

    __slots__ = ("_row", "taken")

    def __init__(self) -> None:
        self.taken = False
        self._row: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Returns when it is the caller's: it is handed over, so that nobody comes in between."""
        waiter = asyncio.get_running_loop().create_future()
        self._row.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():  # it was handed over already
                self.leave()
            raise

    def leave(self) -> None:
        while self._row:
            waiter = self._row.popleft()
            if not waiter.done():  # else it was cancelled
                waiter.set_result(None)
                return
        self.taken = False
