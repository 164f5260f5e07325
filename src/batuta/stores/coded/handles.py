"""Handles of a store with codecs: callers' own transactions, those of activities, and heartbeats."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from batuta.ids import RunId
from batuta.journal.bus.messages import NewMessage
from batuta.journal.entries import Entry
from batuta.journal.records import (
    Change,
    Message,
    NewRun,
    Pulse,
    Refusal,
    Run,
    StartOutcome,
    Verdict,
    WorkerInfo,
)
from batuta.journal.store import CallerTransaction, Heartbeat, Transaction
from batuta.stores.coded.changes import Changes
from batuta.stores.coded.record_codec import Reader, RecordCodec
from batuta.stores.coded.run_facts import Fact, Facts, fact_of
from batuta.stores.coded.starts import start_all


class CodedCallerTransaction:
    """Implements `CallerTransaction`."""

    def __init__(self, caller: CallerTransaction, coding: RecordCodec, facts: Facts) -> None:
        self._caller, self._coding, self._facts = caller, coding, facts
        self.blocking, self.brief = caller.blocking, caller.brief

    async def start_many(self, runs: Sequence[NewRun], after: NewRun | None = None) -> list[StartOutcome]:
        outcomes = await start_all(self._caller.start_many, self._coding, runs, after)
        plain_run = self._coding.plain_run
        return [(plain_run(one[0]), one[1]) if isinstance(one, tuple) else one for one in outcomes]

    async def send(self, run_id: RunId, id: str, message: Message) -> bool:
        return await self._caller.send(run_id, id, self._coding.message_to_id(id, message))

    async def publish(self, messages: Sequence[NewMessage]) -> list[str]:
        return await self._caller.publish([self._coding.encode(message) for message in messages])

    async def start_of(self, run: Run) -> Entry | Message | None:
        found = await self._caller.start_of(run)
        if found is None:
            return None
        first = await self._first_of(run)
        if isinstance(found, Entry):
            return self._coding.plain_entry(first, found)
        return self._coding.plain_message(Reader(run.id, run.chain_id, run.chain_id, first), found)

    async def parent_of(self, run_id: RunId) -> tuple[RunId | None, int]:
        return await self._caller.parent_of(run_id)

    async def _first_of(self, run: Run) -> Fact:
        """The first run of its chain. A child that was retried without its parent has none any more."""
        if run.run_id == run.chain_id:
            return fact_of(run)
        if (found := self._facts.known(run.chain_id)) is not None:
            return found
        parent, seq = await self.parent_of(run.chain_id)
        return fact_of(replace(run, run_id=run.chain_id, parent_run_id=parent, parent_seq=seq))


class CodedTransaction:
    """Implements `Transaction`: it encodes what it commits."""

    def __init__(self, transaction: Transaction, changes: Changes) -> None:
        self._transaction, self._changes = transaction, changes
        self.blocking, self.seconds = transaction.blocking, transaction.seconds

    @property
    def connection(self) -> object:
        return self._transaction.connection

    async def begin(self) -> None:
        await self._transaction.begin()

    async def commit(
        self,
        worker_id: str,
        change: Change,
        may_leave: Callable[[Sequence[Refusal]], None],
        messages: Sequence[NewMessage] = (),
    ) -> Verdict | list[Refusal]:
        [coded] = await self._changes.coded([change])
        sealed = [self._changes.coding.encode(message) for message in messages]
        return await self._transaction.commit(worker_id, coded, may_leave, sealed)

    async def rollback(self) -> None:
        await self._transaction.rollback()


class CodedHeartbeat:
    """Implements `Heartbeat`: its worker is registered with the mark of what can be read here."""

    def __init__(self, heartbeat: Heartbeat, marked: Callable[[WorkerInfo], WorkerInfo]) -> None:
        self._heartbeat, self._marked = heartbeat, marked

    async def beat(self, worker: WorkerInfo, *, reap: bool) -> Pulse:
        return await self._heartbeat.beat(self._marked(worker), reap=reap)

    async def reap(self, worker_ids: Sequence[str]) -> int:
        return await self._heartbeat.reap(worker_ids)
