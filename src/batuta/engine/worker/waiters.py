"""Callers in this process that wait for the end of a run or its answer to an update, and how these reach them."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

from msgspec import Struct

from batuta.engine.worker.background import woken
from batuta.engine.worker.outage import Outage
from batuta.errors import WorkerError
from batuta.ids import RunId
from batuta.journal.entries import Command
from batuta.journal.records import Hint, Output
from batuta.journal.states import RunState
from batuta.journal.store import Store

_LOOK_AGAIN = 5.0

Known = tuple[RunState, Command | None]
Asked = tuple[RunId, str]
"""An answer, by chain and message id."""

K = TypeVar("K")
V = TypeVar("V")


class Completion(Struct, eq=False):
    """A run's end, once known. Kept by handles, so that a result that came first is still there."""

    unknown: bool = True
    """True while the run is open and in this process. When False, `end` is its outcome; if `end` is None, the run left
    this process before its end, so ask the store."""
    end: Known | None = None
    _waiters: list[asyncio.Future[None]] = []

    def settle(self, end: Known) -> None:
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


class WaitRegistry(ABC, Generic[K, V]):
    """One listener for all who wait: hints say what to look for; now and then all is looked for."""

    what = ""

    def __init__(self, store: Store, outage: Outage) -> None:
        self._store, self.outage = store, outage
        self._patience = None if store.poll_seconds is None else _LOOK_AGAIN
        self.waiting: dict[K, list[asyncio.Future[V]]] = {}
        """Callers that wait, by what they wait for."""
        self._dirty: set[K] = set()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def wait(self, key: K) -> V:
        """Returns when it is there."""
        future = self.expect(key)
        try:
            self._dirty.add(key)
            self._wake.set()
            return await future
        finally:
            self.give_up(key, future)

    def expect(self, key: K) -> asyncio.Future[V]:
        """A future for something that is certainly not there yet. Call `give_up` in any case."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[V] = loop.create_future()
        self.waiting.setdefault(key, []).append(future)
        if self._task is None:
            self._task = loop.create_task(self._look_forever(self._store.listen(self._on_hint)), name="batuta-waiters")
        return future

    def give_up(self, key: K, future: asyncio.Future[V]) -> None:
        others = self.waiting.get(key)
        if others is not None and future in others:
            others.remove(future)
            if not others:
                del self.waiting[key]
                self._wake.set()

    def settle(self, key: K, value: V) -> None:
        """It is there."""
        if not self.waiting:
            return
        for future in self.waiting.pop(key, ()):
            if not future.done():
                future.set_result(value)

    def close(self) -> None:
        """The client is closed: tell those who still wait."""
        if self._task is not None:
            self._task.cancel()
        for futures in self.waiting.values():
            for future in futures:
                if not future.done():
                    future.set_exception(WorkerError(f"the client was closed while {self.what} was waited for"))
        self.waiting.clear()

    def look_for(self, key: K) -> None:
        """It may be there."""
        if self.waiting and key in self.waiting:
            self._dirty.add(key)
            self._wake.set()

    @abstractmethod
    async def _find(self, keys: list[K]) -> Mapping[K, V]:
        """The answers that have come."""

    @abstractmethod
    def _hinted(self, hint: Hint) -> Iterable[K]:
        """The awaited keys that the hint may be about."""

    async def _look_forever(self, unlisten: Callable[[], None]) -> None:
        """Until the last waiter has gone."""
        try:
            while self.waiting:
                self._wake.clear()
                await self._look()
                if self.waiting and not self._dirty and not await woken(self._wake, self._patience):
                    self._dirty.update(self.waiting)
        finally:
            unlisten()
            self._task = None
            self.outage.ceased(f"looking for {self.what}")

    async def _look(self) -> None:
        looking = [key for key in self._dirty if key in self.waiting]
        self._dirty.clear()
        try:
            for key, value in (await self._find(looking)).items() if looking else ():
                self.settle(key, value)
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait are looked for again
            self.outage.failed(f"looking for {self.what}", error)
        else:
            self.outage.worked(f"looking for {self.what}")

    def _on_hint(self, hint: Hint) -> None:
        self._dirty.update(self._hinted(hint))
        if self._dirty:
            self._wake.set()


class Answers(WaitRegistry[Asked, Output]):
    """Callers that wait for answers to updates."""

    what = "an answer"

    async def _find(self, keys: list[Asked]) -> Mapping[Asked, Output]:
        found = await self._store.answers(keys)
        return {key: output for key, output in zip(keys, found, strict=True) if output is not None}

    def _hinted(self, hint: Hint) -> Iterable[Asked]:
        if hint.answered is None:
            return list(self.waiting)
        return [key for key in self.waiting if key[0] in hint.answered] if hint.answered else ()


class Waiters(WaitRegistry[RunId, Known | None]):
    """Callers that wait for the ends of runs, and for their answers. An end is known when it came in this process."""

    what = "a result"

    def __init__(self, store: Store, runs_here: Callable[[RunId], bool], outage: Outage) -> None:
        super().__init__(store, outage)
        self._runs_here = runs_here
        self.answers = Answers(store, outage)

    def close(self) -> None:
        super().close()
        self.answers.close()

    async def _find(self, keys: list[RunId]) -> Mapping[RunId, Known | None]:
        return dict.fromkeys(await self._store.closed_among(keys))

    def _hinted(self, hint: Hint) -> Iterable[RunId]:
        named = self.waiting if hint.closed is None else [one for one in hint.closed if one in self.waiting]
        # What runs here tells us itself, with its result.
        return [run_id for run_id in named if not self._runs_here(run_id)]
