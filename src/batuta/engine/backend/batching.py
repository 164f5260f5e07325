"""Writes that come together share a transaction: starts that no worker of this process takes at once, and others."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from batuta.errors import AlreadyStarted, OutcomeUnknown, StoreError, StoreUnavailable, WrongWorkflow
from batuta.journal.records import NewRun, Run, StartOutcome
from batuta.journal.store import Store

T = TypeVar("T")
R = TypeVar("R")

_ROWS = 500
_BYTES = 4 * 1024 * 1024
_AGAIN = (0.05, 0.2, 0.5)


async def until_known(write: Callable[[], Awaitable[T]]) -> T:
    """Write again, the same, when it is not known whether that worked. Raises OutcomeUnknown in the end."""
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


class Batches(Generic[T, R]):
    """One transaction at a time, with all that wait for it. No timers: the first to come is written at once."""

    name: str
    """Of the task that writes."""
    rows = _ROWS
    """Of a transaction."""
    drops_cancelled = True
    """Whether an item is not written whose caller was cancelled before its transaction."""
    splits = False
    """Whether items are written one by one when their transaction has failed: one of them may be to blame."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[T, asyncio.Future[R]]] = deque()
        self._task: asyncio.Task[None] | None = None

    def size(self, item: T) -> tuple[int, int]:
        """Its rows and bytes."""
        raise NotImplementedError

    async def write(self, items: Sequence[T]) -> Sequence[R | Exception]:
        """Write them in one transaction: the answer or error of each."""
        raise NotImplementedError

    def add(self, item: T) -> asyncio.Future[R]:
        """The future has its answer once it is durable."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        self._waiting.append((item, future))
        if self._task is None:
            # Not in the context, nor ended with the task, of the one that adds it: it writes for others, too.
            self._task = asyncio.Task(self._write_all(), loop=loop, name=self.name, context=contextvars.Context())
        return future

    def refuse(self, item: T, future: asyncio.Future[R], error: Exception) -> None:
        """It cannot be written."""
        if not future.done():
            future.set_exception(error)

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                if batch := self._next_batch():
                    await self._write_batch(batch)
        finally:
            self._task = None

    def _next_batch(self) -> list[tuple[T, asyncio.Future[R]]]:
        batch: list[tuple[T, asyncio.Future[R]]] = []
        rows = size = 0
        while self._waiting and rows < self.rows and size < _BYTES:
            item, future = self._waiting.popleft()
            if not (self.drops_cancelled and future.done()):  # else its caller was cancelled, and nothing was written
                batch.append((item, future))
                more_rows, more_bytes = self.size(item)
                rows += more_rows
                size += more_bytes
        return batch

    async def _write_batch(self, batch: Sequence[tuple[T, asyncio.Future[R]]]) -> None:
        try:
            answers = await self.write([item for item, _ in batch])
        except Exception as error:  # noqa: BLE001 - no caller may wait for ever
            if self.splits and len(batch) > 1:
                await self._write_each(batch)
            else:
                _fail(batch, error)
        except BaseException as error:
            _fail([*batch, *self._waiting], error)
            self._waiting.clear()
            raise
        else:
            for (item, future), answer in zip(batch, answers, strict=True):
                if isinstance(answer, Exception):
                    self.refuse(item, future, answer)
                elif not future.done():
                    future.set_result(answer)

    async def _write_each(self, batch: Sequence[tuple[T, asyncio.Future[R]]]) -> None:
        """Each caller has its answer when its own item is written: the next ones may take long."""
        try:
            for one in batch:
                if not one[1].done():
                    await self._write_batch([one])
        except BaseException as error:
            _fail(batch, error)
            raise


def _fail(batch: Sequence[tuple[T, asyncio.Future[R]]], error: BaseException) -> None:
    for _, future in batch:
        if not future.done():
            future.set_exception(_another(error) if isinstance(error, StoreError) else error)


def _another(error: StoreError) -> StoreError:
    """One error per caller: a raised exception collects the tracebacks of all that raise it."""
    twin = type(error)(*error.args)
    twin.__cause__ = error
    return twin


class Starter(Batches[NewRun, tuple[Run, bool]]):
    """Starts runs: gives the run of the id, durable, and whether it is new, or AlreadyStarted, WrongWorkflow and
    StoreErrors."""

    name = "batuta-starter"

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store
        self._alone: set[asyncio.Task[None]] = set()

    def size(self, item: NewRun) -> tuple[int, int]:
        return 1, len(item.start)

    async def write(self, items: Sequence[NewRun]) -> Sequence[StartOutcome]:
        return await self._store.start_many(items)

    def refuse(self, item: NewRun, future: asyncio.Future[tuple[Run, bool]], error: Exception) -> None:
        if isinstance(error, StoreUnavailable):  # locked: the others do not wait with it
            task = asyncio.create_task(self._write_alone(item, future), name="batuta-starter-locked")
            self._alone.add(task)
            task.add_done_callback(self._alone.discard)
        else:
            super().refuse(item, future, error)

    async def _write_alone(self, new: NewRun, future: asyncio.Future[tuple[Run, bool]]) -> None:
        try:
            outcome = await self._store.start(new)
        except BaseException as error:
            _fail([(new, future)], error)
            if not isinstance(error, Exception):
                raise
        else:
            if not future.done():
                future.set_result(outcome)
