"""Open runs that no live worker may take: after a rollback, or with a missing workflow."""

from __future__ import annotations

from batuta.engine.backend.claimability import needs_worker, why_unclaimable
from batuta.engine.backend.follow_chain import find_run
from batuta.ids import RunId
from batuta.journal.records import Run, WorkerView
from batuta.journal.store import Store
from batuta.verify.report import Stranded

_KEPT = 1_000


class Claimability:
    """Looks at each run when it is read, and once more at the end: it may have been taken meanwhile."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._workers: list[WorkerView] = []
        self._seen: dict[RunId, Run] = {}

    async def begin(self) -> None:
        self._workers = await self._store.workers()

    def see(self, run: Run) -> None:
        if len(self._seen) < _KEPT and self._why(run):
            self._seen[run.run_id] = run

    async def settle(self) -> list[Stranded]:
        """Runs that still no worker may take."""
        self._workers = await self._store.workers()
        found: list[Stranded] = []
        for run in self._seen.values():
            now = await find_run(self._store, run.run_id)
            if now is not None and (why := self._why(now)):
                found.append(Stranded(run.id, run.run_id, why))
        return found

    def _why(self, run: Run) -> str:
        alive = any(worker.live for worker in self._workers)
        return why_unclaimable(run, self._workers) if alive and needs_worker(run) else ""
