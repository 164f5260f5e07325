"""Writes starts that no worker of this process takes at once. Starts that come together share a transaction."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from batuta.errors import AlreadyStarted, OutcomeUnknown, StoreError, StoreUnavailable, WrongWorkflow
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


async def start_all(store: Store, runs: Sequence[NewRun], after: NewRun | None = None) -> list[StartOutcome]:
    """`start_many`, which has those wait alone that somebody else holds up."""
    outcomes = await store.start_many(runs, after)
    return [
        await _alone(store, runs[place]) if isinstance(outcome, StoreUnavailable) else outcome
        for place, outcome in enumerate(outcomes)
    ]


async def _alone(store: Store, new: NewRun) -> StartOutcome:
    try:
        return await store.start(new)
    except (AlreadyStarted, StoreError, WrongWorkflow) as error:
        return error


class Starter:
    """One transaction at a time, with all that wait for it. No timers: the first to come is written at once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: deque[tuple[NewRun, asyncio.Future[StartOutcome]]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._alone: set[asyncio.Task[None]] = set()

    async def start(self, new: NewRun) -> tuple[Run, bool]:
        """The run of the id, durable, and whether it is new. Raises AlreadyStarted, WrongWorkflow, StoreErrors."""
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
        return outcome

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
            _tell(batch, [_another(error) for _ in batch])
            return
        except Exception as error:  # noqa: BLE001 - no caller may wait for ever
            _fail(batch, error)
            return
        except BaseException as error:
            _fail([*batch, *self._waiting], error)
            self._waiting.clear()
            raise
        for (new, future), outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, StoreUnavailable):  # locked: the others do not wait with it
                task = asyncio.create_task(self._write_alone(new, future), name="batuta-starter-locked")
                self._alone.add(task)
                task.add_done_callback(self._alone.discard)
            elif not future.done():
                future.set_result(outcome)

    async def _write_alone(self, new: NewRun, future: asyncio.Future[StartOutcome]) -> None:
        try:
            outcome = await _alone(self._store, new)
        except BaseException as error:
            _fail([(new, future)], error)
            raise
        if not future.done():
            future.set_result(outcome)


def _tell(batch: Batch, outcomes: Sequence[StartOutcome]) -> None:
    for (_, future), outcome in zip(batch, outcomes, strict=True):
        if not future.done():
            future.set_result(outcome)


def _fail(batch: Batch, error: BaseException) -> None:
    for _, future in batch:
        if not future.done():
            future.set_exception(error)


def _another(error: StoreError) -> StoreError:
    """One error per caller: a raised exception collects the tracebacks of all that raise it."""
    twin = type(error)(*error.args)
    twin.__cause__ = error
    return twin
