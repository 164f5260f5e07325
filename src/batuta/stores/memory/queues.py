"""Queues in memory: their limits, and claiming from them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from itertools import groupby

from msgspec.structs import asdict, replace

from batuta.clock import as_datetime
from batuta.ids import RunId
from batuta.journal.audit import Act, Changed
from batuta.journal.dead_letters import LetterState
from batuta.journal.queues import LIMITS, GaugeRow, QueueInfo, QueueLimits, StoreGauges, gauges_of
from batuta.journal.records import Run, WorkerInfo
from batuta.journal.resilience import rates
from batuta.journal.states import RunState
from batuta.stores.contract import claim_limits, rules
from batuta.stores.memory.audit import record
from batuta.stores.memory.base import Base, verb
from batuta.stores.memory.tables import NamespaceTables, QueueRow, Row
from batuta.stores.memory.unit_of_work import UnitOfWork


class QueueVerbs(Base):
    @verb
    def limit_queue(
        self, unit: UnitOfWork, name: str, limits: QueueLimits, only: Collection[str] = LIMITS, act: Act | None = None
    ) -> None:
        record(unit, act, [Changed(target=name)])
        row = unit.tables.queues.setdefault(name, QueueRow())
        row.limits = replace(row.limits, **{limit: getattr(limits, limit) for limit in only})
        unit.hint.due = True

    @verb
    def pause_queue(self, unit: UnitOfWork, name: str, paused: bool, reason: str = "", act: Act | None = None) -> None:
        record(unit, act, [Changed(target=name)])
        row = unit.tables.queues.setdefault(name, QueueRow())
        row.paused, row.reason = paused, reason if paused else ""
        unit.hint.due = not paused

    @verb
    def queues(self, unit: UnitOfWork) -> list[QueueInfo]:
        return views(unit.tables, unit.now)

    @verb
    def hasten(self, unit: UnitOfWork, until: int, limit: int, *, asleep: int = 0) -> int:
        now = unit.now
        waiting = [(run.wake_at, run) for row in unit.tables.open.values() if (run := row.run).wake_at is not None]
        late = [
            run
            for at, run in sorted(waiting, key=lambda one: one[0])
            if now < at <= (until + asleep if run.head >= 0 else until) and (run.head >= 0 or run.created_at > now)
        ][:limit]
        for run in late:
            run.wake_at = now
        unit.hint.due = bool(late)
        return len(late)

    @verb
    def due_at(self, unit: UnitOfWork, worker: WorkerInfo) -> int | None:
        # There may be no heartbeat here: a claim also ends runs that have timed out.
        times = [due_at(unit, worker), *(overtime_at(row) for row in unit.tables.open.values())]
        return min((at for at in times if at is not None), default=None)


def views(room: NamespaceTables, now: int) -> list[QueueInfo]:
    """All queues with settings, work or workers, by name."""
    found = {
        name: QueueInfo(name, row.paused, row.reason, **asdict(row.limits))
        for name, row in room.queues.items()
        if row.paused or row.limits.any
    }
    for each in room.open.values():
        if each.run.owner is None and each.run.wake_at is None:
            continue  # it waits for a message, or is parked
        _count(found.setdefault(each.run.queue, QueueInfo(each.run.queue)), each.run, now)
    for known in room.workers.values():
        if known.lease_until > now:
            for name in set(known.worker.queues):
                found.setdefault(name, QueueInfo(name)).workers += 1
    return [found[name] for name in sorted(found)]


def gauges(room: NamespaceTables, now: int) -> StoreGauges:
    """How much is open."""
    rows: list[GaugeRow] = [("now", "", "", 0, now), ("schedule", "", "", 1, _late_schedule(room, now))]
    for run in (row.run for row in room.open.values()):
        if run.owner is not None:
            rows.append(("running", run.queue, run.state, 1, None))
        elif run.wake_at is None:
            rows.append(("idle", "", run.state, 1, None))
        else:
            rows.append(("due" if run.wake_at <= now else "delayed", run.queue, run.state, 1, run.wake_at))
    live = [known.worker for known in room.workers.values() if known.lease_until > now]
    rows.append(("workers", "", "", len(live), None))
    rows += [("worker", name, "", 1, None) for worker in live for name in set(worker.queues)]
    rows += [("paused", name, "", 1, None) for name, row in room.queues.items() if row.paused]
    rows += [("retrying", str(tries), "", 1, None) for row in room.open.values() if (tries := row.failures())]
    rows.append(("letters", "", "", sum(one.state is LetterState.OPEN for one in room.letters.values()), None))
    return gauges_of(rows)


def _late_schedule(room: NamespaceTables, now: int) -> int | None:
    at = room.schedule_at()
    return at if at is not None and at <= now else None


def _count(view: QueueInfo, run: Run, now: int) -> None:
    if run.owner is not None:
        view.running += 1
    elif run.wake_at is not None and run.wake_at > now:
        view.delayed += 1
    elif run.wake_at is not None:
        view.ready += 1
        due = as_datetime(run.wake_at)
        view.oldest = due if view.oldest is None else min(due, view.oldest)


def may_begin_at_once(room: NamespaceTables, queue: str) -> bool:
    """Whether a run may begin in the queue without having waited there."""
    row = room.queues.get(queue)
    return row is None or not (row.paused or row.limits.any)


def due_at(unit: UnitOfWork, worker: WorkerInfo) -> int | None:
    """Earliest time at which the worker can claim something."""
    allowances = {queue: _allowance(unit, queue) for queue in worker.queues}
    times: list[int] = []
    for wake_at, row in _open_queues(unit.tables, worker):
        allowance = allowances[row.run.queue]
        at = wake_at if allowance is None else allowance.when(row.run.flow_key, row.run.epoch == 0)
        if at is not None:
            times.append(max(at, wake_at))
    return min(times, default=None)


def overtime_at(row: Row) -> int | None:
    """When an unowned run times out."""
    run = row.run
    if run.owner is not None or run.paused_at is not None:
        return None
    return min((at for at in (run.deadline, run.expires_at) if at is not None), default=None)


def time_out(unit: UnitOfWork, rows: Iterable[Row]) -> list[RunId]:
    """End runs that have timed out."""
    ended: list[RunId] = []
    for row in list(rows):
        reason = rules.overtime(row.run.deadline, row.run.expires_at, unit.now)
        if reason and row.run.paused_at is None:
            last = (row.journal[-1].at, row.journal[-1].crc) if row.journal else None
            entry = rules.timed_out_entry(row.run.head, last, unit.now, reason)
            unit.close_from_outside(row, entry, RunState.TIMED_OUT, reason)
            ended.append(row.run.run_id)
    return ended


def left_behind(unit: UnitOfWork) -> list[Row]:
    """Unclaimed runs that have timed out."""
    return [row for row in unit.tables.open.values() if (at := overtime_at(row)) is not None and at <= unit.now]


def claim(
    unit: UnitOfWork, worker: WorkerInfo, limit: int, room: Mapping[str, int] | None
) -> tuple[list[Row], bool, int | None]:
    """Own the due runs. Also whether a limit held something back, and until when."""
    by_queue: dict[str, list[claim_limits.Due[Row]]] = defaultdict(list)
    for wake_at, row in _open_queues(unit.tables, worker):
        if wake_at <= unit.now:
            by_queue[row.run.queue].append(_due(row, wake_at))
    suspects = claim_limits.Suspects(1)
    allowances = {queue: _allowance(unit, queue) for queue in by_queue}
    lines = [
        claim_limits.Line(
            _levels(unit.tables, queue, due), suspects, allowances[queue], unit.now, (room or {}).get(queue)
        )
        for queue, due in by_queue.items()
    ]
    chosen = [due.row for due in claim_limits.choose(lines, limit)]
    for row in chosen:
        own(row, worker.worker_id, unit)
    for queue, allowance in allowances.items():
        if allowance is not None:
            _remember(unit, queue, allowance)
    times = [line.again_at for line in lines if line.again_at is not None]
    return chosen, any(line.held for line in lines), min(times, default=None)


def own(row: Row, worker_id: str, unit: UnitOfWork) -> None:
    """Let a worker have the run."""
    run = row.run
    run.epoch += 1
    run.state, run.owner, run.wake_at, run.reason = RunState.RUNNING, worker_id, None, ""
    run.deadline = rules.claimed_deadline(run.deadline, run.expires_at, unit.now)
    run.expires_at = None
    unit.tables.forget_debounce(row)
    if run.head != row.claimed_head:
        run.deaths = 0
    row.claimed_head = run.head


def _open_queues(room: NamespaceTables, worker: WorkerInfo) -> Iterator[tuple[int, Row]]:
    for wake_at, row in room.due(worker):
        queue = room.queues.get(row.run.queue)
        if queue is None or not queue.paused:
            yield wake_at, row


def _due(row: Row, wake_at: int) -> claim_limits.Due[Row]:
    run = row.run
    return claim_limits.Due(row, run.run_id.bytes, run.priority, wake_at, run.flow_key, run.epoch == 0, row.is_suspect)


def _levels(room: NamespaceTables, queue: str, due: list[claim_limits.Due[Row]]) -> Iterator[claim_limits.Level[Row]]:
    due.sort(key=lambda each: (-each.priority, each.wake_at, each.run_id))
    for priority, group in groupby(due, key=lambda each: each.priority):
        level = list(group)
        by_key: dict[str, list[claim_limits.Due[Row]]] = defaultdict(list)
        for each in level:
            by_key[each.flow_key].append(each)
        rotation = room.rotations.setdefault((queue, priority), claim_limits.Rotation())
        begun = (due for due in level if not due.first)
        yield claim_limits.Level(iter(level), partial(_from, sorted(by_key)), partial(_of, by_key), begun, rotation)


def _from(keys: list[str], last: str) -> Iterator[str]:
    yield from (key for key in keys if key > last)
    yield from (key for key in keys if key <= last)


def _of(by_key: dict[str, list[claim_limits.Due[Row]]], key: str) -> Iterator[claim_limits.Due[Row]]:
    return iter(by_key[key])


def _allowance(unit: UnitOfWork, queue: str) -> claim_limits.Allowance | None:
    row = unit.tables.queues.get(queue)
    if row is None or not row.limits.any:
        return None
    owned = Counter(
        each.run.flow_key
        for each in unit.tables.open.values()
        if each.run.owner is not None and each.run.queue == queue
    )
    return claim_limits.Allowance(row.limits, unit.now, owned, lambda key: sorted(row.begun.get(key, {}).items()))


def _remember(unit: UnitOfWork, queue: str, allowance: claim_limits.Allowance) -> None:
    row = unit.tables.queues[queue]
    for key, count in allowance.begins.items():
        rate = row.limits.key_rate if key else row.limits.rate
        if rate is not None:
            counts, end = row.begun.setdefault(key, {}), rates.window_end(rate, unit.now)
            counts[end] = counts.get(end, 0) + count


def forget_windows(unit: UnitOfWork) -> None:
    """Delete counts that no rate needs any more."""
    for row in unit.tables.queues.values():
        for key, counts in list(row.begun.items()):
            rate = row.limits.key_rate if key else row.limits.rate
            kept = {
                end: count
                for end, count in counts.items()
                if rate is not None and end > rates.forgotten(rate, unit.now)
            }
            row.begun[key] = kept
            if not kept:
                del row.begun[key]
