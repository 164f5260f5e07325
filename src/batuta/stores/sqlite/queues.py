"""Queues: their rows, their limits, and their work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from msgspec import Struct, field
from msgspec.structs import asdict

from batuta.clock import as_datetime
from batuta.journal.audit import Act
from batuta.journal.queues import LIMITS, QueueInfo, QueueLimits
from batuta.journal.records import Hint, NewRun
from batuta.journal.resilience import rates
from batuta.stores.contract import claim_limits, rules
from batuta.stores.sqlite.database.base import Base
from batuta.stores.sqlite.database.rows import Row, workers_of
from batuta.stores.sqlite.database.unit_of_work import UnitOfWork

_LIMIT_COLUMNS = tuple(QueueLimits().columns())


class Queue(Struct):
    """A queue's row."""

    name: str
    keyed: bool = False
    paused: bool = False
    reason: str = ""
    limits: QueueLimits = field(default_factory=QueueLimits)


class QueueVerbs(Base):
    """The part of the store that is about queues."""

    async def limit_queue(
        self, name: str, limits: QueueLimits, only: Collection[str] = LIMITS, act: Act | None = None
    ) -> None:
        values = {"namespace": self.namespace, "name": name} | limits.only(only).columns()
        values |= {f"set_{limit}": limit in only for limit in LIMITS}
        await self._change("limit_queue", values, act, name)
        self.tell(Hint(due=True))

    async def pause_queue(self, name: str, paused: bool, reason: str = "", act: Act | None = None) -> None:
        await self._change("pause_queue", (self.namespace, name, paused, reason if paused else ""), act, name)
        self.tell(Hint(due=not paused))

    async def queues(self) -> list[QueueInfo]:
        return await self._read_apart(_views)


def queue_of(row: Row) -> Queue:
    """A row of `SELECT * FROM queues`. A newer schema may have more columns at its end."""
    _, name, keyed, paused, reason, *limits = row
    return Queue(
        name, bool(keyed), bool(paused), reason, QueueLimits.of_columns(dict(zip(_LIMIT_COLUMNS, limits, strict=False)))
    )


def special(unit: UnitOfWork, names: Iterable[str]) -> dict[str, Queue]:
    """Queues among these that have settings."""
    rows = (unit.row("queue", (unit.namespace, name)) for name in dict.fromkeys(names))
    found = [queue_of(row) for row in rows if row is not None]
    return {queue.name: queue for queue in found if queue.keyed or queue.paused or queue.limits.any}


def must_wait(unit: UnitOfWork, name: str) -> bool:
    """Whether a run must have waited in the queue before it begins."""
    return unit.finds("must_wait", (unit.namespace, name))


def note_keyed(unit: UnitOfWork, runs: Iterable[NewRun]) -> None:
    """Remember the queues that runs with flow keys are started into."""
    for name in dict.fromkeys(new.queue for new in runs if new.flow_key):
        unit.change("note_keyed", (unit.namespace, name))


def allowance_of(unit: UnitOfWork, queue: Queue) -> claim_limits.Allowance | None:
    """The runs that the queue may give now; None without a limit."""
    limits = queue.limits
    if not limits.any:
        return None
    owned: Counter[str] = Counter()
    if limits.concurrency is not None or limits.key_concurrency is not None:
        for owner in _owners(unit):
            owned.update(dict(unit.rows("owned_by_key", (unit.namespace, owner, queue.name))))

    def begun(key: str) -> list[tuple[int, int]]:
        rate = limits.key_rate if key else limits.rate
        since = 0 if rate is None else rates.forgotten(rate, unit.now)
        return unit.rows("begun", (unit.namespace, queue.name, key, since))

    return claim_limits.Allowance(limits, unit.now, owned, begun)


def _owners(unit: UnitOfWork) -> list[str]:
    return [owner for (owner,) in unit.rows("owners", {"namespace": unit.namespace})]


def note_begun(unit: UnitOfWork, queue: Queue, allowance: claim_limits.Allowance) -> None:
    """Count begun runs, and delete counts that no rate needs any more."""
    for key, count in allowance.begins.items():
        rate = queue.limits.key_rate if key else queue.limits.rate
        if rate is not None:
            unit.change("forget_begun", (unit.namespace, queue.name, key, rates.forgotten(rate, unit.now)))
            values = (unit.namespace, queue.name, key, rates.window_end(rate, unit.now), count)
            unit.change("note_begun", values)


def forget_begun(unit: UnitOfWork) -> None:
    """The same for keys that nothing has begun for since."""
    for queue in map(queue_of, unit.rows("queue_rows", (unit.namespace,))):
        limits = [rate for rate in (queue.limits.rate, queue.limits.key_rate) if rate is not None]
        if limits:
            since = min(rates.forgotten(rate, unit.now) for rate in limits)
            unit.change("forget_all_begun", (unit.namespace, queue.name, since, rules.BEAT_LIMIT))


def _views(unit: UnitOfWork) -> list[QueueInfo]:
    """All queues with settings, work or workers, by name."""
    found: dict[str, QueueInfo] = {}
    for queue in map(queue_of, unit.rows("queue_rows", (unit.namespace,))):
        if queue.paused or queue.limits.any:
            found[queue.name] = QueueInfo(queue.name, queue.paused, queue.reason, **asdict(queue.limits))
    values = {"namespace": unit.namespace, "now": unit.now}
    for query in ("waiting_in_queues", "keyed_in_queues"):
        for name, ready, delayed, oldest in unit.rows(query, values):
            view = found.setdefault(name, QueueInfo(name))
            view.ready, view.delayed = view.ready + ready, view.delayed + delayed
            due = as_datetime(oldest)
            view.oldest = min((at for at in (view.oldest, due) if at is not None), default=None)
    for owner in _owners(unit):
        for name, count in unit.rows("owned_in_queues", (unit.namespace, owner)):
            found.setdefault(name, QueueInfo(name)).running += count
    for worker in workers_of(unit.rows("workers", (unit.namespace,)), unit.now):
        for name in set(worker.queues) if worker.live else ():
            found.setdefault(name, QueueInfo(name)).workers += 1
    return [found[name] for name in sorted(found)]
