"""What the store says is this worker's, compared with what it has in memory."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from batuta.engine.poller import Poller
from batuta.ids import RunId
from batuta.journal.records import Pulse
from batuta.journal.states import RunState

if TYPE_CHECKING:
    from batuta.engine.session import Session

log = logging.getLogger("batuta.engine")


class Strays:
    """Runs that are in one of the two places alone. A difference counts when it is there at two heartbeats."""

    def __init__(self, session: Session, poller: Poller) -> None:
        self._session, self._poller = session, poller
        self._strange: dict[RunId, tuple[int, int]] = {}
        self._missing: dict[RunId, int] = {}
        self._reading: set[RunId] = set()
        """One read at a time: the tape of a second could be older than what the run has done since."""

    def reconcile(self, pulse: Pulse) -> None:
        """Take in what is ours, and drop what is not any more.

        For a run that we do not have, the claims that were under way when it was first seen must have ended in between:
        it may be in the answer of one of them.
        """
        runs, poller = self._session.runs, self._poller
        strange: dict[RunId, tuple[int, int]] = {}
        for run_id, epoch in pulse.owned.items():
            if run_id in runs:
                continue
            first_seen = self._strange.get(run_id)
            if first_seen is None or first_seen[0] != epoch:
                first_seen = (epoch, poller.claims_begun)
            elif first_seen[1] <= poller.claims_ended and run_id not in self._reading:
                self._reading.add(run_id)
                self._session.spawn(self._adopt(run_id, epoch))
            strange[run_id] = first_seen
        missing = {
            run_id: run.epoch
            for run_id, run in runs.items()
            if run_id not in pulse.owned and (run.durable >= 0 or run.early) and not run.leaving
        }
        for run_id, epoch in missing.items():
            if self._missing.get(run_id) == epoch:
                log.warning("run %s is not ours any more", run_id)
                runs[run_id].drop()
        self._strange, self._missing = strange, missing

    async def _adopt(self, run_id: RunId, epoch: int) -> None:
        """A claim or start whose reply was lost: the store says that we own it."""
        session = self._session
        try:
            tape = await session.store.load(run_id)
        finally:
            self._reading.discard(run_id)
        ours = tape.run.owner == session.info.worker_id and tape.run.epoch == epoch
        known = (tape.run.code or tape.run.name) in session.workflows
        if ours and tape.run.state is RunState.RUNNING and run_id not in session.runs and known:
            log.info("run %s was claimed by a call whose answer was lost", run_id)
            session.call_soon(lambda: session.adopt_all([tape]))
