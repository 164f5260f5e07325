"""Claims runs that are due. Hints make it quick; polling makes it certain."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Protocol

from batuta.clock import SECOND
from batuta.engine.worker.background import BackgroundTask
from batuta.engine.worker.committer import Committer
from batuta.engine.worker.outage import Outage
from batuta.engine.worker.slot_handover import Handover, HandoverHost
from batuta.errors import StoreError
from batuta.failpoints import failpoint
from batuta.ids import RunId, jitter
from batuta.journal.records import Claim, StoredRun, WorkerInfo

_LOOKING = "looking for due runs"
_AFTER_ERROR = 1.0
_LONGEST_PAUSE = 10.0
_HELD_PAUSE = 1.0
_SHORTEST_PAUSE = 0.001
_LONGEST_REST = 0.2
_OTHERS_PAUSE = 0.05
_END: Sequence[StoredRun] = ()
"""After the slices of a claim."""
_SLICE = 32
"""Runs that are brought into memory before others get their turn on the event loop."""


class ClaimHost(HandoverHost, Protocol):
    """The part of the worker that claiming uses."""

    outage: Outage

    @property
    def free(self) -> int: ...
    def adopt_claimed(self, stored_runs: Sequence[StoredRun]) -> None: ...
    def read_again(self, run_ids: Sequence[RunId]) -> None: ...
    def timed_out(self, run_ids: Sequence[RunId]) -> None: ...
    async def read_clock(self) -> int: ...


class Poller(BackgroundTask):
    """The claiming half of a session."""

    task_name = "batuta-poller"

    def __init__(self, session: ClaimHost, committer: Committer) -> None:
        self._session = session
        self.handover = Handover(session, self, committer)
        self._now = session.monotonic
        self.backlog = True
        """Whether the last look found more than could be taken, or no look was made yet."""
        self.claims_begun = self.claims_ended = 0
        """Numbers of the latest claim that began, and of the latest that ended. A claim ends when all earlier ones have
        ended and its own runs are in memory, or it failed. Until then we may own runs that are not in memory."""
        self._slices: deque[Sequence[StoredRun]] = deque()
        self._adopted = asyncio.Event()
        self._missed: dict[int, set[RunId]] = {}
        """Runs that are not in memory and got a message, by the number of the latest claim at that moment. If that
        claim or an earlier one brings such a run, its inbox must be read again."""
        self._loaded = 0
        """Claimed runs that are about to be brought into memory: those in the slices."""
        self._wake = asyncio.Event()
        self._held = False
        """At the last look, a limit held runs back."""
        self._full = False
        """This worker can take no more from one of its queues, whatever waits there, until a run leaves."""
        self._others_at = 0.0
        self._rest = 0.0
        """How long to wait with the next look after a run has left, so that several free places are filled at once."""
        self._due: list[int] = []
        self._idle = 0
        """Looks in a row that found nothing. Heartbeats report due runs, too, so looks may become rare."""
        self._asking = asyncio.Lock()
        """One claim at a time: claims end in the order of their numbers, and the free room is known only when the claim
        before has ended."""

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

    async def open(self) -> None:
        """Look once, to learn whether anything waits, and then for ever."""
        try:
            await self._claim()
        except StoreError as error:
            self._session.outage.failed(_LOOKING, error)
        self.start()

    def cancel(self) -> None:
        self.handover.cancel()
        super().cancel()

    async def stop(self) -> None:
        """No claim is under way afterwards, but for that of a hand-over."""
        await super().stop()
        self.handover.stop()

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
        if (self.backlog or self._held or self._full) and self.handover.frees():
            self._wake.set()

    def _comes_back(self, wake_at: int) -> None:
        """Remember runs that are due soon; heartbeats tell of the rest in time."""
        session = self._session
        if session.store.poll_seconds is None:
            self._wake.set()
        elif wake_at - session.clock.now() < 2 * session.settings.lease * SECOND:
            heappush(self._due, wake_at)
            if wake_at == self._due[0]:
                self._wake.set()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                pause = await self._claim()
                self._session.outage.worked(_LOOKING)
            except Exception as error:  # noqa: BLE001 - whatever it is, the next look comes
                self._session.outage.failed(_LOOKING, error)
                pause = _AFTER_ERROR * (0.5 + jitter())
            await self._wait(pause)

    async def _claim(self) -> float | None:
        """Claim due runs, as many as fit. Returns how long to wait for the next look; None: until woken."""
        session = self._session
        # Not before all are in memory, and then ask: there would be nothing to do until the answer comes.
        while self._loaded > (0 if session.admission.keyed else session.settings.claim_batch):
            self._adopted.clear()
            await self._adopted.wait()
        async with self._asking:  # not before: a hand-over may have taken some meanwhile
            return await self._look()

    async def _look(self) -> float | None:
        session = self._session
        limit = min(self.free, session.settings.claim_batch)
        info, limit = session.admission.appetite(session.runs.values(), limit)
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
        room = session.admission.room()
        asked = session.admission.willing(info, session.clock.now())
        claim = await self._ask(lambda: session.store.claim(asked, limit, room))
        stored_runs = claim.stored_runs
        session.timed_out(claim.timed_out)
        still_open = session.admission.still_open(asked)
        self._full = still_open is not asked
        held = claim.held or self._full
        self._rest = min(max(self._now() - began, _SHORTEST_PAUSE), _LONGEST_REST) if held else 0.0
        self.backlog = len(stored_runs) == limit or info is not session.info
        self._held = claim.held
        self._idle = 0 if stored_runs else self._idle + 1
        self.handover.looked(claim, self._rest)
        self._load(stored_runs)
        if room is not None and not self._full and _uses_up(room, stored_runs):
            return self._rest  # runs have left meanwhile: there is room, and no other hint will come
        if len(stored_runs) == limit:  # there is more. Asked for before these are in memory: the store works meanwhile
            return 0.0
        return self._until_room(claim.again_at) if self._held else await self._until_due(still_open)

    async def take(self, ask: Callable[[], Awaitable[Claim]]) -> Claim:
        """Bring into memory the runs that `ask` claims."""
        async with self._asking:
            claim = await self._ask(ask)
            self._held = self._held or claim.held
            self._load(claim.stored_runs)
            return claim

    async def _ask(self, ask: Callable[[], Awaitable[Claim]]) -> Claim:
        """A claim, with its runs in the order in which they begin. Load them before anything else."""
        self.claims_begun += 1
        try:
            claim = await ask()
            if claim.stored_runs:
                failpoint("claim.after")
            self._session.admission.expect(claim.stored_runs)
            if self._session.admission.keyed:
                claim.stored_runs = _in_turn(claim.stored_runs)
        except BaseException:  # it has ended all the same: a heartbeat may bring what it took
            self._load(())
            raise
        return claim

    def _load(self, stored_runs: Sequence[StoredRun]) -> None:
        """Have them brought into memory, a slice in each round of the event loop."""
        try:
            for first in range(0, len(stored_runs), _SLICE):
                failpoint("claim.loaded")
                if not self._slices:
                    asyncio.get_running_loop().call_soon(self._adopt)
                self._slices.append(stored_runs[first : first + _SLICE])
                self._loaded += len(self._slices[-1])
        finally:
            self._slices.append(_END)
            self._pass_ends()

    def _adopt(self) -> None:
        stored_runs = self._slices.popleft()
        self._loaded -= len(stored_runs)
        self._adopted.set()
        try:
            self._session.adopt_claimed(stored_runs)
            if self._missed:
                missed = set().union(*self._missed.values())
                self._session.read_again([one.run.run_id for one in stored_runs if one.run.run_id in missed])
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
        """Runs held back by a limit may begin when a run leaves this worker, which wakes us, or another; or by time."""
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
        if pause is None:  # hints are certain, but no hint tells that time has passed
            now, due_at = await session.read_clock(), await session.store.due_at(info)
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
                if (rest := self.handover.rested_at - self._now()) > 0:
                    await asyncio.sleep(rest)
        except TimeoutError:
            pass


def _in_turn(stored_runs: Sequence[StoredRun]) -> list[StoredRun]:
    """Reorders a claim: flow keys of the same priority take turns."""
    seen: Counter[tuple[int, str]] = Counter()
    places: list[tuple[int, int, int]] = []
    for number, stored in enumerate(stored_runs):
        key = (stored.run.priority, stored.run.flow_key)
        seen[key] += 1
        places.append((-stored.run.priority, seen[key], number))
    return [stored_runs[number] for _, _, number in sorted(places)]


def _uses_up(room: Mapping[str, int], stored_runs: Sequence[StoredRun]) -> bool:
    """Whether a claim took all that it could from a queue: more may be due there."""
    taken = Counter(stored.run.queue for stored in stored_runs)
    return any(taken[queue] >= most for queue, most in room.items())
