"""Open runs that no live worker moves on: those of dead owners (I12, the slow part), and those that none may take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from batuta.clock import SystemClock
from batuta.durations import human_duration
from batuta.engine.backend.claimability import needs_worker, why_unclaimable
from batuta.engine.backend.follow_chain import find_run
from batuta.ids import RunId
from batuta.journal.records import Run, WorkerView
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.verify.report import Stranded

_KEPT = 1_000
_LOOK = 0.5


class Unattended:
    """Looks at each run when it is read, and once more at the end: it may have been released or taken meanwhile."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._workers: list[WorkerView] = []
        self._live: set[str] = set()
        self._orphans: dict[RunId, Run] = {}
        """Running runs whose owner was not a live worker. That alone is no violation: recovery takes a lease or two,
        and without a live worker it waits for the next one."""
        self._stranded: dict[RunId, Run] = {}
        """Runs that no live worker may take: after a rollback, or with a missing workflow."""

    async def look(self) -> None:
        """Read who is alive."""
        self._workers = await self._store.workers()
        self._live = {worker.worker_id for worker in self._workers if worker.live}

    def see(self, run: Run) -> None:
        """Note the run if it seems to be one of them. A thousand of each are enough."""
        if run.state is RunState.RUNNING and run.owner not in self._live and len(self._orphans) < _KEPT:
            self._orphans[run.run_id] = run
        if len(self._stranded) < _KEPT and self._why_stranded(run):
            self._stranded[run.run_id] = run

    async def settle(self, patience: float, tell: Callable[[Run, str], None]) -> None:
        """Wait until each run of a dead owner was released, or for `patience` seconds; report those that were not."""
        end = SystemClock.monotonic() + patience
        while self._orphans:
            await self.look()
            self._orphans = {run.run_id: run for run in self._orphans.values() if await self._is_stuck(run)}
            if not self._live:
                return
            if SystemClock.monotonic() >= end:
                break
            await asyncio.sleep(_LOOK)
        for run in self._orphans.values():
            tell(
                run,
                f"its owner {run.owner} is dead, and no live worker has released it within {human_duration(patience)}",
            )

    async def stranded(self) -> list[Stranded]:
        """Runs that still no worker may take."""
        await self.look()
        found: list[Stranded] = []
        for run in self._stranded.values():
            now = await find_run(self._store, run.run_id)
            if now is not None and (why := self._why_stranded(now)):
                found.append(Stranded(run.id, run.run_id, why))
        return found

    async def _is_stuck(self, run: Run) -> bool:
        now = await find_run(self._store, run.run_id)
        return now is not None and (now.owner, now.epoch) == (run.owner, run.epoch) and run.owner not in self._live

    def _why_stranded(self, run: Run) -> str:
        return why_unclaimable(run, self._workers) if self._live and needs_worker(run) else ""
