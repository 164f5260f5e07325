"""The verbs of the store in memory."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from uuid import UUID

from msgspec.structs import replace

from batuta.clock import SECOND
from batuta.errors import InvalidInput, RunClosed, UnknownRun, WrongTransaction
from batuta.ids import RunId
from batuta.journal.acts import Act
from batuta.journal.entries import Entry
from batuta.journal.records import (
    Attempt,
    Change,
    Claim,
    Hint,
    Message,
    NewRun,
    Output,
    Page,
    Refusal,
    Run,
    RunFilter,
    StartOutcome,
    Tape,
    Verdict,
    WorkerInfo,
    WorkerView,
)
from batuta.journal.states import CLOSED, PARKED, RunState
from batuta.journal.store import Borrowed, Guest, Heart, Transaction
from batuta.stores.handing import commit_then_claim
from batuta.stores.listeners import Listeners
from batuta.stores.memory.audit import AuditVerbs, changed, record
from batuta.stores.memory.commits import Commit
from batuta.stores.memory.forks import ForkVerbs
from batuta.stores.memory.heart import MemoryHeart
from batuta.stores.memory.holding import HoldingVerbs
from batuta.stores.memory.intake import find_or_begin, start_many
from batuta.stores.memory.letters import LetterVerbs
from batuta.stores.memory.moment import Moment
from batuta.stores.memory.queues import QueueVerbs, claim, left_behind, time_out
from batuta.stores.memory.quotas import QuotaVerbs
from batuta.stores.memory.retention import RetentionVerbs
from batuta.stores.memory.rewriting import RewritingVerbs
from batuta.stores.memory.schedules import ScheduleVerbs
from batuta.stores.memory.tables import MemoryDatabase, Registration, Room, Row
from batuta.stores.memory.transactions import MemoryTransaction

_NO_TRANSACTIONS = "memory:// has no transactions that others can begin: use SQLite or PostgreSQL, also in this test"


class MemoryStore(
    QueueVerbs,
    ScheduleVerbs,
    ForkVerbs,
    LetterVerbs,
    RetentionVerbs,
    QuotaVerbs,
    HoldingVerbs,
    AuditVerbs,
    RewritingVerbs,
):
    """A `Store` in memory."""

    poll_seconds: float | None = None
    hands_over = False

    def __init__(self, database: MemoryDatabase | None = None, namespace: str = "default") -> None:
        self.namespace = namespace
        self._database = database or MemoryDatabase()
        self._room = self._database.rooms.setdefault(namespace, Room())
        self._listeners = Listeners()
        self._shift = 0

    async def open(self) -> None:
        self._listeners.bind()
        self._database.listeners.append((self.namespace, self._listeners))

    async def close(self) -> None:
        self._listeners.unbind()
        everyone = self._database.listeners
        everyone[:] = [pair for pair in everyone if pair[1] is not self._listeners]

    async def migrate(self, *, plan: bool = False) -> list[str]:
        return []

    async def now(self) -> int:
        return self._now()

    def shift_clock(self, seconds: float) -> None:
        self._shift += round(seconds * SECOND)

    def listen(self, callback: Callable[[Hint], None]) -> Callable[[], None]:
        return self._listeners.add(callback)

    @property
    def timeline(self) -> str:
        return self._database.timeline

    @contextmanager
    def transaction(self) -> Iterator[Moment]:
        """All of a verb happens alone, and at one moment."""
        with self._database.lock:
            moment = Moment(self._room, self.namespace, self._now(), self._database.numbers)
            yield moment
            self._tell(moment.hint)

    def _now(self) -> int:
        return self._database.clock.now() + self._shift

    def _tell(self, hint: Hint) -> None:
        if not (hint.due or hint.messages or hint.closed or hint.answered or hint.schedules):
            return
        for namespace, listeners in list(self._database.listeners):
            if namespace == self.namespace:
                listeners.tell(hint)

    # -- runs come in

    async def start_many(self, runs: Sequence[NewRun], after: NewRun | None = None) -> list[StartOutcome]:
        runs = list(runs)  # that may raise: not after some of them were written
        with self.transaction() as moment:
            return start_many(moment, runs, after)

    async def enter(self, transaction: object, runs: Sequence[NewRun]) -> Guest:
        raise WrongTransaction(_NO_TRANSACTIONS)

    def borrow(self, connection: object) -> Borrowed:
        raise WrongTransaction(_NO_TRANSACTIONS)

    async def start(self, run: NewRun, message: Message | None = None) -> tuple[Run, bool]:
        with self.transaction() as moment:
            row, is_new = find_or_begin(moment, run)
            if message is not None:
                self._send(moment, row, message)
            return row.snapshot(), is_new

    async def send(self, run_id: RunId, message: Message, act: Act | None = None) -> bool:
        with self.transaction() as moment:
            return self._send(moment, moment.row(run_id), message, act)

    def _send(self, moment: Moment, row: Row, message: Message, act: Act | None = None) -> bool:
        if message.message_id in self._room.inbox(row.run.chain_id).known:
            return False
        target = self._room.open_row_of_chain(row)
        if target is None:
            raise RunClosed(row.run.id, row.run.state)
        record(moment, act, [changed(target.run, target.run.state)])
        return moment.deliver(target, message)

    async def unpark(self, run_id: RunId, act: Act | None = None) -> bool:
        with self.transaction() as moment:
            run = moment.row(run_id).run
            if run.state not in PARKED:
                return False
            record(moment, act, [changed(run, RunState.WAITING)])
            run.state, run.wake_at, run.deaths, run.reason, run.failed_code = RunState.WAITING, moment.now, 0, "", []
            moment.hint.due = True
            return True

    # -- runs are worked on

    async def register(self, worker: WorkerInfo) -> int:
        with self.transaction() as moment:
            copy = replace(worker, queues=list(worker.queues), code=dict(worker.code))
            self._room.workers[worker.worker_id] = Registration(copy, moment.now + worker.lease)
            return moment.now

    async def retire(self, worker_id: str) -> None:
        with self.transaction() as moment:
            self._room.workers.pop(worker_id, None)
            mine = [row for row in self._room.open.values() if row.run.owner == worker_id]
            for row in mine:
                moment.set_free(row)
            moment.hint.due = bool(mine)

    def heart(self, worker_id: str) -> AbstractAsyncContextManager[Heart]:
        return self._beating(worker_id)

    @asynccontextmanager
    async def _beating(self, worker_id: str) -> AsyncIterator[Heart]:
        self._room.locks.add(worker_id)
        try:
            yield MemoryHeart(self, worker_id)
        finally:
            self._room.locks.discard(worker_id)

    async def claim(self, worker: WorkerInfo, limit: int, room: Mapping[str, int] | None = None) -> Claim:
        with self.transaction() as moment:
            if not self._room.is_live(worker.worker_id, moment.now):
                return Claim()
            rows, held, again_at = claim(moment, worker, limit, room)
            time_out(moment, left_behind(moment))
            limited = [queue for queue in worker.queues if queue in self._room.queues] if held else []
            return Claim([self._tape(row) for row in rows], held, again_at, limited)

    async def unread(self, run_ids: Sequence[RunId]) -> dict[RunId, tuple[int, list[Message]]]:
        with self.transaction():
            rows = [self._room.rows[run_id] for run_id in run_ids if run_id in self._room.rows]
            return {
                row.run.run_id: (row.run.epoch if row.is_open else -1, self._room.unread(row.run.chain_id))
                for row in rows
            }

    async def load(self, run_id: RunId) -> Tape:
        with self.transaction() as moment:
            return self._tape(moment.row(run_id))

    def _tape(self, row: Row) -> Tape:
        attempts = [row.attempts[key] for key in sorted(row.attempts)]
        return Tape(row.snapshot(), list(row.journal), self._room.unread(row.run.chain_id), attempts)

    async def commit(self, worker_id: str, changes: Sequence[Change]) -> dict[int, Verdict | list[Refusal]]:
        with self.transaction() as moment:
            return Commit(moment, worker_id).write(changes)

    async def hand_over(
        self, worker: WorkerInfo, changes: Sequence[Change], limit: int
    ) -> tuple[dict[int, Verdict | list[Refusal]], Claim]:
        return await commit_then_claim(self, worker, changes, limit)

    def transact(self, seconds: float) -> Transaction:
        return MemoryTransaction(self, seconds)

    def why_not_transactional(self, is_async: bool) -> str:
        return ""

    async def close_run(
        self, run_id: RunId, head: int, entry: Entry, state: RunState, reason: str, act: Act | None = None
    ) -> bool:
        with self.transaction() as moment:
            row = moment.row(run_id)
            if not row.is_open or row.run.head != head:
                return False
            record(moment, act, [changed(row.run, state)])
            moment.close_from_outside(row, entry, state, reason)
            return True

    # -- reading

    async def get(self, id: str) -> Run:
        with self.transaction():
            row = self._room.current_row(id)
            if row is None:
                raise UnknownRun(id, self.namespace)
            return row.snapshot()

    async def get_run(self, run_id: RunId) -> Run:
        with self.transaction() as moment:
            return moment.row(run_id).snapshot()

    async def journal(self, run_id: RunId, after: int = -1, limit: int = 10_000) -> list[Entry]:
        with self.transaction():
            row = self._room.rows.get(run_id)
            return row.journal[after + 1 : after + 1 + limit] if row is not None else []

    async def epochs(self, run_id: RunId) -> list[int]:
        with self.transaction():
            row = self._room.rows.get(run_id)
            return list(row.epochs) if row is not None else []

    async def attempts(self, run_id: RunId, seq: int | None = None) -> list[Attempt]:
        with self.transaction():
            row = self._room.rows.get(run_id)
            found = row.attempts if row is not None else {}
            return [found[key] for key in sorted(found) if seq is None or key[0] == seq]

    async def outputs(self, run_id: RunId) -> list[Output]:
        with self.transaction():
            row = self._room.rows.get(run_id)
            published = row.published if row is not None else {}
            return [published[name] for name in sorted(published)]

    async def answers(self, asked: Sequence[tuple[RunId, str]]) -> list[Output | None]:
        with self.transaction():
            return [self._room.answers.get(each) for each in asked]

    async def closed_among(self, run_ids: Sequence[RunId]) -> list[RunId]:
        with self.transaction():
            rows = [self._room.rows[run_id] for run_id in run_ids if run_id in self._room.rows]
            return [row.run.run_id for row in rows if row.run.state in CLOSED]

    async def outcome(self, run_id: RunId) -> tuple[Run, Entry | None]:
        with self.transaction() as moment:
            row = moment.row(run_id)
            return row.snapshot(), row.journal[-1] if row.journal else None

    async def list_runs(self, where: RunFilter, cursor: str | None = None, limit: int = 50) -> Page:
        before = None if cursor is None else _cursor(cursor)
        with self.transaction():
            found = sorted(self._matching(where), key=lambda row: row.run.run_id, reverse=True)
            rest = [row.snapshot() for row in found if before is None or row.run.run_id < before]
        page = rest[:limit]
        return Page(page, str(page[-1].run_id) if len(rest) > limit else None)

    async def count_runs(self, where: RunFilter) -> int:
        with self.transaction():
            return len(self._matching(where))

    async def workers(self) -> list[WorkerView]:
        with self.transaction() as moment:
            return [_view(self._room.workers[worker_id], moment.now) for worker_id in sorted(self._room.workers)]

    def _matching(self, where: RunFilter) -> list[Row]:
        return [row for row in self._room.rows.values() if _matches(where, row.run)]


def _view(known: Registration, now: int) -> WorkerView:
    worker = known.worker
    return WorkerView(
        worker_id=worker.worker_id,
        host=worker.host,
        pid=worker.pid,
        queues=list(worker.queues),
        code=dict(worker.code),
        lease_until=known.lease_until,
        live=known.lease_until > now,
    )


def _matches(where: RunFilter, run: Run) -> bool:
    tags = json.loads(run.tags) if where.tags else {}
    return (
        (not where.states or run.state in where.states)
        and where.name in (None, run.name)
        and where.kind in (None, run.kind)
        and where.queue in (None, run.queue)
        and (where.id_prefix is None or run.id.startswith(where.id_prefix))
        and all(tags.get(key) == value for key, value in where.tags)
        and where.flow_key in (None, run.flow_key)
        and where.parent in (None, run.parent_run_id)
        and (where.created_after is None or run.created_at > where.created_after)
        and (where.created_before is None or run.created_at < where.created_before)
    )


def _cursor(text: str) -> RunId:
    try:
        return UUID(text)
    except ValueError:
        raise InvalidInput(f"{text!r} is no cursor: pass the one that the page before came with") from None
