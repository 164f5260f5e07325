"""The SQLite store: one file, any number of processes on one machine."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from batuta.clock import SECOND, Clock, SystemClock
from batuta.errors import SchemaMismatch
from batuta.failpoints import failpoint
from batuta.ids import RunId
from batuta.journal.audit import Act, Changed
from batuta.journal.bus.messages import NewMessage
from batuta.journal.entries import Entry
from batuta.journal.queues import LIMITS, QueueInfo, QueueLimits, StoreGauges
from batuta.journal.records import (
    Attempt,
    Change,
    Claim,
    Hint,
    Message,
    NewRun,
    Output,
    Page,
    Receipt,
    Refusal,
    Run,
    RunFilter,
    StartOutcome,
    StoredRun,
    Unread,
    Verdict,
    WorkerInfo,
    WorkerView,
)
from batuta.journal.states import RunState
from batuta.journal.store import Borrowed, CallerTransaction, Heartbeat, Transaction
from batuta.stores.contract import rules
from batuta.stores.contract.listeners import Listeners
from batuta.stores.contract.slot_handover import commit_then_claim
from batuta.stores.sqlite import claims, listing, queues, starts
from batuta.stores.sqlite.activity_transaction import SqliteTransaction
from batuta.stores.sqlite.audit import AuditVerbs, record
from batuta.stores.sqlite.bulk_operations import BulkVerbs
from batuta.stores.sqlite.bus.messages import BusVerbs, publish
from batuta.stores.sqlite.caller_transaction import CallerTransactions
from batuta.stores.sqlite.commits import Answers, commit_batch
from batuta.stores.sqlite.cross_run_effects import are_small
from batuta.stores.sqlite.database import schema
from batuta.stores.sqlite.database.backup import copied
from batuta.stores.sqlite.database.claimed_rows import Owned
from batuta.stores.sqlite.database.connection import Faults, Q
from batuta.stores.sqlite.database.files import WorkerLocks, prepare
from batuta.stores.sqlite.database.readers import Readers
from batuta.stores.sqlite.database.rows import worker_row, workers_of
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
from batuta.stores.sqlite.marks import MarkVerbs
from batuta.stores.sqlite.quotas import QuotaVerbs
from batuta.stores.sqlite.reading import JournalReader
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
):
    """A `Store` in a SQLite file."""

    poll_seconds: float | None = 1.0
    hands_over = False

    def __init__(self, path: str | Path, namespace: str = "default", clock: Clock | None = None) -> None:
        self.namespace = namespace
        self._path = Path(path).absolute()
        self._clock = clock or SystemClock()
        self._shift = 0
        self._writer = Writer(self._path)
        self._readers = Readers(self._path)
        self._journal_reader = JournalReader(self._readers, namespace)
        self._locks = WorkerLocks(self._path)
        self._listeners = Listeners()
        self._rotations: Rotations = {}
        self._claim_cursors = ClaimCursors()
        self._limited = False
        """Whether a limit has held something back: a freed slot may let another run in."""
        self._many_due = False
        """Whether the last claim brought many: as many may be left."""
        self._watcher = Watcher(self._writer, self._listeners, namespace)
        self._caller_transactions = CallerTransactions(self, self._path)

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
        if not self._path.exists():
            raise SchemaMismatch(f"there is no database at {str(self._path)!r} yet: run `batuta migrate`")
        prepare(self._path)
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
        if not self._path.exists():
            return [migration.name for migration in schema.MIGRATIONS]
        return self._apart(schema.plan)

    def _migrate(self) -> list[str]:
        prepare(self._path)
        return self._apart(lambda cursor: schema.migrate(cursor, self.clock_now()))

    def _apart(self, work: Callable[[sqlite3.Cursor], list[str]]) -> list[str]:
        """Work in a transaction on a separate connection: the store may not be open yet."""
        writer = Writer(self._path)
        writer.open()
        try:
            return writer.write_blocking(work)
        finally:
            writer.close()

    def copied_to(self, target: Path) -> AbstractContextManager[Path]:
        """Copy the file while others write to it: a draft to look at, which becomes `target` at the block's end."""
        return copied(self._path, target)

    def namespaces(self) -> list[str]:
        """All that have runs."""
        return self._readers.read(lambda connection: [name for (name,) in connection.execute(Q["namespaces"])])

    # -- time and hints

    def keyed(self, text: str) -> str:
        return text

    async def now(self) -> int:
        return self.clock_now()

    def clock_now(self) -> int:
        """The machine's clock, which all processes that can open the file share."""
        return self._clock.now() + self._shift

    def shift_clock(self, seconds: float) -> None:
        self._shift += round(seconds * SECOND)

    def listen(self, callback: Callable[[Hint], None]) -> Callable[[], None]:
        return self._watcher.listen(callback)

    def tell(self, hint: Hint) -> None:
        """Pass a hint on to this store's listeners, from any thread."""
        told = hint.due or hint.schedules or hint.partners or hint.bus
        if told or hint.messages or hint.closed or hint.answered:
            self._listeners.tell(hint)

    def timeline(self) -> str:
        """The file itself: another one under the same path has another history."""
        return "-".join(map(str, self._writer.identity or ()))

    # -- runs come in

    async def start(self, run: NewRun, message: Message | None = None) -> tuple[Run, bool]:
        if message is None:
            return rules.started((await self.start_many([run]))[0])
        now = self.clock_now()
        found, is_new, hint = await self._writer.write(
            lambda cursor: starts.start_and_send(cursor, self.namespace, run, message, now), small=True
        )
        self.tell(hint)
        return found, is_new

    async def start_many(self, runs: Sequence[NewRun], after: NewRun | None = None) -> list[StartOutcome]:
        runs, now = list(runs), self.clock_now()  # no one waits for the lock while they are made

        def work(cursor: sqlite3.Cursor) -> list[StartOutcome]:
            return bulk_starts.start_many(cursor, self.namespace, runs, after, now)

        small = len(runs) <= SMALL_CHANGES
        outcomes = await self._writer.write(work, small=small, aside=len(runs) > MANY_STARTS)
        # Also for an existing run: a debounced run may be due earlier now.
        self.tell(Hint(due=any(isinstance(outcome, tuple) for outcome in outcomes)))
        return outcomes

    async def enter(self, transaction: object, runs: Sequence[NewRun]) -> CallerTransaction:
        return self._caller_transactions.enter(transaction)

    def borrow(self, connection: object) -> Borrowed:
        return self._caller_transactions.borrow(connection)

    def start_on(self, cursor: sqlite3.Cursor, runs: Sequence[NewRun], after: NewRun | None) -> list[StartOutcome]:
        return bulk_starts.start_many(cursor, self.namespace, runs, after, self.clock_now())

    def send_on(self, cursor: sqlite3.Cursor, run_id: RunId, message: Message) -> Hint | None:
        return starts.send(cursor, self.namespace, run_id, message, self.clock_now())

    def publish_on(self, cursor: sqlite3.Cursor, messages: Sequence[NewMessage]) -> list[str]:
        return publish(cursor, self.namespace, messages, self.clock_now())

    async def send(self, run_id: RunId, message: Message, act: Act | None = None) -> bool:
        now = self.clock_now()
        hint = await self._writer.write(
            lambda cursor: starts.send(cursor, self.namespace, run_id, message, now, act), small=True
        )
        self.tell(hint or Hint())
        return hint is not None

    async def unpark(self, run_id: RunId, act: Act | None = None) -> bool:
        now = self.clock_now()
        unparked = await self._writer.write(
            lambda cursor: starts.unpark(cursor, self.namespace, run_id, now, act), small=True
        )
        self.tell(Hint(due=unparked))
        return unparked

    # -- runs are worked on

    async def register(self, worker: WorkerInfo) -> int:
        now = self.clock_now()
        row = worker_row(self.namespace, worker, now)
        await self._writer.write(lambda cursor: cursor.execute(Q["register"], row), small=True)
        return now

    async def retire(self, worker_id: str) -> None:
        now = self.clock_now()

        def work(cursor: sqlite3.Cursor) -> bool:
            cursor.execute(Q["forget_worker"], (self.namespace, worker_id))
            return cursor.execute(Q["release_all"], (now, self.namespace, worker_id)).rowcount > 0

        self.tell(Hint(due=await self._writer.write(work)))
        self._locks.remove(worker_id)

    async def give_up(self, worker_id: str, run_ids: Sequence[RunId], reason: str) -> int:
        shared = {"namespace": self.namespace, "owner": worker_id, "reason": reason, "now": self.clock_now()}
        shared |= {"poison": rules.POISON_DEATHS}
        rows = [shared | {"run_id": run_id.bytes} for run_id in run_ids]
        freed = await self._writer.write(lambda cursor: cursor.executemany(Q["give_up"], rows).rowcount)
        self.tell(Hint(due=freed > 0))
        return max(freed, 0)

    def heartbeat(self, worker_id: str) -> AbstractAsyncContextManager[Heartbeat]:
        return self._beating(worker_id)

    @asynccontextmanager
    async def _beating(self, worker_id: str) -> AsyncIterator[Heartbeat]:
        lock = self._locks.hold(worker_id)
        try:
            yield SqliteHeartbeat(self, self._writer, self._locks, lock, worker_id)
        finally:
            lock.close()

    async def claim(self, worker: WorkerInfo, limit: int, room: Mapping[str, int] | None = None) -> Claim:
        # Asked first, because looking costs no commit.
        found = self._readers.read(
            lambda connection: claims.look(
                connection, self.namespace, worker, room or {}, self._rotations, self._claim_cursors, self.clock_now()
            )
        )
        if found is not None:
            self._limited = self._limited or found.held
            return found
        owned = await self._own(worker, limit, room or {})
        self._limited = self._limited or owned.held
        self._many_due = len(owned.rows) >= MANY_DUE
        stored_runs, unread = owned.stored_runs()
        if unread:
            await self._journal_reader.load_all(stored_runs, unread)
        return Claim(stored_runs, owned.held, owned.again_at)

    def _own(self, worker: WorkerInfo, limit: int, room: Mapping[str, int]) -> Coroutine[Any, Any, Owned]:
        def choose(cursor: sqlite3.Cursor) -> Owned:
            now = self.clock_now()
            return claims.choose(cursor, self.namespace, worker, limit, room, self._rotations, self._claim_cursors, now)

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
        hastened = await self._writer.write(lambda cursor: cursor.execute(Q["hasten"], values).rowcount)
        self._claim_cursors = ClaimCursors()  # what claims know of is ahead of the clock
        self.tell(Hint(due=hastened > 0))
        return hastened

    async def due_at(self, worker: WorkerInfo) -> int | None:
        return self._readers.read(
            lambda connection: claims.due_at(connection, self.namespace, worker, self.clock_now())
        )

    # -- queues

    async def limit_queue(
        self, name: str, limits: QueueLimits, only: Collection[str] = LIMITS, act: Act | None = None
    ) -> None:
        now = self.clock_now()

        def work(cursor: sqlite3.Cursor) -> None:
            queues.limit(cursor, self.namespace, name, limits, only)
            record(cursor, self.namespace, now, act, [Changed(target=name)])

        await self._writer.write(work, small=True)
        self.tell(Hint(due=True))

    async def pause_queue(self, name: str, paused: bool, reason: str = "", act: Act | None = None) -> None:
        now = self.clock_now()

        def work(cursor: sqlite3.Cursor) -> None:
            queues.pause(cursor, self.namespace, name, paused, reason)
            record(cursor, self.namespace, now, act, [Changed(target=name)])

        await self._writer.write(work, small=True)
        self.tell(Hint(due=not paused))

    async def queues(self) -> list[QueueInfo]:
        return await self._readers.read_apart(
            lambda connection: queues.views(connection, self.namespace, self.clock_now())
        )

    # -- runs are worked on, and read

    async def unread(self, run_ids: Sequence[RunId], *, after: int = 0) -> dict[RunId, Unread]:
        return self._journal_reader.unread(run_ids, after)

    async def load(self, run_id: RunId) -> StoredRun:
        return await self._journal_reader.load(run_id)

    async def commit(self, worker_id: str, changes: Sequence[Change]) -> dict[int, Verdict | list[Refusal]]:
        if not changes:
            return {}
        now = self.clock_now()

        def work(cursor: sqlite3.Cursor) -> tuple[Answers, Hint]:
            result = commit_batch(cursor, self.namespace, worker_id, changes, now)
            failpoint("commit.inside")
            return result

        if are_ends(changes):
            answers, hint = await self._end_all(worker_id, changes, now, work)
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
        self, worker_id: str, changes: Sequence[Change], now: int, one_by_one: Work[tuple[Answers, Hint]]
    ) -> tuple[Answers, Hint]:
        ends = CommitCloses(self.namespace, worker_id, changes, now)
        result: tuple[Answers, Hint] = {}, Hint(closed=ends.closed)

        def write(cursor: sqlite3.Cursor, _: None) -> None:
            nonlocal result
            if not ends.write(cursor):
                cursor.execute("ROLLBACK")
                cursor.execute("BEGIN IMMEDIATE")
                result = one_by_one(cursor)
            else:
                failpoint("commit.inside")

        await self._writer.write(lambda _: None, last=write)
        return result

    def announce(self, hint: Hint, changes: Sequence[Change]) -> None:
        """Tell listeners of changes that are durable now."""
        hint.due = hint.due or (self._limited and any(change.move is not None for change in changes))
        self.tell(hint)

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
        now = self.clock_now()
        hint = await self._writer.write(
            lambda cursor: starts.close(cursor, self.namespace, run_id, head, entry, state, reason, now, act),
            small=True,
        )
        if hint is not None:
            hint.due = hint.due or self._limited
        self.tell(hint or Hint())
        return hint is not None

    # -- reading

    async def get(self, id: str) -> Run:
        return self._journal_reader.run_by_id(id)

    async def get_run(self, run_id: RunId) -> Run:
        return self._journal_reader.run(run_id)

    async def journal(self, run_id: RunId, after: int = -1, limit: int = 10_000) -> list[Entry]:
        return await self._journal_reader.journal(run_id, after, limit)

    async def epochs(self, run_id: RunId) -> list[int]:
        return self._journal_reader.epochs(run_id)

    async def attempts(self, run_id: RunId, seq: int | None = None) -> list[Attempt]:
        return self._journal_reader.attempts(run_id, seq)

    async def outputs(self, run_id: RunId) -> list[Output]:
        return self._journal_reader.outputs(run_id)

    async def answers(self, asked: Sequence[tuple[RunId, str]]) -> list[Output | None]:
        return self._journal_reader.answers(asked)

    async def received(self, chain_id: RunId, after: str = "", limit: int = 1_000) -> list[Receipt]:
        return self._journal_reader.received(chain_id, after, limit)

    async def closed_among(self, run_ids: Sequence[RunId]) -> list[RunId]:
        return self._journal_reader.closed_among(run_ids)

    async def outcome(self, run_id: RunId) -> tuple[Run, Entry | None]:
        return self._journal_reader.outcome(run_id)

    async def list_runs(self, where: RunFilter, cursor: str | None = None, limit: int = 50) -> Page:
        before = listing.decode_cursor(cursor)
        return await self._readers.read_soon(
            lambda connection: listing.list_runs(connection, self.namespace, where, before, limit)
        )

    async def count_runs(self, where: RunFilter) -> int:
        return sum((await self.count_states(where)).values())

    async def count_states(self, where: RunFilter) -> dict[RunState, int]:
        return await self._readers.read_apart(
            lambda connection: listing.count_states(connection, self.namespace, where)
        )

    async def gauges(self) -> StoreGauges:
        now = self.clock_now()
        return await self._readers.read_apart(lambda connection: listing.gauges(connection, self.namespace, now))

    async def workers(self) -> list[WorkerView]:
        rows = self._readers.read(lambda connection: connection.execute(Q["workers"], (self.namespace,)).fetchall())
        return workers_of(rows, self.clock_now())
