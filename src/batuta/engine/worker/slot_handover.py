"""Queues with limits: jobs that end hand their places over to the next ones, in the transaction that writes their ends.

Without it a slot stays free until some claim has counted all slots under the lock of the queue, and claims that come
too late find nothing.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from batuta.engine.run.owned_run import OwnedRun
from batuta.engine.worker.admission import Admission
from batuta.engine.worker.committer import Committer, take_batch
from batuta.engine.worker.database_clock import DatabaseClock
from batuta.engine.worker.reporter import Item, Reporter, Verdicts
from batuta.errors import StoreError
from batuta.failpoints import failpoint
from batuta.journal.records import Change, Claim, WorkerInfo
from batuta.journal.store import Store
from batuta.settings import Settings

log = logging.getLogger("batuta.engine")

_TURN_SECONDS = 1.0
"""How long a worker hands its places over to its own jobs. Then it lets go of those that come free."""
_OTHERS_SECONDS = 0.02
"""How long it leaves them to other workers then: a hint takes ten milliseconds at most."""
_LONGEST_REST = 0.05


class HandoverHost(Protocol):
    """The part of the worker that a hand-over uses."""

    store: Store
    clock: DatabaseClock
    settings: Settings
    info: WorkerInfo
    admission: Admission
    reporter: Reporter
    runs: dict[int, OwnedRun]
    draining: bool
    monotonic: Callable[[], float]
    context: contextvars.Context
    """Effects go out in it."""

    def send_ends_to(self, submit: Callable[[OwnedRun], None]) -> None:
        """Have the ends of jobs written so."""


class Claims(Protocol):
    """The poller, which brings into memory what a hand-over claims."""

    @property
    def at_hand(self) -> int: ...
    @property
    def free(self) -> int: ...
    async def take(self, ask: Callable[[], Awaitable[Claim]]) -> Claim: ...


class Handover:
    """What one worker does with the ends of its jobs in queues with limits.

    They wait until all that are in memory have ended, or as long as the last claim took: what ends one by one is
    written together, and its places are taken together.
    """

    def __init__(self, session: HandoverHost, poller: Claims, committer: Committer) -> None:
        self._session, self._poller, self._committer = session, poller, committer
        self._now = session.monotonic
        self._limited: Sequence[str] = ()
        """Queues with limits, when the last look had to leave something because of limits."""
        self._ended: deque[OwnedRun] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._turn_ends_at = 0.0
        self.rested_at = 0.0
        """No look for slots is needed before then."""
        self._handed = 0
        """Runs that are about to leave memory, and whose places have others by now."""
        self._left = 0
        """Runs that have left since the last look, with places that were not handed over."""

    # -- what it is told

    def looked(self, claim: Claim, rest: float) -> None:
        """The poller has claimed, and will rest so long."""
        now = self._now()
        if not self._limited:
            self._turn_ends_at = now + _TURN_SECONDS
        self.rested_at = now + rest
        self._handed = self._left = 0
        self._keep(claim.limited if self._session.store.hands_over else ())

    def frees(self) -> bool:
        """A run leaves memory: whether its slot is free."""
        if self._handed:
            self._handed -= 1
            return False
        self._left += 1
        return True

    def ended(self, run: OwnedRun) -> None:
        """The end of a job is to be written."""
        if run.named[1] not in self._limited:
            self._committer.submit(run)
            return
        self._ended.append(run)
        if self._writing is None:
            self._go_on()

    def stop(self) -> None:
        """Write ends as all other changes from now on. A hand-over under way may wait long for the lock of its queue:
        its runs stay here until then, and a stop waits for them within its grace."""
        self._let_go()

    def cancel(self) -> None:
        """Drop all."""
        self._ended.clear()
        self._let_go()
        if self._writing is not None:
            self._writing.cancel()

    async def gone(self, longest: float) -> None:
        """Wait so long for what was cancelled: a statement under way ends when the database has said so, and what it
        still writes must not be there after a sign-off."""
        if self._writing is not None:
            await asyncio.wait([self._writing], timeout=longest)

    # -- when

    def _keep(self, queues: Sequence[str]) -> None:
        """Hand over the places of jobs in these queues."""
        if not queues:
            self._let_go()
        elif not self._session.draining:
            self._limited = queues
            self._session.send_ends_to(self.ended)

    def _let_go(self) -> None:
        """Hand over nothing until the next look. What waits is written as any other change."""
        self._limited = ()
        self._session.send_ends_to(self._committer.submit)
        self._stop_timer()
        while self._ended:
            self._committer.submit(self._ended.popleft())

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _go_on(self) -> None:
        """Write what has ended: at once, if there is nothing else to wait for."""
        if len(self._ended) >= self._poller.at_hand:
            self._begin()
        elif self._timer is None:
            rest = max(0.0, self.rested_at - self._now())
            self._timer = asyncio.get_running_loop().call_later(rest, self._begin, context=self._session.context)

    def _begin(self) -> None:
        self._stop_timer()
        if self._now() > self._turn_ends_at:
            self.rested_at = self._now() + _OTHERS_SECONDS
            self._let_go()
        else:
            loop = asyncio.get_running_loop()
            # Not create_task: see the committer.
            self._writing = asyncio.Task(
                self._hand_over(), loop=loop, name="batuta-handover", context=self._session.context
            )

    # -- how

    async def _hand_over(self) -> None:
        batch = take_batch(self._ended, self._session.settings)
        ended = Counter(run.named[1] for run, _, _ in batch)
        try:
            if batch:
                failpoint("commit.before")
                write = self._session.reporter.timed(partial(self._write, ended))
                verdicts = await write(self._session.info.worker_id, [change for _, change, _ in batch])
                self._committer.settle(batch, verdicts)
        except Exception as error:
            if not isinstance(error, StoreError):
                log.exception("places could not be handed over")
            self._give_back(batch)
        finally:
            self._writing = None
        if self._ended:
            self._go_on()

    async def _write(self, ended: Counter[str], _: str, changes: Sequence[Change]) -> Verdicts:
        """Commit, and claim."""
        limit, verdicts = 0, Verdicts()
        began = self._now()

        async def ask() -> Claim:
            nonlocal limit
            worker, limit = self._wanted(ended)  # not before: the poller may have taken some meanwhile
            found, claim = await self._session.store.hand_over(worker, changes, limit)
            verdicts.update(found)
            return claim

        claim = await self._poller.take(ask)
        self._handed, self._left = min(len(claim.stored_runs), len(changes)), 0
        now = self._now()
        self.rested_at = now + min(now - began, _LONGEST_REST)
        if len(claim.stored_runs) < limit:  # else there may be more
            self._keep(claim.limited)
        return verdicts

    def _wanted(self, ended: Counter[str]) -> tuple[WorkerInfo, int]:
        """Which worker claims, and how many: as many as have ended, by queue, and those whose slots are still free."""
        session = self._session
        limit = ended.total() + max(0, min(self._left, self._poller.free))
        for queue, room in (session.admission.room() or {}).items():
            if queue in ended:
                limit = min(limit, room + ended[queue])
        worker, limit = session.admission.appetite(session.runs.values(), limit)
        return replace(session.admission.willing(worker, session.clock.now()), queues=list(ended)), limit

    def _give_back(self, batch: Sequence[Item]) -> None:
        """It failed, or its outcome is unknown: they are written as all other changes, which can be done twice."""
        self._let_go()
        for run, change, effects in batch:
            if self._session.runs.get(run.run_id.int) is run:
                run.put_back(change, effects)
                self._committer.submit(run)
