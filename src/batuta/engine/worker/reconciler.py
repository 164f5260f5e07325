"""Compares the runs that the store says are this worker's with the runs in memory."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from batuta.authoring.definitions import Workflow
from batuta.engine.worker.database_clock import DatabaseClock
from batuta.engine.worker.inbox import RunsHost
from batuta.engine.worker.poller import Poller
from batuta.ids import RunId
from batuta.journal.records import Pulse, StoredRun, WorkerInfo
from batuta.journal.states import RunState

log = logging.getLogger("batuta.engine")


class AdoptingHost(RunsHost, Protocol):
    """The same, and how others come into its memory."""

    info: WorkerInfo
    clock: DatabaseClock
    workflows: Mapping[str, Workflow[..., Any]]

    def adopt_all(self, stored_runs: Sequence[StoredRun]) -> None: ...


class Reconciler:
    """Runs that are in one of the two places alone. A difference counts when it is there at two heartbeats."""

    def __init__(self, session: AdoptingHost, poller: Poller) -> None:
        self._session, self._poller = session, poller
        self._strange: dict[RunId, tuple[int, int]] = {}
        self._missing: dict[RunId, tuple[int, float]] = {}
        self._reading: set[RunId] = set()
        """One read at a time: the journal of a second could be older than the run in memory."""

    def reconcile(self, pulse: Pulse, sent: float) -> None:
        """Take in runs that are ours, and drop runs that no longer are. `sent`: when the pulse was asked for.

        For a run that we do not have, the claims that were under way when it was first seen must have ended in between:
        it may be in the answer of one of them. A run that the store does not call ours must be missing in a pulse
        that was asked for after we looked: after a pause of the event loop several come at once, all of them older than
        what has begun since. With another epoch it is missing, too: the store has forgotten our claim, or has another.
        """
        runs, poller = self._session.runs, self._poller
        strange: dict[RunId, tuple[int, int]] = {}
        for run_id, epoch in pulse.owned.items():
            if run_id.int in runs:
                continue
            first_seen = self._strange.get(run_id)
            if first_seen is None or first_seen[0] != epoch:
                first_seen = (epoch, poller.claims_begun)
            elif first_seen[1] <= poller.claims_ended and run_id not in self._reading:
                self._reading.add(run_id)
                self._session.spawn(self._adopt(run_id, epoch))
            strange[run_id] = first_seen
        self._strange = strange
        self._drop_lost(pulse, sent)

    def _drop_lost(self, pulse: Pulse, sent: float) -> None:
        now = self._session.clock.monotonic()
        missing: dict[RunId, tuple[int, float]] = {}
        for run in list(self._session.runs.values()):
            run_id = run.run_id
            if pulse.owned.get(run_id) == run.epoch or not (run.durable >= 0 or run.early) or run.leaving:
                continue
            noticed = self._missing.get(run_id)
            if noticed is None or noticed[0] != run.epoch:
                noticed = (run.epoch, now)
            elif noticed[1] < sent:
                log.warning("run %s is not ours any more", run_id)
                run.drop()
                continue
            missing[run_id] = noticed
        self._missing = missing

    async def _adopt(self, run_id: RunId, epoch: int) -> None:
        """A claim or start whose reply was lost: the store says that we own it."""
        session = self._session
        try:
            stored = await session.store.load(run_id)
        finally:
            self._reading.discard(run_id)
        ours = stored.run.owner == session.info.worker_id and stored.run.epoch == epoch
        known = (stored.run.code or stored.run.name) in session.workflows
        if ours and stored.run.state is RunState.RUNNING and run_id.int not in session.runs and known:
            log.info("run %s was claimed by a call whose answer was lost", run_id)
            session.call_soon(lambda: session.adopt_all([stored]))
