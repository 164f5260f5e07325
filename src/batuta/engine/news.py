"""Messages for the runs of a worker: read when something hints at them, and delivered."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from batuta.engine.pausing import news
from batuta.engine.sealed import park_or_drop, park_unless_early
from batuta.ids import RunId
from batuta.journal.records import Message
from batuta.journal.store import SEALED

if TYPE_CHECKING:
    from batuta.engine.live import LiveRun
    from batuta.engine.session import Session


class News:
    """Those of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._told: dict[RunId, list[Message]] = {}
        self._to_read: set[RunId] = set()
        self._reading = False
        self.unhurried: set[RunId] = set()
        """Runs that have more than they can keep up with: they are looked for when they have."""

    # -- from a run of the same worker

    def tell(self, run_id: RunId, message: Message) -> None:
        """A message that is durable, and need not be read."""
        if not self._told:
            self._session.call_soon(self._tell_all)
        self._told.setdefault(run_id, []).append(message)

    def _tell_all(self) -> None:
        told, self._told = self._told, {}
        for run_id, messages in told.items():
            run = self._session.runs.get(run_id.int)
            if run is not None and run.ready and run.durable >= 0:
                self._receive(run, messages)

    # -- from elsewhere

    def look_for(self, run_ids: Sequence[RunId]) -> None:
        """Read what is unread of these runs, soon."""
        if run_ids and not self._session.over:
            for run_id in run_ids:
                run = self._session.runs.get(run_id.int)
                if run is not None:  # one that cannot keep up with what it was given need not be given it again
                    (self.unhurried if not run.early and run.backlog else self._to_read).add(run_id)
            if self._to_read and not self._reading:
                self._reading = True
                self._session.spawn(self._read_all())

    def caught_up(self, run: LiveRun) -> None:
        if run.run_id in self.unhurried:
            self.unhurried.discard(run.run_id)
            self.look_for([run.run_id])

    async def _read_all(self) -> None:
        """One read at a time: what is hinted at meanwhile is read together, next."""
        try:
            while self._to_read:
                run_ids, self._to_read = list(self._to_read), set()
                await self._read(run_ids)
        finally:
            self._reading = False

    async def _read(self, run_ids: Sequence[RunId]) -> None:
        session = self._session
        found = await session.store.unread(run_ids)
        for run_id in run_ids:
            run = session.runs.get(run_id.int)
            if run is None or run.leaving or not run.ready or (run.durable < 0 and not run.early):
                continue
            epoch, messages = found.get(run_id, (-1, []))
            if epoch == -1 or epoch > run.epoch:  # a lower one is old news
                session.call_soon(run.drop)
            elif epoch == SEALED:
                await park_unless_early(session, run)
            elif not run.early and run.pausing is not None:
                session.call_soon(partial(news, run, messages))
            elif messages:
                session.call_soon(partial(self._receive, run, messages))

    def _receive(self, run: LiveRun, messages: Sequence[Message]) -> None:
        if run.leaving:
            return
        try:
            run.receive(messages)
        except Exception as error:  # noqa: BLE001 - whatever it is, the others go on
            park_or_drop(run, messages, error)
