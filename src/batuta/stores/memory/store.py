"""The verbs of the store in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from msgspec.structs import replace

from batuta.errors import RunClosed, WrongTransaction
from batuta.ids import RunId
from batuta.journal.audit import Act
from batuta.journal.entries import Entry
from batuta.journal.quotas import EVERYBODY, MOST_WAITING, WAITING
from batuta.journal.records import (
    Change,
    Claim,
    Message,
    NewRun,
    Refusal,
    Run,
    StartOutcome,
    Verdict,
    WorkerInfo,
)
from batuta.journal.states import PARKED, RunState
from batuta.journal.store import Borrowed, CallerTransaction, Heartbeat, Transaction
from batuta.stores.contract import rules
from batuta.stores.contract.slot_handover import commit_then_claim
from batuta.stores.memory.activity_transaction import MemoryTransaction
from batuta.stores.memory.audit import AuditVerbs, changed, record
from batuta.stores.memory.base import verb
from batuta.stores.memory.bulk_operations import BulkVerbs
from batuta.stores.memory.bus.messages import BusVerbs
from batuta.stores.memory.commits import Commit
from batuta.stores.memory.dead_letters import DeadLetterVerbs
from batuta.stores.memory.flows.flows import FlowVerbs
from batuta.stores.memory.forks import ForkVerbs
from batuta.stores.memory.heartbeat import MemoryHeartbeat
from batuta.stores.memory.listing import ListingVerbs
from batuta.stores.memory.marks import MarkVerbs
from batuta.stores.memory.queues import QueueVerbs, claim, left_behind, time_out
from batuta.stores.memory.quotas import QuotaVerbs
from batuta.stores.memory.reading import ReadingVerbs
from batuta.stores.memory.reencryption import RewritingVerbs
from batuta.stores.memory.resilience.partners import PartnerVerbs
from batuta.stores.memory.retention import RetentionVerbs
from batuta.stores.memory.schedules import ScheduleVerbs
from batuta.stores.memory.server.api_keys import ApiKeyVerbs
from batuta.stores.memory.server.documents import DocumentVerbs
from batuta.stores.memory.server.requests import RequestVerbs
from batuta.stores.memory.starts import find_or_begin, start_many
from batuta.stores.memory.tables import NamespaceTables, Registration, Row
from batuta.stores.memory.unit_of_work import UnitOfWork

_NO_TRANSACTIONS = "memory:// does not support transaction=: use SQLite or PostgreSQL, also in this test"


class MemoryStore(
    QueueVerbs,
    ReadingVerbs,
    ListingVerbs,
    ScheduleVerbs,
    ForkVerbs,
    DeadLetterVerbs,
    RetentionVerbs,
    QuotaVerbs,
    MarkVerbs,
    ApiKeyVerbs,
    RequestVerbs,
    DocumentVerbs,
    PartnerVerbs,
    BusVerbs,
    BulkVerbs,
    AuditVerbs,
    RewritingVerbs,
    FlowVerbs,
):
    """A `Store` in memory."""

    hands_over = False

    # -- runs come in

    @verb
    def start_many(self, unit: UnitOfWork, runs: Sequence[NewRun], after: NewRun | None = None) -> list[StartOutcome]:
        runs = list(runs)  # that may raise: not after some of them were written
        return start_many(unit, runs, after)

    async def enter(self, transaction: object, runs: Sequence[NewRun]) -> CallerTransaction:
        raise WrongTransaction(_NO_TRANSACTIONS)

    def borrow(self, connection: object) -> Borrowed:
        raise WrongTransaction(_NO_TRANSACTIONS)

    @verb
    def start(self, unit: UnitOfWork, run: NewRun, message: Message | None = None) -> tuple[Run, bool]:
        row, is_new = find_or_begin(unit, run)
        if message is not None:
            self._send(unit, row, message)
        return row.snapshot(), is_new

    @verb
    def send(self, unit: UnitOfWork, run_id: RunId, message: Message, act: Act | None = None) -> bool:
        return self._send(unit, unit.row(run_id), message, act)

    def _send(self, unit: UnitOfWork, row: Row, message: Message, act: Act | None = None) -> bool:
        target = unit.tables.open_row_of_chain(row)
        chain_id, message_id = row.run.chain_id, message.message_id
        known = message_id in unit.tables.inbox(chain_id).known
        if known and (target is None or not unit.tables.forget_rejected(chain_id, message_id)):
            return False
        if target is None:
            raise RunClosed(row.run.id, row.run.state)
        if rules.counts_as_waiting(message):
            self._refuse_when_full(unit, row)
        record(unit, act, [changed(target.run, target.run.state)])
        return unit.deliver(target, message)

    def _refuse_when_full(self, unit: UnitOfWork, row: Row) -> None:
        unread = unit.tables.inbox(row.run.chain_id).unread
        waiting = len(unread) - (f"start:{row.run.chain_id}" in unread)
        others = self._database.namespaces.get(EVERYBODY, NamespaceTables()).quotas
        quota = unit.tables.quotas.get(WAITING) or others.get(WAITING)
        most = MOST_WAITING if quota is None else quota.limit
        if most is not None and waiting >= most:
            raise rules.inbox_full(self.namespace, row.run.id, int(most))

    @verb
    def unpark(self, unit: UnitOfWork, run_id: RunId, act: Act | None = None) -> bool:
        run = unit.row(run_id).run
        if run.state not in PARKED:
            return False
        record(unit, act, [changed(run, RunState.WAITING)])
        run.state, run.wake_at, run.deaths, run.reason, run.failed_code = RunState.WAITING, unit.now, 0, "", []
        unit.hint.due = True
        return True

    # -- runs are worked on

    @verb
    def register(self, unit: UnitOfWork, worker: WorkerInfo) -> int:
        copy = replace(worker, queues=list(worker.queues), code=dict(worker.code))
        unit.tables.workers[worker.worker_id] = Registration(copy, unit.now + worker.lease, unit.now, unit.now)
        return unit.now

    @verb
    def retire(self, unit: UnitOfWork, worker_id: str) -> None:
        unit.tables.workers.pop(worker_id, None)
        mine = [row for row in unit.tables.open.values() if row.run.owner == worker_id]
        for row in mine:
            unit.set_free(row)
        unit.hint.due = bool(mine)

    @verb
    def give_up(self, unit: UnitOfWork, worker_id: str, run_ids: Sequence[RunId], reason: str) -> int:
        mine = [unit.tables.open[one] for one in run_ids if one in unit.tables.open]
        mine = [row for row in mine if row.run.owner == worker_id]
        for row in mine:
            run = row.run
            run.deaths, run.reason = run.deaths + 1 if run.head == row.claimed_head else 1, reason
            unit.set_free(row)
            run.wake_at = unit.now + rules.pause_after(run.deaths)
            if run.deaths >= rules.POISON_DEATHS:
                run.state, run.wake_at = RunState.POISONED, None
        unit.hint.due = bool(mine)
        return len(mine)

    @asynccontextmanager
    async def heartbeat(self, worker_id: str) -> AsyncIterator[Heartbeat]:
        self._tables.locks.add(worker_id)
        try:
            yield MemoryHeartbeat(self, worker_id)
        finally:
            self._tables.locks.discard(worker_id)

    @verb
    def claim(self, unit: UnitOfWork, worker: WorkerInfo, limit: int, room: Mapping[str, int] | None = None) -> Claim:
        if not unit.tables.is_live(worker.worker_id, unit.now):
            return Claim()
        rows, held, again_at = claim(unit, worker, limit, room)
        timed_out = time_out(unit, left_behind(unit))
        limited = [queue for queue in worker.queues if queue in unit.tables.queues] if held else []
        return Claim([self.stored_run(row) for row in rows], held, again_at, limited, timed_out)

    @verb
    def commit(self, unit: UnitOfWork, worker_id: str, changes: Sequence[Change]) -> dict[int, Verdict | list[Refusal]]:
        return Commit(unit, worker_id).write(changes)

    async def hand_over(
        self, worker: WorkerInfo, changes: Sequence[Change], limit: int
    ) -> tuple[dict[int, Verdict | list[Refusal]], Claim]:
        return await commit_then_claim(self, worker, changes, limit)

    def transact(self, seconds: float) -> Transaction:
        return MemoryTransaction(self.transaction, seconds)

    def why_not_transactional(self, is_async: bool) -> str:
        return ""

    @verb
    def close_run(
        self,
        unit: UnitOfWork,
        run_id: RunId,
        head: int,
        entry: Entry,
        state: RunState,
        reason: str,
        act: Act | None = None,
    ) -> bool:
        row = unit.row(run_id)
        if not row.is_open or row.run.head != head:
            return False
        record(unit, act, [changed(row.run, state)])
        unit.close_from_outside(row, entry, state, reason)
        return True
