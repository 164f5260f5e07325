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
        self._missing: dict[RunId, tuple[int, float]] = {}
        self._reading: set[RunId] = set()
        """One read at a time: the tape of a second could be older than what the run has done since."""

    def reconcile(self, pulse: Pulse, sent: float) -> None:
        """Take in what is ours, and drop what is not any more. `sent`: when the pulse was asked for (monotonic).

        For a run that we do not have, the claims that were under way when it was first seen must have ended in between:
        it may be in the answer of one of them. One that the store does not have for ours must be missing in a pulse
        that was asked for after we looked: after a pause of the event loop several come at once, all of them older than
        what has begun since.
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
            if run_id in pulse.owned or not (run.durable >= 0 or run.early) or run.leaving:
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
            tape = await session.store.load(run_id)
        finally:
            self._reading.discard(run_id)
        ours = tape.run.owner == session.info.worker_id and tape.run.epoch == epoch
        known = (tape.run.code or tape.run.name) in session.workflows
        if ours and tape.run.state is RunState.RUNNING and run_id.int not in session.runs and known:
            log.info("run %s was claimed by a call whose answer was lost", run_id)
            session.call_soon(lambda: session.adopt_all([tape]))
