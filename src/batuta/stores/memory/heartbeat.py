"""The heartbeat in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from batuta.journal.records import LOSSES, Attempt, Pulse, WorkerInfo, loss_number
from batuta.journal.states import RunState
from batuta.stores.contract import rules
from batuta.stores.memory.base import Base
from batuta.stores.memory.queues import due_at, forget_windows, time_out
from batuta.stores.memory.unit_of_work import UnitOfWork


class MemoryHeartbeat:
    """The heartbeat of one worker. Its lock is held while it is open."""

    def __init__(self, home: Base, worker_id: str) -> None:
        self._home = home
        self._worker_id = worker_id

    async def beat(self, worker: WorkerInfo, *, reap: bool) -> Pulse:
        with self._home.transaction() as unit:
            room, now = unit.tables, unit.now
            if worker.worker_id not in room.workers:
                return Pulse(now=now, alive=False, timeline=self._home.timeline)
            was_live = room.workers[worker.worker_id].lease_until > now
            known = room.workers[worker.worker_id]
            known.lease_until, known.beat_at = now + worker.lease, now
            timed_out = time_out(unit, room.open.values())
            forget_windows(unit)
            _revive(unit, worker)
            reaped = _reap_expired(unit) if reap and was_live else 0
            owned = [row.run for row in room.open.values() if row.run.owner == worker.worker_id]
            return Pulse(
                now=now,
                alive=True,
                timeline=self._home.timeline,
                due_at=due_at(unit, worker),
                unread=[run.run_id for run in owned if room.inbox(run.chain_id).unread],
                owned={run.run_id: run.epoch for run in owned},
                peers=[peer for peer in room.workers if self._seems_gone(unit, peer)],
                reaped=reaped,
                timed_out=timed_out,
                schedule_at=room.schedule_at(),
            )

    async def reap(self, worker_ids: Sequence[str]) -> int:
        with self._home.transaction() as unit:
            gone = {peer for peer in worker_ids if self._seems_gone(unit, peer)}
            for worker_id in gone:
                unit.tables.workers.pop(worker_id, None)
            # Only theirs: after an outage every lease has expired although no worker died.
            return _reap(unit, lambda owner: owner in gone)

    def _seems_gone(self, unit: UnitOfWork, worker_id: str) -> bool:
        return worker_id != self._worker_id and worker_id not in unit.tables.locks


def _revive(unit: UnitOfWork, worker: WorkerInfo) -> None:
    for row in unit.tables.open.values():
        run = row.run
        if run.state is not RunState.NEEDS_CODE or run.queue not in worker.queues:
            continue
        if rules.may_take(worker.code, run.code, run.failed_code):
            run.state, run.wake_at, run.reason, unit.hint.due = RunState.WAITING, unit.now, "", True


def _reap_expired(unit: UnitOfWork) -> int:
    workers = unit.tables.workers
    for known in workers.values():  # after the clock was set back, no old lease may outlast a new one
        known.lease_until = min(known.lease_until, unit.now + known.worker.lease)
    for worker_id in [worker_id for worker_id, known in workers.items() if known.lease_until <= unit.now]:
        del workers[worker_id]
    return _reap(unit, lambda owner: owner not in workers)


def _reap(unit: UnitOfWork, is_dead: Callable[[str], bool]) -> int:
    runs = unit.tables.open.values()
    orphans = [row for row in runs if row.run.owner is not None and is_dead(row.run.owner)]
    blamed = {row.run.owner for row in orphans if row.is_suspect}
    for row in orphans:
        run = row.run
        if row.is_suspect or run.owner not in blamed:
            run.deaths = run.deaths + 1 if run.head == row.claimed_head else 1
        unit.set_free(row)
        if run.head >= 0:
            lost = Attempt(seq=LOSSES, number=loss_number(run.epoch), started_at=unit.now, ended_at=unit.now)
            row.attempts[lost.seq, lost.number] = lost
        if run.deaths >= rules.POISON_DEATHS:
            run.state, run.wake_at, run.reason = RunState.POISONED, None, rules.POISONED
        else:
            unit.hint.due = True
    return len(orphans)
