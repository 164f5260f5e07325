"""The SQLite store: one file, any number of processes on one machine."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from batuta.clock import Clock
from batuta.errors import SchemaMismatch
from batuta.failpoints import failpoint
from batuta.ids import RunId
from batuta.journal.audit import Act
from batuta.journal.entries import Entry
from batuta.journal.records import (
    Change,
    Claim,
    Hint,
    Message,
    NewRun,
    Refusal,
    Run,
    StartOutcome,
    Verdict,
    WorkerInfo,
)
from batuta.journal.states import RunState
from batuta.journal.store import Heartbeat, Transaction
from batuta.stores.contract import rules
from batuta.stores.contract.slot_handover import commit_then_claim
from batuta.stores.sqlite import claims, starts
from batuta.stores.sqlite.activity_transaction import SqliteTransaction
from batuta.stores.sqlite.audit import AuditVerbs
from batuta.stores.sqlite.bulk_operations import BulkVerbs
from batuta.stores.sqlite.bus.messages import BusVerbs
from batuta.stores.sqlite.caller_transaction import CallerTransactionVerbs
from batuta.stores.sqlite.commits import Answers, commit_batch
from batuta.stores.sqlite.cross_run_effects import are_small
from batuta.stores.sqlite.database import schema
from batuta.stores.sqlite.database.backup import copied
from batuta.stores.sqlite.database.claimed_rows import Owned
from batuta.stores.sqlite.database.connection import Faults
from batuta.stores.sqlite.database.files import WorkerLocks, prepare
from batuta.stores.sqlite.database.rows import worker_row
from batuta.stores.sqlite.database.unit_of_work import UnitOfWork
from batuta.stores.sqlite.database.writer import Work, Writer
from batuta.stores.sqlite.dead_letters import DeadLetterVerbs
from batuta.stores.sqlite.fair_claim import Rotations
from batuta.stores.sqlite.fast import bulk_starts
from batuta.stores.sqlite.fast.claim_cursor import ClaimCursors
from batuta.stores.sqlite.fast.commit_closes import CommitCloses, are_ends
from batuta.stores.sqlite.flows.flows import FlowVerbs
from batuta.stores.sqlite.forks import ForkVerbs
from batuta.stores.sqlite.heartbeat import SqliteHeartbeat
from batuta.stores.sqlite.hints import Watcher
from batuta.stores.sqlite.listing import ListingVerbs
from batuta.stores.sqlite.marks import MarkVerbs
from batuta.stores.sqlite.queues import QueueVerbs
from batuta.stores.sqlite.quotas import QuotaVerbs
from batuta.stores.sqlite.reading import ReadingVerbs
from batuta.stores.sqlite.reencryption import RewritingVerbs
from batuta.stores.sqlite.resilience.partners import PartnerVerbs
from batuta.stores.sqlite.retention import RetentionVerbs
from batuta.stores.sqlite.schedules import ScheduleVerbs
from batuta.stores.sqlite.server.api_keys import ApiKeyVerbs
from batuta.stores.sqlite.server.documents import DocumentVerbs
from batuta.stores.sqlite.server.requests import RequestVerbs

SMALL_CHANGES = 2
"""A commit of no more changes may be synced on the event loop's thread."""
MANY_STARTS = 200
"""More of them than that are written in a thread."""
MANY_DUE = 200
"""Runs that take long enough to claim for that to be worth two changes of the thread."""


class SqliteStore(
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
    QueueVerbs,
    ReadingVerbs,
    ListingVerbs,
    CallerTransactionVerbs,
):
    """A `Store` in a SQLite file."""

    poll_seconds: float | None = 1.0
    hands_over = False

    def __init__(self, path: str | Path, namespace: str = "default", clock: Clock | None = None) -> None:
        super().__init__(path, namespace, clock)
        self._locks = WorkerLocks(self.path)
        self._rotations: Rotations = {}
        self._claim_cursors = ClaimCursors()
        self._many_due = False
        """Whether the last claim brought many: as many may be left."""
        self._watcher = Watcher(self._writer, self._listeners, self.unit)

    @property
    def faults(self) -> Faults | None:
        """Testing only: called before each step of the driver, and may raise its errors."""
        return self._writer.faults

    @faults.setter
    def faults(self, faults: Faults | None) -> None:
        self._writer.faults = self._readers.faults = faults

    # -- open and close

    async def open(self) -> None:
        await asyncio.to_thread(self._open)
        self._readers.open()
        self._listeners.bind()
        self._watcher.open()

    def _open(self) -> None:
        if not self.path.exists():
            raise SchemaMismatch(f"there is no database at {str(self.path)!r} yet: run `batuta migrate`")
        prepare(self.path)
        self._writer.open()
        try:
            self._writer.write_blocking(schema.check)
        except BaseException:
            self._writer.close()
            raise

    async def close(self) -> None:
        self._watcher.close()
        self._listeners.unbind()
        self._readers.stop()
        await asyncio.to_thread(self._writer.close, self._readers.close)

    async def migrate(self, *, plan: bool = False, repair: bool = False) -> list[str]:
        return await asyncio.to_thread(self._plan if plan else self._migrate)

    def _plan(self) -> list[str]:
        if not self.path.exists():
            return [migration.name for migration in schema.MIGRATIONS]
        return self._apart(schema.plan)

    def _migrate(self) -> list[str]:
        prepare(self.path)
        return self._apart(lambda cursor: schema.migrate(cursor, self.clock_now()))

    def _apart(self, work: Callable[[sqlite3.Cursor], list[str]]) -> list[str]:
        """Work in a transaction on a separate connection: the store may not be open yet."""
        writer = Writer(self.path)
        writer.open()
        try:
            return writer.write_blocking(work)
        finally:
            writer.close()

    def copied_to(self, target: Path) -> AbstractContextManager[Path]:
        """Copy the file while others write to it: a draft to look at, which becomes `target` at the block's end."""
        return copied(self.path, target)

    # -- time and hints

    def keyed(self, text: str) -> str:
        return text

    async def now(self) -> int:
        return self.clock_now()

    def listen(self, callback: Callable[[Hint], None]) -> Callable[[], None]:
        return self._watcher.listen(callback)

    # -- runs come in

    async def start(self, run: NewRun, message: Message | None = None) -> tuple[Run, bool]:
        if message is None:
            return rules.started((await self.start_many([run]))[0])
        return await self._write(lambda unit: starts.start_and_send(unit, run, message), small=True)

    async def start_many(self, runs: Sequence[NewRun], after: NewRun | None = None) -> list[StartOutcome]:
        runs = list(runs)  # no one waits for the lock while they are made
        return await self._write(
            lambda unit: bulk_starts.start_many(unit, runs, after),
            small=len(runs) <= SMALL_CHANGES,
            aside=len(runs) > MANY_STARTS,
        )

    async def send(self, run_id: RunId, message: Message, act: Act | None = None) -> bool:
        return await self._write(lambda unit: starts.send(unit, run_id, message, act), small=True)

    async def unpark(self, run_id: RunId, act: Act | None = None) -> bool:
        return await self._write(lambda unit: starts.unpark(unit, run_id, act), small=True)

    # -- runs are worked on

    async def register(self, worker: WorkerInfo) -> int:
        now = self.clock_now()
        row = worker_row(self.namespace, worker, now)
        await self._write(lambda unit: unit.change("register", row), small=True)
        return now

    async def retire(self, worker_id: str) -> None:
        def work(unit: UnitOfWork) -> None:
            unit.change("forget_worker", (unit.namespace, worker_id))
            unit.wake("release_all", (unit.now, unit.namespace, worker_id))

        await self._write(work)
        self._locks.remove(worker_id)

    async def give_up(self, worker_id: str, run_ids: Sequence[RunId], reason: str) -> int:
        shared = {"namespace": self.namespace, "owner": worker_id, "reason": reason, "now": self.clock_now()}
        shared |= {"poison": rules.POISON_DEATHS}
        rows = [shared | {"run_id": run_id.bytes} for run_id in run_ids]
        freed = await self._write(lambda unit: unit.change_each("give_up", rows))
        self.tell(Hint(due=freed > 0))
        return max(freed, 0)

    @asynccontextmanager
    async def heartbeat(self, worker_id: str) -> AsyncIterator[Heartbeat]:
        lock = self._locks.hold(worker_id)
        try:
            yield SqliteHeartbeat(self, self._locks, lock, worker_id)
        finally:
            lock.close()

    async def claim(self, worker: WorkerInfo, limit: int, room: Mapping[str, int] | None = None) -> Claim:
        # Asked first, because looking costs no commit.
        found = self._read(lambda unit: claims.look(unit, worker, room or {}, self._rotations, self._claim_cursors))
        if found is not None:
            self._limited = self._limited or found.held
            return found
        owned = await self._own(worker, limit, room or {})
        self._limited = self._limited or owned.held
        self._many_due = len(owned.rows) >= MANY_DUE
        stored_runs, unread = owned.stored_runs()
        if unread:
            await self._load_all(stored_runs, unread)
        return Claim(stored_runs, owned.held, owned.again_at)

    def _own(self, worker: WorkerInfo, limit: int, room: Mapping[str, int]) -> Coroutine[Any, Any, Owned]:
        def choose(cursor: sqlite3.Cursor) -> Owned:
            return claims.choose(self.unit(cursor), worker, limit, room, self._rotations, self._claim_cursors)

        def own(cursor: sqlite3.Cursor) -> Owned:
            owned = choose(cursor)
            claims.own(cursor, owned)
            return owned

        if self._many_due:
            return self._writer.write(choose, last=claims.own)
        return self._writer.write(own, small=limit <= SMALL_CHANGES)

    async def hasten(self, until: int, limit: int, *, asleep: int = 0) -> int:
        values = {"namespace": self.namespace, "now": self.clock_now(), "until": until, "limit": limit}
        values["asleep"] = until + asleep
        hastened = await self._write(lambda unit: unit.wake("hasten", values))
        self._claim_cursors = ClaimCursors()  # what claims know of is ahead of the clock
        return hastened

    async def due_at(self, worker: WorkerInfo) -> int | None:
        return self._read(lambda unit: claims.due_at(unit, worker))

    async def commit(self, worker_id: str, changes: Sequence[Change]) -> dict[int, Verdict | list[Refusal]]:
        if not changes:
            return {}

        def work(cursor: sqlite3.Cursor) -> tuple[Answers, Hint]:
            unit = self.unit(cursor)
            answers = commit_batch(unit, worker_id, changes)
            failpoint("commit.inside")
            return answers, unit.hint

        if are_ends(changes):
            answers, hint = await self._end_all(worker_id, changes, work)
        else:
            answers, hint = await self._writer.write(work, small=len(changes) <= SMALL_CHANGES and are_small(changes))
        failpoint("commit.after")
        self.announce(hint, changes)
        return answers

    async def hand_over(
        self, worker: WorkerInfo, changes: Sequence[Change], limit: int
    ) -> tuple[dict[int, Verdict | list[Refusal]], Claim]:
        return await commit_then_claim(self, worker, changes, limit)

    async def _end_all(
        self, worker_id: str, changes: Sequence[Change], one_by_one: Work[tuple[Answers, Hint]]
    ) -> tuple[Answers, Hint]:
        ends = CommitCloses(self.namespace, worker_id, changes, self.clock_now())
        result: tuple[Answers, Hint] = {}, Hint(closed=ends.closed)

        def write(cursor: sqlite3.Cursor, _: None) -> None:
            nonlocal result
            unit = self.unit(cursor)
            if ends.write(unit):
                failpoint("commit.inside")
            else:
                unit.start_over()
                result = one_by_one(cursor)

        await self._writer.write(lambda _: None, last=write)
        return result

    def transact(self, seconds: float) -> Transaction:
        return SqliteTransaction(self, self._writer, seconds)

    def why_not_transactional(self, is_async: bool) -> str:
        if not is_async:
            return ""
        return (
            "`async def`: on SQLite its open transaction blocks all other writers, so it must not wait for other "
            "things; define it with `def`"
        )

    async def close_run(
        self, run_id: RunId, head: int, entry: Entry, state: RunState, reason: str, act: Act | None = None
    ) -> bool:
        closed = await self._write(lambda unit: starts.close(unit, run_id, head, entry, state, reason, act), small=True)
        if closed and self._limited:  # asked after the commit: a claim may have come meanwhile, and found no slot
            self.tell(Hint(due=True))
        return closed
