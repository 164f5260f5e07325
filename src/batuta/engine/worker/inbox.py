"""Messages for the runs of a worker: read when something hints at them, and delivered."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol

from batuta.engine.run.owned_run import OwnedRun
from batuta.ids import RunId
from batuta.journal.records import SEALED, Message, Unread
from batuta.journal.store import Store

_NOT_THERE = Unread(-1, [])


class RunsHost(Protocol):
    """The runs that a worker has in memory, and its store."""

    store: Store
    runs: dict[int, OwnedRun]
    over: bool

    def call_soon(self, callback: Callable[[], None]) -> None: ...
    def spawn(self, work: Coroutine[Any, Any, None]) -> None: ...


class InboxReader:
    """The inboxes of one session."""

    def __init__(self, session: RunsHost) -> None:
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
                run.read(messages)

    # -- from elsewhere

    def look_for(self, run_ids: Sequence[RunId]) -> None:
        """Read the unread messages of these runs, soon."""
        if run_ids and not self._session.over:
            for run_id in run_ids:
                run = self._session.runs.get(run_id.int)
                if run is not None:  # a run with a backlog reads more when it has caught up
                    (self.unhurried if not run.early and run.inbox.backlog else self._to_read).add(run_id)
            if self._to_read and not self._reading:
                self._reading = True
                self._session.spawn(self._read_all())

    def caught_up(self, run: OwnedRun) -> None:
        if run.more_messages or run.run_id in self.unhurried:
            self.unhurried.discard(run.run_id)
            self.look_for([run.run_id])

    async def _read_all(self) -> None:
        """One read at a time: messages that are hinted at meanwhile are read together, next."""
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
            epoch, messages, more, _ = found.get(run_id, _NOT_THERE)
            if epoch == -1 or epoch > run.epoch:  # a lower one is old news
                session.call_soon(run.drop)
            elif epoch == SEALED:
                await self._park_unless_early(run)
            elif not run.early and run.pausing is not None:
                session.call_soon(partial(run.read, messages, held=True))
            else:
                run.expect_more(more)
                if messages:
                    session.call_soon(partial(run.read, messages))

    async def read_page(self, run: OwnedRun, after: int) -> None:
        """For a run that is to read all that it was sent before it ends."""
        session = self._session
        try:
            found = await session.store.unread([run.run_id], after=after)
        except BaseException:
            session.call_soon(run.drop)  # the store says that it is ours: it will be adopted
            raise
        page = found.get(run.run_id, _NOT_THERE)
        if page.epoch == SEALED:
            await self._park_unless_early(run)
        else:
            session.call_soon(partial(self._resume_page, run, page))

    def _resume_page(self, run: OwnedRun, page: Unread) -> None:
        if self._session.runs.get(run.run_id.int) is not run or run.leaving:
            return
        if page.epoch != run.epoch:
            run.drop()
            return
        try:
            run.resume_page(page.messages, more=page.more)
        except Exception as error:  # noqa: BLE001 - whatever it is, the others go on
            run.park_or_drop(page.messages, error)

    async def _park_unless_early(self, run: OwnedRun) -> None:
        """It was sent what cannot be read. A job that is under way goes on: it reads its inbox when it ends."""
        if run.early:
            return
        session = self._session
        stored = await session.store.load(run.run_id)

        def park() -> None:
            if session.runs.get(run.run_id.int) is run and not run.leaving:
                run.park(stored.sealed)

        if stored.sealed:
            session.call_soon(park)
