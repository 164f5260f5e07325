"""Tasks of a worker that go on in the background until they are stopped, and how they wait."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod


class BackgroundTask(ABC):
    """Has one task, from `start` to `stop` or `cancel`."""

    task_name: str
    _task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name=self.task_name)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        """Nothing is done afterwards."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @abstractmethod
    async def _run(self) -> None:
        """The task."""


async def woken(event: asyncio.Event, seconds: float | None) -> bool:
    """Whether the event is set within so many seconds (None: however long it takes). It is cleared then."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False
    finally:
        event.clear()
