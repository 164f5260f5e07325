"""I12, the slow part: live workers must release the runs of dead owners."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from batuta.clock import Clock, SystemClock
from batuta.durations import human_duration
from batuta.engine.backend.follow_chain import find_run
from batuta.ids import RunId
from batuta.journal.records import Run
from batuta.journal.states import RunState
from batuta.journal.store import Store

_KEPT = 1_000
_LOOK = 0.5


class Orphans:
    """Running runs whose owner was not a live worker when they were seen.

    That alone is no violation: recovery takes a lease or two, and without a live worker it waits for the next one.
    """

    def __init__(self, store: Store, clock: Clock | None = None) -> None:
        self._store, self._clock = store, clock or SystemClock()
        self._live: set[str] = set()
        self._suspects: dict[RunId, Run] = {}

    async def begin(self) -> None:
        self._live = await self._live_workers()

    def see(self, run: Run) -> None:
        """Note the run if its owner seems dead. A thousand of them are enough."""
        if run.state is RunState.RUNNING and run.owner not in self._live and len(self._suspects) < _KEPT:
            self._suspects[run.run_id] = run

    async def settle(self, patience: float, tell: Callable[[Run, str], None]) -> None:
        """Wait until each was released, or for `patience` seconds; report those that were not."""
        end = self._clock.monotonic() + patience
        while self._suspects:
            live = await self._live_workers()
            self._suspects = {run.run_id: run for run in self._suspects.values() if await self._is_stuck(run, live)}
            if not live:
                return
            if self._clock.monotonic() >= end:
                break
            await asyncio.sleep(_LOOK)
        for run in self._suspects.values():
            tell(
                run,
                f"its owner {run.owner} is dead, and no live worker has released it within {human_duration(patience)}",
            )

    async def _live_workers(self) -> set[str]:
        return {worker.worker_id for worker in await self._store.workers() if worker.live}

    async def _is_stuck(self, run: Run, live: set[str]) -> bool:
        now = await find_run(self._store, run.run_id)
        return now is not None and (now.owner, now.epoch) == (run.owner, run.epoch) and run.owner not in live
