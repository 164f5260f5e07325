"""What a store with codecs hands out: callers' own transactions, those of activities, and heartbeats."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from batuta.journal.records import Change, NewRun, Pulse, Refusal, StartOutcome, Verdict, WorkerInfo
from batuta.journal.store import Guest, Heart, Transaction
from batuta.stores.coded.changes import Changes
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


class CodedTransaction:
    """Implements `Transaction`: what it commits is coded."""

    def __init__(self, transaction: Transaction, changes: Changes) -> None:
        self._transaction, self._changes = transaction, changes
        self.blocking, self.seconds = transaction.blocking, transaction.seconds

    @property
    def connection(self) -> object:
        return self._transaction.connection

    @property
    def never_was(self) -> bool:
        return self._transaction.never_was

    async def begin(self) -> None:
        await self._transaction.begin()

    async def commit(
        self, worker_id: str, change: Change, may_leave: Callable[[Sequence[Refusal]], None]
    ) -> Verdict | list[Refusal]:
        [coded] = await self._changes.coded([change])
        return await self._transaction.commit(worker_id, coded, may_leave)

    async def rollback(self) -> None:
        await self._transaction.rollback()


class CodedHeart:
    """Implements `Heart`: its worker is registered with the mark of what can be read here."""

    def __init__(self, heart: Heart, marked: Callable[[WorkerInfo], WorkerInfo]) -> None:
        self._heart, self._marked = heart, marked

    async def beat(self, worker: WorkerInfo, *, reap: bool) -> Pulse:
        return await self._heart.beat(self._marked(worker), reap=reap)

    async def bury(self, worker_ids: Sequence[str]) -> int:
        return await self._heart.bury(worker_ids)
