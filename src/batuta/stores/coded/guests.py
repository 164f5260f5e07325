"""Callers' own transactions, and heartbeats, of a store with codecs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from batuta.journal.records import NewRun, Pulse, StartOutcome, WorkerInfo
from batuta.journal.store import Guest, Heart
from batuta.stores.coded.coding import Coding


class CodedGuest:
    """Implements `Guest`."""

    def __init__(self, guest: Guest, coding: Coding) -> None:
        self._guest, self._coding = guest, coding
        self.blocking, self.brief = guest.blocking, guest.brief

    async def start_many(self, runs: Sequence[NewRun], after: NewRun | None = None) -> list[StartOutcome]:
        new_run, plain_run = self._coding.new_run, self._coding.plain_run
        last = None if after is None else new_run(after)
        outcomes = await self._guest.start_many([new_run(run) for run in runs], last)
        return [(plain_run(one[0]), one[1]) if isinstance(one, tuple) else one for one in outcomes]


class CodedHeart:
    """Implements `Heart`: its worker is registered with the mark of what can be read here."""

    def __init__(self, heart: Heart, marked: Callable[[WorkerInfo], WorkerInfo]) -> None:
        self._heart, self._marked = heart, marked

    async def beat(self, worker: WorkerInfo, *, reap: bool) -> Pulse:
        return await self._heart.beat(self._marked(worker), reap=reap)

    async def bury(self, worker_ids: Sequence[str]) -> int:
        return await self._heart.bury(worker_ids)
