"""A worker's heartbeat: renew, look for the dead, bring news."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Sequence
from typing import Protocol
from uuid import UUID

from msgspec.structs import replace

from batuta.errors import BadData
from batuta.ids import RunId
from batuta.journal.records import LOSSES, Attempt, Hint, Pulse, WorkerInfo, loss_number
from batuta.journal.states import RunState
from batuta.stores.contract import rules
from batuta.stores.contract.migrations import require_new_enough
from batuta.stores.sqlite.claims import due_at, owns_suspect
from batuta.stores.sqlite.commits import is_live
from batuta.stores.sqlite.cross_run_effects import CrossRunEffects
from batuta.stores.sqlite.database.connection import Q
from batuta.stores.sqlite.database.errors import translate
from batuta.stores.sqlite.database.files import LockFile, WorkerLocks
from batuta.stores.sqlite.database.rows import Row, attempt_row, entry_row, one, to_json
from batuta.stores.sqlite.database.schema import VERSIONS
from batuta.stores.sqlite.database.writer import Writer
from batuta.stores.sqlite.inbox import InboxWriter
from batuta.stores.sqlite.queues import forget_begun
from batuta.stores.sqlite.schedules import schedule_at

log = logging.getLogger("batuta.sqlite")


class HeartbeatHost(Protocol):
    """The parts of its store that a heartbeat needs."""

    namespace: str

    def clock_now(self) -> int: ...
    def timeline(self) -> str: ...
    def tell(self, hint: Hint) -> None: ...


class SqliteHeartbeat:
    """The heartbeat of one worker. Blocks the thread that it lives in, which is its own."""

    def __init__(self, home: HeartbeatHost, writer: Writer, locks: WorkerLocks, lock: LockFile, worker_id: str) -> None:
        self._home = home
        self._writer = writer
        self._locks, self._lock = locks, lock
        self._worker_id = worker_id

    async def beat(self, worker: WorkerInfo, *, reap: bool) -> Pulse:
        self._locks.keep(self._lock)
        timeline = self._home.timeline()
        pulse, workers, hint = self._writer.write_blocking(
            lambda cursor: Beat(cursor, self._home.namespace, self._home.clock_now()).beat(worker, reap)
        )
        pulse.timeline = timeline
        pulse.peers = [peer for peer in workers if self._seems_gone(peer)]
        self._home.tell(hint)
        return pulse

    async def reap(self, worker_ids: Sequence[str]) -> int:
        gone = [worker_id for worker_id in worker_ids if self._seems_gone(worker_id)]
        reaped, more = 0, bool(gone)
        while more:
            freed, hint = self._writer.write_blocking(
                lambda cursor: Beat(cursor, self._home.namespace, self._home.clock_now()).reap(gone)
            )
            self._home.tell(hint)
            reaped, more = reaped + freed, freed == rules.BEAT_LIMIT
        for worker_id in gone:
            self._locks.remove(worker_id)
        return reaped

    def _seems_gone(self, worker_id: str) -> bool:
        return worker_id != self._worker_id and self._locks.is_free(worker_id)


class Beat:
    """One heartbeat's transaction, at one moment."""

    def __init__(self, cursor: sqlite3.Cursor, namespace: str, now: int) -> None:
        self._cursor = cursor
        self._namespace = namespace
        self._now = now
        self._hint = Hint()

    def beat(self, worker: WorkerInfo, reap: bool) -> tuple[Pulse, list[str], Hint]:
        cursor, namespace, now = self._cursor, self._namespace, self._now
        worker_id = worker.worker_id
        for version, oldest_code in cursor.execute(Q["schema_version"]):
            require_new_enough(VERSIONS, version, oldest_code)  # before the lease is renewed: others take the runs over
        reap = reap and is_live(cursor, namespace, worker_id, now)
        before = one(cursor.execute(Q["beaten_at"], (namespace, worker_id)))
        cursor.execute(Q["renew"], (now, now + worker.lease, namespace, worker_id))
        if cursor.rowcount == 0:
            return Pulse(now=now, alive=False), [], self._hint
        timed_out = self._time_out("overdue", rules.TIMED_OUT) + self._time_out("expired", rules.EXPIRED)
        forget_begun(cursor, namespace, now)
        self._revive(worker)
        reaped = self._reap_expired() if reap else 0
        unread = cursor.execute(Q["owned_unread"], (namespace, worker_id)).fetchall()
        owned = cursor.execute(Q["owned"], (namespace, worker_id)).fetchall()
        workers = cursor.execute(Q["worker_ids"], (namespace,)).fetchall()
        pulse = Pulse(
            now=now,
            alive=True,
            beaten_at=None if before is None else before[0],
            due_at=due_at(cursor.connection, namespace, worker, now),
            unread=[UUID(bytes=run_id) for (run_id,) in unread],
            owned={UUID(bytes=run_id): epoch for run_id, epoch in owned},
            reaped=reaped,
            timed_out=timed_out,
            schedule_at=schedule_at(cursor, namespace),
        )
        return pulse, [name for (name,) in workers], self._hint

    def reap(self, gone: Sequence[str]) -> tuple[int, Hint]:
        self._cursor.executemany(Q["forget_worker"], [(self._namespace, worker_id) for worker_id in gone])
        # Only theirs: after an outage every lease has expired although no worker died.
        return self._reap(gone.__contains__), self._hint

    def _time_out(self, query: str, reason: str) -> list[RunId]:
        overdue = self._cursor.execute(Q[query], (self._namespace, self._now, rules.BEAT_LIMIT)).fetchall()
        post = InboxWriter(self._cursor, self._namespace, self._now, self._hint)
        for run_id, head, epoch, owner, id, parent_seq, at, crc in overdue:
            entry = rules.timed_out_entry(head, None if at is None else (at, crc), self._now, reason)
            self._cursor.execute(
                Q["close_from_outside"],
                ("timed_out", self._now, reason, self._namespace, run_id, head),
            )
            self._cursor.execute(Q["insert_entry"], entry_row(self._namespace, run_id, epoch + 1, entry))
            if self._hint.closed is not None:
                self._hint.closed.append(UUID(bytes=run_id))
            if owner is not None:
                self._hint.messages.append(UUID(bytes=run_id))
            post.tell_kin(run_id, id, parent_seq, RunState.TIMED_OUT, reason)
            if (value := one(self._cursor.execute(Q["compensation"], (run_id, self._namespace)))) is not None:
                self._compensate(UUID(bytes=run_id), value[0])
        post.wake()
        return [UUID(bytes=run_id) for run_id, *_ in overdue]

    def _compensate(self, run_id: RunId, value: str | None) -> None:
        """Insert the run that undoes the sagas of a run that timed out. One that somebody has damaged is left out."""
        effects = CrossRunEffects(self._cursor, self._namespace, self._now)
        self._cursor.execute("SAVEPOINT compensation")
        try:
            if (child := rules.compensation_of(value)) is not None:
                effects.start_child(child)
        except Exception as error:
            if not isinstance(meant := translate(error), BadData):
                raise
            self._cursor.execute("ROLLBACK TO compensation")
            log.error("run %s timed out and is not undone: its compensation was damaged: %s", run_id, meant)
        self._cursor.execute("RELEASE compensation")
        self._hint.due = self._hint.due or effects.hint.due

    def _revive(self, worker: WorkerInfo) -> None:
        values = {
            "now": self._now,
            "namespace": self._namespace,
            "queues": to_json(worker.queues),
            "limit": rules.BEAT_LIMIT,
        }
        for code, fingerprint in worker.code.items():
            revived = self._cursor.execute(Q["revive"], values | {"code": code, "fingerprint": fingerprint}).rowcount
            self._hint.due = self._hint.due or revived > 0

    def _reap_expired(self) -> int:
        self._cursor.execute(Q["shorten_leases"], {"namespace": self._namespace, "now": self._now})
        self._cursor.execute(Q["forget_expired"], (self._namespace, self._now))
        known = {name for (name,) in self._cursor.execute(Q["worker_ids"], (self._namespace,)).fetchall()}
        return self._reap(lambda owner: owner not in known)

    def _reap(self, is_dead: Callable[[str], bool]) -> int:
        reaped = 0
        for (owner,) in self._cursor.execute(Q["owners"], {"namespace": self._namespace}).fetchall():
            if reaped < rules.BEAT_LIMIT and is_dead(owner):
                reaped += self._set_free(owner, rules.BEAT_LIMIT - reaped)
        self._hint.due = self._hint.due or reaped > 0
        return reaped

    def _set_free(self, owner: str, limit: int) -> int:
        values = {
            "poison": rules.POISON_DEATHS,
            "now": self._now,
            "poisoned": rules.POISONED,
            "namespace": self._namespace,
            "owner": owner,
            "limit": limit,
        }
        freed: list[Row] = []
        if owns_suspect(self._cursor, self._namespace, owner):
            # The suspect goes last: as long as it is there, the others are known to be innocent.
            freed = self._cursor.execute(Q["reap_innocent"], values).fetchall()
        freed += self._cursor.execute(Q["reap"], values | {"limit": limit - len(freed)}).fetchall()
        lost = Attempt(seq=LOSSES, number=0, started_at=self._now, ended_at=self._now)
        rows = [
            attempt_row(self._namespace, run_id, replace(lost, number=loss_number(epoch)))
            for run_id, epoch, head in freed
            if head >= 0
        ]
        self._cursor.executemany(Q["upsert_attempt"], rows)
        return len(freed)
