"""Awaitables in the order in which they complete: the same order in every replay."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from batuta.authoring.call_options import check_wait
from batuta.durations import Duration

T = TypeVar("T")


def as_completed(awaitables: Iterable[Awaitable[T]], *, timeout: Duration | None = None) -> Completed[T]:
    """Like asyncio.as_completed, whose order on coroutines is by chance.

        for next_one in as_completed([reserve(sku) for sku in skus]):
            hold = await next_one

        async for done in as_completed(tasks):    # gives the futures themselves, done
            hold = done.result()

    TimeoutError after `timeout` seconds. What is not complete then goes on.
    """
    return Completed(awaitables, None if timeout is None else check_wait("timeout", timeout))


class Completed(Generic[T]):
    """What `as_completed` gives: to be iterated once, either way."""

    def __init__(self, awaitables: Iterable[Awaitable[T]], timeout: float | None) -> None:
        loop = asyncio.get_running_loop()
        self._left = 0
        self._done: deque[asyncio.Future[T] | None] = deque()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._todo: dict[int, asyncio.Future[T]] = {}
        for awaitable in awaitables:
            future: asyncio.Future[T] = asyncio.ensure_future(awaitable)
            if id(future) not in self._todo:
                self._todo[id(future)] = future
        self._left = len(self._todo)
        for future in self._todo.values():
            future.add_done_callback(self._note)
        self._timer = loop.call_later(timeout, self._give_up) if timeout is not None and self._todo else None

    def _note(self, future: asyncio.Future[T]) -> None:
        if self._todo.pop(id(future), None) is None:
            return
        self._put(future)
        if not self._todo and self._timer is not None:
            self._timer.cancel()

    def _put(self, one: asyncio.Future[T] | None) -> None:
        self._done.append(one)
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _give_up(self) -> None:
        for future in self._todo.values():
            future.remove_done_callback(self._note)
        unfinished = len(self._todo)
        self._todo.clear()
        for _ in range(unfinished):
            self._put(None)

    async def _next(self) -> asyncio.Future[T]:
        while not self._done:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter
        found = self._done.popleft()
        if found is None:
            raise TimeoutError
        return found

    async def _next_result(self) -> T:
        return (await self._next()).result()

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self._left):
            yield self._next_result()

    async def __aiter__(self) -> AsyncIterator[asyncio.Future[T]]:
        for _ in range(self._left):
            yield await self._next()
