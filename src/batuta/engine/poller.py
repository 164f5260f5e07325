"""Claims runs that are due. Hints make it quick; polling makes it certain."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from batuta.clock import SECOND
from batuta.engine.committer import Committer
from batuta.engine.handover import Handover
from batuta.errors import StoreError
from batuta.failpoints import failpoint
from batuta.ids import RunId, jitter
from batuta.journal.records import Claim, Tape, WorkerInfo

if TYPE_CHECKING:
    from batuta.engine.session import Session

log = logging.getLogger("batuta.engine")

_AFTER_ERROR = 1.0
_LONGEST_PAUSE = 10.0
_HELD_PAUSE = 1.0
_SHORTEST_PAUSE = 0.001
_LONGEST_REST = 0.2
_OTHERS_PAUSE = 0.05
_END: Sequence[Tape] = ()
"""After the slices of a claim."""
_SLICE = 32
"""Runs that are brought into memory before others get their turn on the event loop."""


class Poller:
    """The claiming half of a session."""

    def __init__(self, session: Session, committer: Committer) -> None:
        self._session = session
        self._handover = Handover(session, self, committer)
        self._now = session.monotonic
        self.backlog = True
        """Whether the last look found more than could be taken, or no look was made yet."""
        self.claims_begun = self.claims_ended = 0
        """While one is under way the store may know of runs that we do not have yet. It ends when they are in memory,
        or it has failed, and those before it have ended."""
        self._slices: deque[Sequence[Tape]] = deque()
        self._adopted = asyncio.Event()
        self._missed: dict[int, set[RunId]] = {}
        """By the claim that was the last then: runs that we do not have, and that something was sent to. They may be in
        it or in one before, whose tapes are older than what was sent."""
        self._loaded = 0
        """Claimed runs that are about to be brought into memory: those in the slices."""
        self._wake = asyncio.Event()
        self._held = False
        """The last look had to leave what a limit held back."""
        self._full = False
        """This worker can take no more from one of its queues, whatever waits there, until a run leaves."""
        self._others_at = 0.0
        self._rest = 0.0
        """How long not to look though a run has left: places that become free one by one are taken together."""
        self._due: list[int] = []
        self._idle = 0
        """Looks in a row that found nothing. Heartbeats tell what is due, so that looking is a net below a net."""
        self._task: asyncio.Task[None] | None = None
        self._asking = asyncio.Lock()
        """One claim at a time: they are known by their numbers, and end in that order. And what there is room for is
        known when the one before has ended."""

    @property
    def at_hand(self) -> int:
        """Runs in memory, or about to be."""
        return len(self._session.runs) + self._loaded

    @property
    def free(self) -> int:
        """How many more may come into memory."""
        return self._session.free - self._loaded

    @property
    def claiming(self) -> bool:
        return self.claims_begun > self.claims_ended

    def open(self, context: contextvars.Context) -> None:
        """Effects go out in this context."""
        self._handover.open(context)

    async def start(self) -> None:
        """Look once, so that it is known whether anything waits, and then for ever."""
        try:
            await self._claim()
        except StoreError as error:
            log.warning("could not look for due runs: %s", error)
        self._task = asyncio.get_running_loop().create_task(self._poll_forever(), name="batuta-poller")

    def cancel(self) -> None:
        self._handover.cancel()
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        """No claim is under way afterwards, but for that of a hand-over."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._handover.stop()

    async def ended(self, longest: float) -> None:
        """Wait so long for a hand-over that was cancelled: what it still writes must not be there after a sign-off."""
        await self._handover.gone(longest)

    def wake(self) -> None:
        """Something may be due now."""
        self._wake.set()

    def missed(self, run_ids: Iterable[RunId]) -> None:
        """Something was sent to these, which are not in memory. If a claim brings one, its inbox is read once more."""
        if self.claiming:
            self._missed.setdefault(self.claims_begun, set()).update(run_ids)

    def due(self, when: int) -> None:
        """Something will be due at that database time."""
        if when <= self._session.clock.now():
            self._wake.set()
        elif not self._due or when < self._due[0]:
            heappush(self._due, when)
            self._wake.set()

    def freed(self, wake_at: int | None) -> None:
        """A run has left memory: there is room, and it may come back."""
        if wake_at is not None:
            self._comes_back(wake_at)
        if (self.backlog or self._held or self._full) and self._handover.frees():
            self._wake.set()

    def _comes_back(self, wake_at: int) -> None:
        """Remember what is due soon; beats tell of the rest in time."""
        session = self._session
        if session.store.poll_seconds is None:
            self._wake.set()
        elif wake_at - session.clock.now() < 2 * session.settings.lease * SECOND:
            heappush(self._due, wake_at)
            if wake_at == self._due[0]:
                self._wake.set()

    async def _poll_forever(self) -> None:
        while True:
            self._wake.clear()
            try:
                pause = await self._claim()
            except StoreError as error:
                log.warning("could not look for due runs: %s", error)
                pause = _AFTER_ERROR * (0.5 + jitter())
            except Exception:
                log.exception("could not look for due runs")
                pause = _AFTER_ERROR * (0.5 + jitter())
            await self._wait(pause)

    async def _claim(self) -> float | None:
        """Take what is due and fits. Returns how long to wait for the next look; None: until woken."""
        session = self._session
        # Not before all are in memory, and then ask: there would be nothing to do until the answer comes.
        while self._loaded > (0 if session.intake.keyed else session.settings.claim_batch):
            self._adopted.clear()
            await self._adopted.wait()
        async with self._asking:  # not before: a hand-over may have taken some meanwhile
            return await self._look()

    async def _look(self) -> float | None:
        session = self._session
        info, most = session.intake.appetite(session.runs.values())
        limit = min(self.free, session.settings.claim_batch)
        if most is not None and most < limit:
            limit = most
        if limit <= 0:
            self.backlog = True
            return None if session.store.poll_seconds is None else session.store.poll_seconds
        if info is not session.info:  # there is no room for jobs, only for others: no need to ask at every commit
            if (wait := self._others_at - self._now()) > 0:
                self.backlog = True
                return wait
            self._others_at = self._now() + _OTHERS_PAUSE
        failpoint("claim.before")
        began = self._now()
        room = session.intake.room()
        claim = await self._ask(lambda: session.store.claim(info, limit, room))
        tapes = claim.tapes
        still_open = session.intake.still_open(info)
        self._full = still_open is not info
        held = claim.held or self._full
        self._rest = min(max(self._now() - began, _SHORTEST_PAUSE), _LONGEST_REST) if held else 0.0
        self.backlog = len(tapes) == limit or info is not session.info
        self._held = claim.held
        self._idle = 0 if tapes else self._idle + 1
        self._handover.looked(claim, self._rest)
        self._load(tapes)
        if room is not None and not self._full and _uses_up(room, tapes):
            return self._rest  # runs have left meanwhile: there is room, and nobody will say so again
        if len(tapes) == limit:  # there is more. Asked for before these are in memory: the store works meanwhile
            return 0.0
        return self._until_room(claim.again_at) if self._held else await self._until_due(still_open)

    async def take(self, ask: Callable[[], Awaitable[Claim]]) -> Claim:
        """Bring into memory what somebody else claims."""
        async with self._asking:
            claim = await self._ask(ask)
            self._held = self._held or claim.held
            self._load(claim.tapes)
            return claim

    async def _ask(self, ask: Callable[[], Awaitable[Claim]]) -> Claim:
        """A claim, with its tapes in the order in which they begin. They are to be loaded before anything else."""
        self.claims_begun += 1
        try:
            claim = await ask()
            if claim.tapes:
                failpoint("claim.after")
            self._session.intake.expect(claim.tapes)
            if self._session.intake.keyed:
                claim.tapes = _in_turn(claim.tapes)
        except BaseException:  # it has ended all the same: a heartbeat may bring what it took
            self._load(())
            raise
        return claim

    def _load(self, tapes: Sequence[Tape]) -> None:
        """Have them brought into memory, a slice in each round of the event loop."""
        try:
            for first in range(0, len(tapes), _SLICE):
                failpoint("claim.loaded")
                if not self._slices:
                    asyncio.get_running_loop().call_soon(self._adopt)
                self._slices.append(tapes[first : first + _SLICE])
                self._loaded += len(self._slices[-1])
        finally:
            self._slices.append(_END)
            self._pass_ends()

    def _adopt(self) -> None:
        tapes = self._slices.popleft()
        self._loaded -= len(tapes)
        self._adopted.set()
        try:
            self._session.adopt_claimed(tapes)
            if self._missed:
                missed = set().union(*self._missed.values())
                self._session.read_again([one.run.run_id for one in tapes if one.run.run_id in missed])
        finally:
            self._pass_ends()
            if self._slices:
                asyncio.get_running_loop().call_soon(self._adopt)

    def _pass_ends(self) -> None:
        while self._slices and not self._slices[0]:
            self._slices.popleft()
            self.claims_ended += 1
            if self._missed:
                self._missed.pop(self.claims_ended, None)

    def _until_room(self, again_at: int | None) -> float:
        """What is held back may come when a run leaves this worker, which wakes us, or another one; or by time."""
        session = self._session
        now = session.clock.now()
        while self._due and self._due[0] <= now:
            heappop(self._due)
        pause = _HELD_PAUSE if session.store.poll_seconds is None else session.store.poll_seconds
        due = min(filter(None, (again_at, self._due[0] if self._due else None)), default=None)
        return pause if due is None else min(pause, max(_SHORTEST_PAUSE, (due - now) / SECOND))

    async def _until_due(self, info: WorkerInfo) -> float | None:
        session = self._session
        now = session.clock.now()
        while self._due and self._due[0] <= now:
            heappop(self._due)
        pause = session.store.poll_seconds
        if pause is None:  # hints are certain, but nobody hints at the passing of time
            due_at = await session.store.due_at(info)
            return None if due_at is None else max(_SHORTEST_PAUSE, (due_at - now) / SECOND)
        pause = min(pause * 2.0 ** min(self._idle, 10), _LONGEST_PAUSE) * (0.9 + 0.2 * jitter())
        return min(pause, max(0.0, (self._due[0] - now) / SECOND)) if self._due else pause

    async def _wait(self, pause: float | None) -> None:
        if self._rest:
            await asyncio.sleep(self._rest)
        if pause is not None and pause <= self._rest:
            return
        try:
            async with asyncio.timeout(pause):
                await self._wake.wait()
                if (rest := self._handover.rested_at - self._now()) > 0:
                    await asyncio.sleep(rest)
        except TimeoutError:
            pass


def _in_turn(tapes: Sequence[Tape]) -> list[Tape]:
    """Those of one flow key do not begin before all others of the same claim and priority."""
    seen: Counter[tuple[int, str]] = Counter()
    places: list[tuple[int, int, int]] = []
    for number, tape in enumerate(tapes):
        key = (tape.run.priority, tape.run.flow_key)
        seen[key] += 1
        places.append((-tape.run.priority, seen[key], number))
    return [tapes[number] for _, _, number in sorted(places)]


def _uses_up(room: Mapping[str, int], tapes: Sequence[Tape]) -> bool:
    """Whether a claim took all that it could from a queue: more may be due there."""
    taken = Counter(tape.run.queue for tape in tapes)
    return any(taken[queue] >= most for queue, most in room.items())
