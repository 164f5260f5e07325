"""A worker's heartbeat: renew, look for the dead, bring news."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from uuid import UUID

from msgspec.structs import replace

from batuta.errors import BadData
from batuta.ids import RunId
from batuta.journal.records import LOSSES, Attempt, Pulse, WorkerInfo, loss_number
from batuta.journal.states import RunState
from batuta.stores.contract import rules
from batuta.stores.contract.migrations import require_new_enough
from batuta.stores.sqlite.claims import due_at, owns_suspect
from batuta.stores.sqlite.commits import is_live
from batuta.stores.sqlite.cross_run_effects import CrossRunEffects
from batuta.stores.sqlite.database.base import Base
from batuta.stores.sqlite.database.files import LockFile, WorkerLocks
from batuta.stores.sqlite.database.rows import Row, attempt_row, to_json
from batuta.stores.sqlite.database.schema import VERSIONS
from batuta.stores.sqlite.database.unit_of_work import UnitOfWork
from batuta.stores.sqlite.inbox import InboxWriter
from batuta.stores.sqlite.queues import forget_begun
from batuta.stores.sqlite.schedules import schedule_at

log = logging.getLogger("batuta.sqlite")


class SqliteHeartbeat:
    """The heartbeat of one worker. Blocks the thread that it lives in, which is its own."""

    def __init__(self, home: Base, locks: WorkerLocks, lock: LockFile, worker_id: str) -> None:
        self._home = home
        self._locks, self._lock = locks, lock
        self._worker_id = worker_id

    async def beat(self, worker: WorkerInfo, *, reap: bool) -> Pulse:
        self._locks.keep(self._lock)
        timeline = self._home.timeline()
        pulse, workers = self._home.write_blocking(lambda unit: _beat(unit, worker, reap))
        pulse.timeline = timeline
        pulse.peers = [peer for peer in workers if self._seems_gone(peer)]
        return pulse

    async def reap(self, worker_ids: Sequence[str]) -> int:
        gone = [worker_id for worker_id in worker_ids if self._seems_gone(worker_id)]
        reaped, more = 0, bool(gone)
        while more:
            freed = self._home.write_blocking(lambda unit: _reap_gone(unit, gone))
            reaped, more = reaped + freed, freed == rules.BEAT_LIMIT
        for worker_id in gone:
            self._locks.remove(worker_id)
        return reaped

    def _seems_gone(self, worker_id: str) -> bool:
        return worker_id != self._worker_id and self._locks.is_free(worker_id)


def _beat(unit: UnitOfWork, worker: WorkerInfo, reap: bool) -> tuple[Pulse, list[str]]:
    """The news, and all workers."""
    namespace, now = unit.namespace, unit.now
    worker_id = worker.worker_id
    for version, oldest_code in unit.rows("schema_version"):
        require_new_enough(VERSIONS, version, oldest_code)  # before the lease is renewed: others take the runs over
    reap = reap and is_live(unit, worker_id)
    beaten_at = unit.value("beaten_at", (namespace, worker_id))
    if not unit.change("renew", (now, now + worker.lease, namespace, worker_id)):
        return Pulse(now=now, alive=False), []
    timed_out = _time_out(unit, "overdue", rules.TIMED_OUT) + _time_out(unit, "expired", rules.EXPIRED)
    forget_begun(unit)
    _revive(unit, worker)
    reaped = _reap_expired(unit) if reap else 0
    unread = unit.rows("owned_unread", (namespace, worker_id))
    owned = unit.rows("owned", (namespace, worker_id))
    workers = unit.rows("worker_ids", (namespace,))
    pulse = Pulse(
        now=now,
        alive=True,
        beaten_at=beaten_at,
        due_at=due_at(unit, worker),
        unread=[UUID(bytes=run_id) for (run_id,) in unread],
        owned={UUID(bytes=run_id): epoch for run_id, epoch in owned},
        reaped=reaped,
        timed_out=timed_out,
        schedule_at=schedule_at(unit),
    )
    return pulse, [name for (name,) in workers]


def _reap_gone(unit: UnitOfWork, gone: Sequence[str]) -> int:
    unit.change_each("forget_worker", [(unit.namespace, worker_id) for worker_id in gone])
    # Only theirs: after an outage every lease has expired although no worker died.
    return _reap(unit, gone.__contains__)


def _time_out(unit: UnitOfWork, query: str, reason: str) -> list[RunId]:
    overdue = unit.rows(query, (unit.namespace, unit.now, rules.BEAT_LIMIT))
    post = InboxWriter(unit)
    for key, head, epoch, owner, id, parent_seq, at, crc in overdue:
        run_id = UUID(bytes=key)
        entry = rules.timed_out_entry(head, None if at is None else (at, crc), unit.now, reason)
        unit.close_run(run_id, epoch, head, entry, RunState.TIMED_OUT, reason, owned=owner is not None)
        post.tell_kin(key, id, parent_seq, RunState.TIMED_OUT, reason)
        if (row := unit.row("compensation", (key, unit.namespace))) is not None:
            _compensate(unit, run_id, row[0])
    post.wake()
    return [UUID(bytes=key) for key, *_ in overdue]


def _compensate(unit: UnitOfWork, run_id: RunId, value: str | None) -> None:
    """Insert the run that undoes the sagas of a run that timed out. One that somebody has damaged is left out."""

    def insert() -> None:
        if (child := rules.compensation_of(value)) is not None:
            CrossRunEffects(unit).start_child(child)

    if isinstance(damage := unit.attempt(insert), BadData):
        log.error("run %s timed out and is not undone: its compensation was damaged: %s", run_id, damage)


def _revive(unit: UnitOfWork, worker: WorkerInfo) -> None:
    values = {
        "now": unit.now,
        "namespace": unit.namespace,
        "queues": to_json(worker.queues),
        "limit": rules.BEAT_LIMIT,
    }
    for code, fingerprint in worker.code.items():
        unit.wake("revive", values | {"code": code, "fingerprint": fingerprint})


def _reap_expired(unit: UnitOfWork) -> int:
    unit.change("shorten_leases", {"namespace": unit.namespace, "now": unit.now})
    unit.change("forget_expired", (unit.namespace, unit.now))
    known = {name for (name,) in unit.rows("worker_ids", (unit.namespace,))}
    return _reap(unit, lambda owner: owner not in known)


def _reap(unit: UnitOfWork, is_dead: Callable[[str], bool]) -> int:
    reaped = 0
    for (owner,) in unit.rows("owners", {"namespace": unit.namespace}):
        if reaped < rules.BEAT_LIMIT and is_dead(owner):
            reaped += _set_free(unit, owner, rules.BEAT_LIMIT - reaped)
    unit.hint.due = unit.hint.due or reaped > 0
    return reaped


def _set_free(unit: UnitOfWork, owner: str, limit: int) -> int:
    values = {
        "poison": rules.POISON_DEATHS,
        "now": unit.now,
        "poisoned": rules.POISONED,
        "namespace": unit.namespace,
        "owner": owner,
        "limit": limit,
    }
    freed: list[Row] = []
    if owns_suspect(unit, owner):
        # The suspect goes last: as long as it is there, the others are known to be innocent.
        freed = unit.rows("reap_innocent", values)
    freed += unit.rows("reap", values | {"limit": limit - len(freed)})
    lost = Attempt(seq=LOSSES, number=0, started_at=unit.now, ended_at=unit.now)
    rows = [
        attempt_row(unit.namespace, run_id, replace(lost, number=loss_number(epoch)))
        for run_id, epoch, head in freed
        if head >= 0
    ]
    unit.change_each("upsert_attempt", rows)
    return len(freed)
