"""Those in this process who wait for the end of runs that other processes, or a later claim, may bring to it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from batuta.errors import StoreError, WorkerError
from batuta.ids import RunId
from batuta.journal.entries import Command
from batuta.journal.records import Hint
from batuta.journal.states import RunState
from batuta.journal.store import Store

log = logging.getLogger("batuta.engine")

_LOOK_AGAIN = 5.0

Known = tuple[RunState, Command | None]


class Waiters:
    """One listener for all of them: hints say which runs to look for; now and then all are looked for."""

    def __init__(self, store: Store, runs_here: Callable[[RunId], bool]) -> None:
        self._store = store
        self._runs_here = runs_here
        self._waiting: dict[RunId, list[asyncio.Future[Known | None]]] = {}
        self._dirty: set[RunId] = set()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def closed(self, run_id: RunId) -> Known | None:
        """Returns when the run is closed; with its end, when it came to it in this process."""
        future: asyncio.Future[Known | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(run_id, []).append(future)
        self._dirty.add(run_id)
        self._wake.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._look_forever(), name="batuta-waiters")
        try:
            return await future
        finally:
            others = self._waiting.get(run_id)
            if others is not None and future in others:
                others.remove(future)
                if not others:
                    del self._waiting[run_id]

    def settle(self, run_id: RunId, known: Known | None) -> None:
        """The run is closed."""
        for future in self._waiting.pop(run_id, ()):
            if not future.done():
                future.set_result(known)

    def close(self) -> None:
        """The client is closed: whoever still waits is told."""
        if self._task is not None:
            self._task.cancel()
        for futures in self._waiting.values():
            for future in futures:
                if not future.done():
                    future.set_exception(WorkerError("the client was closed while a result was waited for"))
        self._waiting.clear()

    def look_for(self, run_id: RunId) -> None:
        """The run has left this process, by whatever way: it may be closed."""
        if run_id in self._waiting:
            self._dirty.add(run_id)
            self._wake.set()

    async def _look_forever(self) -> None:
        """Until nobody waits any more."""
        unlisten = self._store.listen(self._on_hint)
        try:
            while self._waiting:
                self._wake.clear()
                await self._look()
                if self._waiting and not self._dirty:
                    await self._pause()
        finally:
            unlisten()
            self._task = None

    async def _look(self) -> None:
        looking = [run_id for run_id in self._dirty if run_id in self._waiting]
        self._dirty.clear()
        try:
            for run_id in await self._store.closed_among(looking) if looking else ():
                self.settle(run_id, None)
        except StoreError as error:
            log.warning("could not look for the end of %d runs: %s", len(looking), error)
        except Exception:
            log.exception("could not look for the end of %d runs", len(looking))

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(None if self._store.poll_seconds is None else _LOOK_AGAIN):
                await self._wake.wait()
        except TimeoutError:
            self._dirty.update(self._waiting)

    def _on_hint(self, hint: Hint) -> None:
        named = self._waiting if hint.closed is None else [one for one in hint.closed if one in self._waiting]
        # What runs here tells us itself, with its result.
        self._dirty.update(run_id for run_id in named if not self._runs_here(run_id))
        if self._dirty:
            self._wake.set()
