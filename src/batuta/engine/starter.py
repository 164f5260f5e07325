"""Writes starts that no worker of this process takes at once. Those that come together share a transaction."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from batuta.errors import OutcomeUnknown, StoreError
from batuta.journal.records import NewRun, Run, StartOutcome
from batuta.journal.store import Store

T = TypeVar("T")

_ROWS = 500
_BYTES = 4 * 1024 * 1024

Batch = list[tuple[NewRun, asyncio.Future[StartOutcome]]]


_AGAIN = (0.05, 0.2, 0.5)


async def until_known(write: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Write runs again, the same ones, when it is not known whether that worked. Raises OutcomeUnknown in the end."""
    for wait in _AGAIN:
        try:
            return await write()
        except OutcomeUnknown:
            await asyncio.sleep(wait)
    return await write()


class Starter:
    """One transaction at a time, with all that wait for it. No timers: the first to come is written at once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: deque[tuple[NewRun, asyncio.Future[StartOutcome]]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def start(self, new: NewRun) -> Run:
        """The run that has the id, durable. Raises AlreadyStarted and StoreErrors."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[StartOutcome] = loop.create_future()
        self._waiting.append((new, future))
        if self._task is None:
            # Not in the starter's context, nor ended with the starter's task: it writes for others, too.
            self._task = asyncio.Task(
                self._write_all(), loop=loop, name="batuta-starter", context=contextvars.Context()
            )
        outcome = await future
        if isinstance(outcome, Exception):
            raise outcome
        return outcome[0]

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                if batch := self._next_batch():
                    await self._write(batch)
        finally:
            self._task = None

    def _next_batch(self) -> Batch:
        batch: Batch = []
        size = 0
        while self._waiting and len(batch) < _ROWS and size < _BYTES:
            new, future = self._waiting.popleft()
            if not future.done():  # else its starter was cancelled, and nothing was written
                batch.append((new, future))
                size += len(new.start)
        return batch

    async def _write(self, batch: Batch) -> None:
        outcomes: Sequence[StartOutcome]
        try:
            outcomes = await self._store.start_many([new for new, _ in batch])
        except StoreError as error:
            outcomes = [_another(error) for _ in batch]
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody may wait for ever, and the next are written
            _fail(batch, error)
            return
        except BaseException as error:
            _fail([*batch, *self._waiting], error)
            self._waiting.clear()
            raise
        for (_, future), outcome in zip(batch, outcomes, strict=True):
            if not future.done():
                future.set_result(outcome)


def _fail(batch: Batch, error: BaseException) -> None:
    for _, future in batch:
        if not future.done():
            future.set_exception(error)


def _another(error: StoreError) -> StoreError:
    """One for each who is told: a raised exception collects the tracebacks of all who raise it."""
    twin = type(error)(*error.args)
    twin.__cause__ = error
    return twin
