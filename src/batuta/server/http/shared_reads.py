"""Reads that several callers want at once are done once.

An event tells every open page that something changed, and all of them ask for the same list. A caller that asks during
a read waits for the next read, which begins after that: no answer is older than its question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any


class SharedReads:
    """At most one read of a key is under way, and one more waits for it."""

    def __init__(self) -> None:
        self._reading: dict[Hashable, asyncio.Task[Any]] = {}
        self._next: dict[Hashable, asyncio.Task[Any]] = {}

    async def read(self, key: Hashable, work: Callable[[], Awaitable[Any]]) -> Any:
        """The result or error of the work: ours, or that of another caller of the same read."""
        task = self._next.get(key)
        if task is None:
            task = self._next[key] = asyncio.create_task(self._work(key, work, self._reading.get(key)))
            task.add_done_callback(_look)
        return await asyncio.shield(task)  # a caller who leaves takes nothing away from the others

    async def _work(self, key: Hashable, work: Callable[[], Awaitable[Any]], before: asyncio.Task[Any] | None) -> Any:
        task = self._next[key]
        try:
            if before is not None:
                await asyncio.wait([before])
        finally:
            del self._next[key]
        self._reading[key] = task
        try:
            return await work()
        finally:
            if self._reading[key] is task:
                del self._reading[key]

    async def close(self) -> None:
        """End what is under way: no caller is left."""
        tasks = [*self._next.values(), *self._reading.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _look(task: asyncio.Task[Any]) -> None:
    """Every caller may have left: an error that no one takes is no fault."""
    if not task.cancelled():
        task.exception()
