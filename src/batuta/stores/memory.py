"""The reference store: dictionaries under one lock. What it does is what the other stores must do."""

from __future__ import annotations

import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager

from msgspec import Struct, field
from msgspec.structs import replace

from batuta.clock import SECOND, Clock, SystemClock
from batuta.errors import AlreadyStarted, RunClosed, UnknownRun
from batuta.ids import RunId, new_message_id
from batuta.journal.entries import Entry
from batuta.journal.records import (
    Attempt,
    Change,
    Hint,
    IfExists,
    Message,
    Move,
    NewRun,
    Page,
    Pulse,
    Run,
    RunFilter,
    StartOutcome,
    Tape,
    Verdict,
    WorkerInfo,
    WorkerView,
)
from batuta.journal.states import CLOSED, PARKED, RunState
from batuta.journal.store import Heart
from batuta.stores import rules
from batuta.stores.listeners import Listeners
from batuta.stores.memory_lists import cursor_of, matches


class Row(Struct):
    """A run with all that belongs to it."""

    run: Run
    claimed_head: int
    journal: list[Entry] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    attempts: dict[tuple[int, int], Attempt] = field(default_factory=dict)

    def snapshot(self) -> Run:
        return replace(self.run, failed_code=list(self.run.failed_code))

    @property
    def is_suspect(self) -> bool:
        return rules.is_suspect(self.run.deaths, self.run.head, self.claimed_head)

    def write(self, entries: Sequence[Entry], epoch: int) -> None:
        for entry in entries:
            if entry.ord != len(self.journal):
                raise ValueError(f"entry {entry.ord} of run {self.run.run_id} does not follow {self.run.head}")
            self.journal.append(entry)
            self.epochs.append(epoch)
        self.run.head = len(self.journal) - 1


class Letter(Struct):
    """A message in the inbox."""

    message: Message
    consumed: bool = False


class Registration(Struct):
    """A worker's row."""

    worker: WorkerInfo
    lease_until: int


class Room(Struct):
    """The tables of one namespace."""

    rows: dict[RunId, Row] = field(default_factory=dict)
    open: dict[RunId, Row] = field(default_factory=dict)
    """Those of `rows` that are not closed: what claims and heartbeats look through."""
    current: dict[str, RunId] = field(default_factory=dict)
    inbox: dict[RunId, dict[str, Letter]] = field(default_factory=dict)
    """By chain, then by message id."""
    workers: dict[str, Registration] = field(default_factory=dict)
    locks: set[str] = field(default_factory=set)
    """Workers whose heart is open."""

    def unread(self, chain_id: RunId) -> list[Message]:
        letters = self.inbox.get(chain_id, {}).values()
        return sorted((letter.message for letter in letters if not letter.consumed), key=lambda m: m.number)

    def due(self, worker: WorkerInfo) -> list[tuple[int, Row]]:
        """What the worker may claim now or later, with the time from which on it may."""
        has_suspect = any(row.is_suspect and row.run.owner == worker.worker_id for row in self.open.values())
        return [
            (row.run.wake_at, row)
            for row in self.open.values()
            if row.run.wake_at is not None
            and row.run.queue in worker.queues
            and rules.may_take(worker.code, row.run.name, row.run.failed_code)
            and not (has_suspect and row.is_suspect)
        ]

    def due_at(self, worker: WorkerInfo) -> int | None:
        return min((wake_at for wake_at, _ in self.due(worker)), default=None)


class MemoryDatabase:
    """What several stores share, as several processes share a database. Gone with the process."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self.lock = threading.RLock()
        self.timeline = new_message_id()
        self.numbers = itertools.count(1)
        self.rooms: dict[str, Room] = {}
        self.listeners: list[tuple[str, Listeners]] = []


class MemoryStore:
    """A `Store` in memory."""

    poll_seconds: float | None = None

    def __init__(self, database: MemoryDatabase | None = None, namespace: str = "default") -> None:
        self.namespace = namespace
        self._database = database or MemoryDatabase()
        self._room = self._database.rooms.setdefault(namespace, Room())
        self._listeners = Listeners()
        self._shift = 0
        self._instant: int | None = None

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

    def _now(self) -> int:
        if self._instant is not None:
            return self._instant
        return self._database.clock.now() + self._shift

    @contextmanager
    def _transaction(self) -> Iterator[int]:
        """All of a verb happens alone, and at one moment."""
        with self._database.lock:
            self._instant = self._now()
            try:
                yield self._instant
            finally:
                self._instant = None

    def _tell(self, hint: Hint) -> None:
        if not (hint.due or hint.messages or hint.closed):
            return
        for namespace, listeners in list(self._database.listeners):
            if namespace == self.namespace:
                listeners.tell(hint)

    def _row(self, run_id: RunId) -> Row:
        try:
            return self._room.rows[run_id]
        except KeyError:
            raise UnknownRun(run_id, self.namespace) from None

    # -- runs come in

    async def start(self, run: NewRun) -> tuple[Run, bool]:
        return rules.started((await self.start_many([run]))[0])

    async def start_many(self, runs: Sequence[NewRun]) -> list[StartOutcome]:
        with self._transaction():
            return [self._start(run) for run in runs]

    def _start(self, run: NewRun) -> StartOutcome:
        if (known := self._room.rows.get(run.run_id)) is not None:
            return known.snapshot(), True  # the same start, written again because its first answer was lost
        taken = self._current(run.id)
        if taken is not None and not rules.may_replace(run.if_exists, taken.run.closed_at is not None):
            if run.if_exists is IfExists.RETURN:
                return taken.snapshot(), False
            return AlreadyStarted(run.id, taken.run.state)
        row = self._insert(run, epoch=0, owner=None)
        self._post(row.run.chain_id, rules.start_message(run))
        self._tell(Hint(due=True))
        return row.snapshot(), True

    async def send(self, run_id: RunId, message: Message) -> bool:
        with self._transaction():
            row = self._row(run_id)
            if message.message_id in self._room.inbox.get(row.run.chain_id, {}):
                return False
            target = self._open_run_of_chain(row)
            if target is None:
                raise RunClosed(row.run.id, row.run.state)
            self._post(row.run.chain_id, message)
            run = target.run
            if run.state in (RunState.PENDING, RunState.WAITING):
                run.wake_at = min(run.wake_at or self._now(), self._now())
                self._tell(Hint(due=True))
            elif run.owner is not None:
                self._tell(Hint(messages=[run.run_id]))
            return True

    async def unpark(self, run_id: RunId) -> bool:
        with self._transaction() as now:
            run = self._row(run_id).run
            if run.state not in PARKED:
                return False
            run.state, run.wake_at, run.deaths, run.reason, run.failed_code = RunState.WAITING, now, 0, "", []
            self._tell(Hint(due=True))
            return True

    def _current(self, id: str) -> Row | None:
        run_id = self._room.current.get(id)
        return None if run_id is None else self._room.rows[run_id]

    def _open_run_of_chain(self, row: Row) -> Row | None:
        last = self._current(row.run.id)
        if last is None or last.run.chain_id != row.run.chain_id or last.run.closed_at is not None:
            return None
        return last

    def _insert(self, new: NewRun, *, epoch: int, owner: str | None) -> Row:
        now, chain_id = self._now(), rules.chain_of(new)
        first = self._room.rows.get(chain_id)
        run = Run(
            run_id=new.run_id,
            id=new.id,
            chain_id=chain_id,
            kind=new.kind,
            name=new.name,
            queue=new.queue,
            priority=new.priority,
            state=RunState.RUNNING if owner else RunState.PENDING,
            epoch=epoch,
            head=-1,
            owner=owner,
            wake_at=None if owner else now + new.delay,
            created_at=now,
            closed_at=None,
            deadline=rules.deadline_of(new, now, first.run.created_at if first else now),
            deaths=0,
            reason="",
            failed_code=[],
            version=new.version,
            tags=new.tags,
            memo=new.memo,
            parent_run_id=new.parent_run_id,
            parent_seq=new.parent_seq,
        )
        row = self._room.rows[new.run_id] = self._room.open[new.run_id] = Row(run, claimed_head=-1)
        self._room.current[new.id] = new.run_id
        return row

    def _post(self, chain_id: RunId, message: Message) -> None:
        stamped = replace(message, at=self._now(), number=next(self._database.numbers))
        self._room.inbox.setdefault(chain_id, {})[message.message_id] = Letter(stamped)

    # -- runs are worked on

    async def register(self, worker: WorkerInfo) -> int:
        with self._transaction() as now:
            copy = replace(worker, queues=list(worker.queues), code=dict(worker.code))
            self._room.workers[worker.worker_id] = Registration(copy, now + worker.lease)
            return now

    async def retire(self, worker_id: str) -> None:
        with self._transaction():
            self._room.workers.pop(worker_id, None)
            mine = [row for row in self._room.open.values() if row.run.owner == worker_id]
            for row in mine:
                self._set_free(row)
            self._tell(Hint(due=bool(mine)))

    def heart(self, worker_id: str) -> AbstractAsyncContextManager[Heart]:
        return self._beating(worker_id)

    @asynccontextmanager
    async def _beating(self, worker_id: str) -> AsyncIterator[Heart]:
        self._room.locks.add(worker_id)
        try:
            yield MemoryHeart(self, worker_id)
        finally:
            self._room.locks.discard(worker_id)

    async def claim(self, worker: WorkerInfo, limit: int) -> list[Tape]:
        with self._transaction() as now:
            if not self._is_live(worker.worker_id):
                return []
            due = [row for wake_at, row in self._room.due(worker) if wake_at <= now]
            due.sort(key=lambda row: (-row.run.priority, row.run.wake_at, row.run.run_id))
            chosen = rules.one_suspect(due, lambda row: row.is_suspect)[:limit]
            for row in chosen:
                self._own(row, worker.worker_id)
            return [self._tape(row) for row in chosen]

    def _own(self, row: Row, worker_id: str) -> None:
        run = row.run
        run.epoch += 1
        run.state, run.owner, run.wake_at, run.reason = RunState.RUNNING, worker_id, None, ""
        if run.head != row.claimed_head:
            run.deaths = 0
        row.claimed_head = run.head

    def _is_live(self, worker_id: str) -> bool:
        known = self._room.workers.get(worker_id)
        return known is not None and known.lease_until > self._now()

    def _set_free(self, row: Row) -> None:
        run = row.run
        run.epoch += 1
        run.state = RunState.PENDING if run.head < 0 else RunState.WAITING
        run.owner, run.wake_at = None, self._now()

    async def due_at(self, worker: WorkerInfo) -> int | None:
        with self._transaction():
            return self._room.due_at(worker)

    async def unread(self, run_ids: Sequence[RunId]) -> dict[RunId, tuple[int, list[Message]]]:
        with self._transaction():
            rows = [self._room.rows[run_id] for run_id in run_ids if run_id in self._room.rows]
            return {
                row.run.run_id: (-1 if row.run.closed_at else row.run.epoch, self._room.unread(row.run.chain_id))
                for row in rows
            }

    async def load(self, run_id: RunId) -> Tape:
        with self._transaction():
            return self._tape(self._row(run_id))

    def _tape(self, row: Row) -> Tape:
        attempts = [row.attempts[key] for key in sorted(row.attempts)]
        return Tape(row.snapshot(), list(row.journal), self._room.unread(row.run.chain_id), attempts)

    async def commit(self, worker_id: str, changes: Sequence[Change]) -> dict[int, Verdict]:
        with self._transaction():
            verdicts: dict[int, Verdict] = {}
            hint = Hint()
            for index, change in enumerate(changes):
                verdict = self._judge(worker_id, change)
                if isinstance(verdict, Verdict):
                    verdicts[index] = verdict
                elif verdict:
                    self._apply(worker_id, change, hint)
            self._tell(hint)
            return verdicts

    def _judge(self, worker_id: str, change: Change) -> Verdict | bool:
        row = self._room.rows.get(change.run_id)
        if row is not None:
            return rules.judge(change, row.run.epoch, row.run.head, row.run.closed_at is not None)
        if change.start is None or not self._is_live(worker_id):
            return Verdict.REFUSED
        taken = self._current(change.start.id)
        if taken is None or rules.may_replace(change.start.if_exists, taken.run.closed_at is not None):
            return True
        return Verdict.EXISTS

    def _apply(self, worker_id: str, change: Change, hint: Hint) -> None:
        row = self._room.rows.get(change.run_id)
        was_suspect = row is not None and row.is_suspect
        if row is None:
            assert change.start is not None  # noqa: S101 (judged before)
            row = self._insert(change.start, epoch=change.epoch, owner=worker_id)
        row.write(change.entries, change.epoch)
        for message_id in change.consumed:
            self._room.inbox[row.run.chain_id][message_id].consumed = True
        for attempt in change.attempts:
            row.attempts[attempt.seq, attempt.number] = attempt
        if change.move is not None:
            self._move(row, change.move, hint)
        if was_suspect and not (row.is_suspect and row.run.owner):
            hint.due = True  # its owner may take another one now

    def _move(self, row: Row, move: Move, hint: Hint) -> None:
        run, now = row.run, self._now()
        run.state, run.owner, run.wake_at, run.reason = move.state, None, None, move.reason
        if move.state in CLOSED:
            self._shut(row, hint)
        elif move.state is RunState.WAITING:
            run.wake_at = now if self._room.unread(run.chain_id) else move.wake_at
        elif move.state is RunState.PENDING:
            run.wake_at = now if move.wake_at is None else move.wake_at
        elif move.fingerprint and move.fingerprint not in run.failed_code:
            run.failed_code.append(move.fingerprint)
        hint.due = hint.due or (run.wake_at is not None and run.wake_at <= now)

    def _shut(self, row: Row, hint: Hint) -> None:
        row.run.closed_at = self._now()
        del self._room.open[row.run.run_id]
        if hint.closed is not None:
            hint.closed.append(row.run.run_id)

    async def close_run(self, run_id: RunId, head: int, entry: Entry, state: RunState, reason: str) -> bool:
        with self._transaction():
            row = self._row(run_id)
            if row.run.closed_at is not None or row.run.head != head:
                return False
            hint = Hint()
            self._close_from_outside(row, entry, Move(state, reason=reason), hint)
            self._tell(hint)
            return True

    def _close_from_outside(self, row: Row, entry: Entry, move: Move, hint: Hint) -> None:
        if row.run.owner is not None:
            hint.messages.append(row.run.run_id)
            hint.due = hint.due or row.is_suspect
        row.run.epoch += 1
        row.write([entry], row.run.epoch)
        self._move(row, move, hint)

    # -- reading

    async def get(self, id: str) -> Run:
        with self._transaction():
            row = self._current(id)
            if row is None:
                raise UnknownRun(id, self.namespace)
            return row.snapshot()

    async def get_run(self, run_id: RunId) -> Run:
        with self._transaction():
            return self._row(run_id).snapshot()

    async def journal(self, run_id: RunId, after: int = -1, limit: int = 10_000) -> list[Entry]:
        with self._transaction():
            return self._row(run_id).journal[after + 1 : after + 1 + limit]

    async def epochs(self, run_id: RunId) -> list[int]:
        with self._transaction():
            return list(self._row(run_id).epochs)

    async def attempts(self, run_id: RunId) -> list[Attempt]:
        with self._transaction():
            return self._tape(self._row(run_id)).attempts

    async def closed_among(self, run_ids: Sequence[RunId]) -> list[RunId]:
        with self._transaction():
            rows = [self._room.rows[run_id] for run_id in run_ids if run_id in self._room.rows]
            return [row.run.run_id for row in rows if row.run.state in CLOSED]

    async def outcome(self, run_id: RunId) -> tuple[Run, Entry | None]:
        with self._transaction():
            row = self._row(run_id)
            return row.snapshot(), row.journal[-1] if row.journal else None

    async def list_runs(self, where: RunFilter, cursor: str | None = None, limit: int = 50) -> Page:
        before = None if cursor is None else cursor_of(cursor)
        with self._transaction():
            found = sorted(self._matching(where), key=lambda row: row.run.run_id, reverse=True)
            rest = [row.snapshot() for row in found if before is None or row.run.run_id < before]
        page = rest[:limit]
        return Page(page, str(page[-1].run_id) if len(rest) > limit else None)

    async def count_runs(self, where: RunFilter) -> int:
        with self._transaction():
            return len(self._matching(where))

    async def workers(self) -> list[WorkerView]:
        with self._transaction() as now:
            return [_view(self._room.workers[worker_id], now) for worker_id in sorted(self._room.workers)]

    def _matching(self, where: RunFilter) -> list[Row]:
        return [row for row in self._room.rows.values() if matches(where, row.run)]


class MemoryHeart:
    """The heartbeat of one worker. Its lock is held while it is open."""

    def __init__(self, store: MemoryStore, worker_id: str) -> None:
        self._store = store
        self._worker_id = worker_id

    async def beat(self, worker: WorkerInfo, *, reap: bool) -> Pulse:
        store, room = self._store, self._store._room
        with store._transaction() as now:
            if worker.worker_id not in room.workers:
                return Pulse(now=now, alive=False, timeline=store._database.timeline)
            was_live = room.workers[worker.worker_id].lease_until > now
            room.workers[worker.worker_id].lease_until = now + worker.lease
            hint = Hint()
            self._time_out(now, hint)
            self._revive(worker, now, hint)
            reaped = self._reap_expired(now, hint) if reap and was_live else 0
            store._tell(hint)
            owned = [row.run for row in room.open.values() if row.run.owner == worker.worker_id]
            return Pulse(
                now=now,
                alive=True,
                timeline=store._database.timeline,
                due_at=room.due_at(worker),
                unread=[run.run_id for run in owned if room.unread(run.chain_id)],
                owned={run.run_id: run.epoch for run in owned},
                peers=[peer for peer in room.workers if self._seems_gone(peer)],
                reaped=reaped,
            )

    async def bury(self, worker_ids: Sequence[str]) -> int:
        store, room = self._store, self._store._room
        with store._transaction():
            gone = {peer for peer in worker_ids if self._seems_gone(peer)}
            for worker_id in gone:
                room.workers.pop(worker_id, None)
            hint = Hint()
            # Only theirs: after an outage every lease is over and nobody died.
            reaped = self._reap(hint, lambda owner: owner in gone)
            store._tell(hint)
            return reaped

    def _seems_gone(self, worker_id: str) -> bool:
        return worker_id != self._worker_id and worker_id not in self._store._room.locks

    def _time_out(self, now: int, hint: Hint) -> None:
        for row in list(self._store._room.open.values()):
            if row.run.deadline is not None and row.run.deadline <= now:
                last = (row.journal[-1].at, row.journal[-1].crc) if row.journal else None
                entry = rules.timed_out_entry(row.run.head, last, now)
                move = Move(RunState.TIMED_OUT, reason=rules.TIMED_OUT)
                self._store._close_from_outside(row, entry, move, hint)

    def _revive(self, worker: WorkerInfo, now: int, hint: Hint) -> None:
        for row in self._store._room.open.values():
            run = row.run
            if run.state is not RunState.NEEDS_CODE or run.queue not in worker.queues:
                continue
            if rules.may_take(worker.code, run.name, run.failed_code):
                run.state, run.wake_at, run.reason, hint.due = RunState.WAITING, now, "", True

    def _reap_expired(self, now: int, hint: Hint) -> int:
        workers = self._store._room.workers
        for worker_id in [worker_id for worker_id, known in workers.items() if known.lease_until <= now]:
            del workers[worker_id]
        return self._reap(hint, lambda owner: owner not in workers)

    def _reap(self, hint: Hint, is_dead: Callable[[str], bool]) -> int:
        runs = self._store._room.open.values()
        orphans = [row for row in runs if row.run.owner is not None and is_dead(row.run.owner)]
        blamed = {row.run.owner for row in orphans if row.is_suspect}
        for row in orphans:
            run = row.run
            if row.is_suspect or run.owner not in blamed:
                run.deaths = run.deaths + 1 if run.head == row.claimed_head else 1
            self._store._set_free(row)
            if run.deaths >= rules.POISON_DEATHS:
                run.state, run.wake_at, run.reason = RunState.POISONED, None, rules.POISONED
            else:
                hint.due = True
        return len(orphans)


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
