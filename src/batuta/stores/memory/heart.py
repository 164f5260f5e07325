"""The heartbeat in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from batuta.journal.records import Pulse, WorkerInfo
from batuta.journal.states import RunState
from batuta.stores import rules
from batuta.stores.memory.moment import Moment
from batuta.stores.memory.queues import due_at, forget_windows, time_out


class Home(Protocol):
    """What a heart needs of its store."""

    @property
    def timeline(self) -> str: ...
    def transaction(self) -> AbstractContextManager[Moment]: ...


class MemoryHeart:
    """The heartbeat of one worker. Its lock is held while it is open."""

    def __init__(self, home: Home, worker_id: str) -> None:
        self._home = home
        self._worker_id = worker_id

    async def beat(self, worker: WorkerInfo, *, reap: bool) -> Pulse:
        with self._home.transaction() as moment:
            room, now = moment.room, moment.now
            if worker.worker_id not in room.workers:
                return Pulse(now=now, alive=False, timeline=self._home.timeline)
            was_live = room.workers[worker.worker_id].lease_until > now
            room.workers[worker.worker_id].lease_until = now + worker.lease
            time_out(moment, room.open.values())
            forget_windows(moment)
            _revive(moment, worker)
            reaped = _reap_expired(moment) if reap and was_live else 0
            owned = [row.run for row in room.open.values() if row.run.owner == worker.worker_id]
            return Pulse(
                now=now,
                alive=True,
                timeline=self._home.timeline,
                due_at=due_at(moment, worker),
                unread=[run.run_id for run in owned if room.inbox(run.chain_id).unread],
                owned={run.run_id: run.epoch for run in owned},
                peers=[peer for peer in room.workers if self._seems_gone(moment, peer)],
                reaped=reaped,
                schedule_at=room.schedule_at(),
            )

    async def bury(self, worker_ids: Sequence[str]) -> int:
        with self._home.transaction() as moment:
            gone = {peer for peer in worker_ids if self._seems_gone(moment, peer)}
            for worker_id in gone:
                moment.room.workers.pop(worker_id, None)
            # Only theirs: after an outage every lease is over and nobody died.
            return _reap(moment, lambda owner: owner in gone)

    def _seems_gone(self, moment: Moment, worker_id: str) -> bool:
        return worker_id != self._worker_id and worker_id not in moment.room.locks


def _revive(moment: Moment, worker: WorkerInfo) -> None:
    for row in moment.room.open.values():
        run = row.run
        if run.state is not RunState.NEEDS_CODE or run.queue not in worker.queues:
            continue
        if rules.may_take(worker.code, run.code, run.failed_code):
            run.state, run.wake_at, run.reason, moment.hint.due = RunState.WAITING, moment.now, "", True


def _reap_expired(moment: Moment) -> int:
    workers = moment.room.workers
    for worker_id in [worker_id for worker_id, known in workers.items() if known.lease_until <= moment.now]:
        del workers[worker_id]
    return _reap(moment, lambda owner: owner not in workers)


def _reap(moment: Moment, is_dead: Callable[[str], bool]) -> int:
    runs = moment.room.open.values()
    orphans = [row for row in runs if row.run.owner is not None and is_dead(row.run.owner)]
    blamed = {row.run.owner for row in orphans if row.is_suspect}
    for row in orphans:
        run = row.run
        if row.is_suspect or run.owner not in blamed:
            run.deaths = run.deaths + 1 if run.head == row.claimed_head else 1
        moment.set_free(row)
        if run.deaths >= rules.POISON_DEATHS:
            run.state, run.wake_at, run.reason = RunState.POISONED, None, rules.POISONED
        else:
            moment.hint.due = True
    return len(orphans)
