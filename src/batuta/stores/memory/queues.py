"""Queues in memory: their limits, and claiming from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from itertools import groupby

from msgspec.structs import replace

from batuta.journal.acts import Act, Changed
from batuta.journal.queues import LIMITS, QueueLimits, QueueView
from batuta.journal.records import Run, WorkerInfo
from batuta.journal.states import RunState
from batuta.stores import flow, rules
from batuta.stores.memory.audit import record
from batuta.stores.memory.moment import Moment
from batuta.stores.memory.tables import QueueRow, Room, Row


class QueueVerbs(ABC):
    """The part of the store that is about queues."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Moment]: ...

    async def limit_queue(
        self, name: str, limits: QueueLimits, only: Collection[str] = LIMITS, act: Act | None = None
    ) -> None:
        with self.transaction() as moment:
            record(moment, act, [Changed(target=name)])
            row = moment.room.queues.setdefault(name, QueueRow())
            row.limits = replace(row.limits, **{limit: getattr(limits, limit) for limit in only})
            moment.hint.due = True

    async def pause_queue(self, name: str, paused: bool, note: str = "", act: Act | None = None) -> None:
        with self.transaction() as moment:
            record(moment, act, [Changed(target=name)])
            row = moment.room.queues.setdefault(name, QueueRow())
            row.paused, row.note = paused, note if paused else ""
            moment.hint.due = not paused

    async def queues(self) -> list[QueueView]:
        with self.transaction() as moment:
            return views(moment.room, moment.now)

    async def due_at(self, worker: WorkerInfo) -> int | None:
        with self.transaction() as moment:
            # Nobody beats here: whoever claims ends what is over its time where no worker comes by.
            times = [due_at(moment, worker), *(overtime_at(row) for row in moment.room.open.values())]
            return min((at for at in times if at is not None), default=None)


def views(room: Room, now: int) -> list[QueueView]:
    """All queues that there is something to say about, by name."""
    found = {
        name: QueueView(name=name, paused=row.paused, note=row.note, limits=row.limits)
        for name, row in room.queues.items()
        if row.paused or row.limits.any
    }
    for each in room.open.values():
        if each.run.owner is None and each.run.wake_at is None:
            continue  # it waits for a message, or is parked
        _count(found.setdefault(each.run.queue, QueueView(name=each.run.queue)), each.run, now)
    for known in room.workers.values():
        if known.lease_until > now:
            for name in set(known.worker.queues):
                found.setdefault(name, QueueView(name=name)).workers += 1
    return [found[name] for name in sorted(found)]


def _count(view: QueueView, run: Run, now: int) -> None:
    if run.owner is not None:
        view.running += 1
    elif run.wake_at is not None and run.wake_at > now:
        view.delayed += 1
    elif run.wake_at is not None:
        view.ready += 1
        view.oldest = run.wake_at if view.oldest is None else min(run.wake_at, view.oldest)


def may_begin_at_once(room: Room, queue: str) -> bool:
    """Whether a run may begin in the queue without having waited there."""
    row = room.queues.get(queue)
    return row is None or not (row.paused or row.limits.any)


def due_at(moment: Moment, worker: WorkerInfo) -> int | None:
    """Earliest time at which the worker can claim something."""
    allowances = {queue: _allowance(moment, queue) for queue in worker.queues}
    times: list[int] = []
    for wake_at, row in _open_queues(moment.room, worker):
        allowance = allowances[row.run.queue]
        at = wake_at if allowance is None else allowance.when(row.run.flow_key, row.run.epoch == 0)
        if at is not None:
            times.append(max(at, wake_at))
    return min(times, default=None)


def overtime_at(row: Row) -> int | None:
    """When a run that nobody owns is over its time."""
    run = row.run
    if run.owner is not None or run.paused_at is not None:
        return None
    return min((at for at in (run.deadline, run.expires_at) if at is not None), default=None)


def time_out(moment: Moment, rows: Iterable[Row]) -> None:
    """End those that are over their time."""
    for row in list(rows):
        reason = rules.overtime(row.run.deadline, row.run.expires_at, moment.now)
        if reason and row.run.paused_at is None:
            last = (row.journal[-1].at, row.journal[-1].crc) if row.journal else None
            entry = rules.timed_out_entry(row.run.head, last, moment.now, reason)
            moment.close_from_outside(row, entry, RunState.TIMED_OUT, reason)


def left_behind(moment: Moment) -> list[Row]:
    """What is over its time, and nobody has taken."""
    return [row for row in moment.room.open.values() if (at := overtime_at(row)) is not None and at <= moment.now]


def claim(
    moment: Moment, worker: WorkerInfo, limit: int, room: Mapping[str, int] | None
) -> tuple[list[Row], bool, int | None]:
    """Own what is due. Also whether a limit held something back, and until when."""
    by_queue: dict[str, list[flow.Due[Row]]] = defaultdict(list)
    for wake_at, row in _open_queues(moment.room, worker):
        if wake_at <= moment.now:
            by_queue[row.run.queue].append(_due(row, wake_at))
    suspects = flow.Suspects(1)
    allowances = {queue: _allowance(moment, queue) for queue in by_queue}
    lines = [
        flow.Line(_levels(moment.room, queue, due), suspects, allowances[queue], moment.now, (room or {}).get(queue))
        for queue, due in by_queue.items()
    ]
    chosen = [due.row for due in flow.choose(lines, limit)]
    for row in chosen:
        own(row, worker.worker_id, moment)
    for queue, allowance in allowances.items():
        if allowance is not None:
            _remember(moment, queue, allowance)
    times = [line.again_at for line in lines if line.again_at is not None]
    return chosen, any(line.held for line in lines), min(times, default=None)


def own(row: Row, worker_id: str, moment: Moment) -> None:
    """Let a worker have the run."""
    run = row.run
    run.epoch += 1
    run.state, run.owner, run.wake_at, run.reason = RunState.RUNNING, worker_id, None, ""
    run.deadline = rules.claimed_deadline(run.deadline, run.expires_at, moment.now)
    run.expires_at = None
    moment.room.forget_debounce(row)
    if run.head != row.claimed_head:
        run.deaths = 0
    row.claimed_head = run.head


def _open_queues(room: Room, worker: WorkerInfo) -> Iterator[tuple[int, Row]]:
    for wake_at, row in room.due(worker):
        queue = room.queues.get(row.run.queue)
        if queue is None or not queue.paused:
            yield wake_at, row


def _due(row: Row, wake_at: int) -> flow.Due[Row]:
    run = row.run
    return flow.Due(row, run.run_id.bytes, run.priority, wake_at, run.flow_key, run.epoch == 0, row.is_suspect)


def _levels(room: Room, queue: str, due: list[flow.Due[Row]]) -> Iterator[flow.Level[Row]]:
    due.sort(key=lambda each: (-each.priority, each.wake_at, each.run_id))
    for priority, group in groupby(due, key=lambda each: each.priority):
        level = list(group)
        by_key: dict[str, list[flow.Due[Row]]] = defaultdict(list)
        for each in level:
            by_key[each.flow_key].append(each)
        hand = room.hands.setdefault((queue, priority), flow.Hand())
        begun = filter(_has_begun, level)
        yield flow.Level(iter(level), partial(_from, sorted(by_key)), partial(_of, by_key), begun, hand)


def _from(keys: list[str], last: str) -> Iterator[str]:
    yield from (key for key in keys if key > last)
    yield from (key for key in keys if key <= last)


def _has_begun(due: flow.Due[Row]) -> bool:
    return not due.first


def _of(by_key: dict[str, list[flow.Due[Row]]], key: str) -> Iterator[flow.Due[Row]]:
    return iter(by_key[key])


def _allowance(moment: Moment, queue: str) -> flow.Allowance | None:
    row = moment.room.queues.get(queue)
    if row is None or not row.limits.any:
        return None
    owned = Counter(
        each.run.flow_key
        for each in moment.room.open.values()
        if each.run.owner is not None and each.run.queue == queue
    )
    return flow.Allowance(row.limits, moment.now, owned, lambda key: sorted(row.begun.get(key, {}).items()))


def _remember(moment: Moment, queue: str, allowance: flow.Allowance) -> None:
    row = moment.room.queues[queue]
    for key, count in allowance.begins.items():
        rate = row.limits.key_rate if key else row.limits.rate
        if rate is not None:
            counts, end = row.begun.setdefault(key, {}), flow.window_end(rate, moment.now)
            counts[end] = counts.get(end, 0) + count


def forget_windows(moment: Moment) -> None:
    """Drop counts that no rate looks at any more."""
    for row in moment.room.queues.values():
        for key, counts in list(row.begun.items()):
            rate = row.limits.key_rate if key else row.limits.rate
            kept = {
                end: count
                for end, count in counts.items()
                if rate is not None and end > flow.forgotten(rate, moment.now)
            }
            row.begun[key] = kept
            if not kept:
                del row.begun[key]
