"""Queues: their rows, their limits, and their work."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable

from msgspec import Struct
from msgspec.structs import asdict

from batuta.clock import as_datetime
from batuta.journal.queues import LIMITS, QueueInfo, QueueLimits
from batuta.journal.records import NewRun
from batuta.journal.resilience import rates
from batuta.stores.contract import claim_limits, rules
from batuta.stores.sqlite.database.connection import Q
from batuta.stores.sqlite.database.rows import Row, one, workers_of

_LIMIT_COLUMNS = tuple(QueueLimits().columns())
Executor = sqlite3.Cursor | sqlite3.Connection


class Queue(Struct):
    """A queue's row."""

    name: str
    keyed: bool
    paused: bool
    reason: str
    limits: QueueLimits


def queue_of(row: Row) -> Queue:
    """A row of `SELECT * FROM queues`. A newer schema may have more columns at its end."""
    _, name, keyed, paused, reason, *limits = row
    return Queue(
        name, bool(keyed), bool(paused), reason, QueueLimits.of_columns(dict(zip(_LIMIT_COLUMNS, limits, strict=False)))
    )


def special(executor: Executor, namespace: str, names: Iterable[str]) -> dict[str, Queue]:
    """Queues among these that have settings."""
    rows = (one(executor.execute(Q["queue"], (namespace, name))) for name in dict.fromkeys(names))
    found = [queue_of(row) for row in rows if row is not None]
    return {queue.name: queue for queue in found if queue.keyed or queue.paused or queue.limits.any}


def must_wait(cursor: sqlite3.Cursor, namespace: str, name: str) -> bool:
    """Whether a run must have waited in the queue before it begins."""
    return one(cursor.execute(Q["must_wait"], (namespace, name))) is not None


def note_keyed(cursor: sqlite3.Cursor, namespace: str, runs: Iterable[NewRun]) -> None:
    """Remember the queues that runs with flow keys are started into."""
    for name in dict.fromkeys(new.queue for new in runs if new.flow_key):
        cursor.execute(Q["note_keyed"], (namespace, name))


def limit(cursor: sqlite3.Cursor, namespace: str, name: str, limits: QueueLimits, only: Collection[str]) -> None:
    values = {"namespace": namespace, "name": name} | limits.only(only).columns()
    cursor.execute(Q["limit_queue"], values | {f"set_{limit}": limit in only for limit in LIMITS})


def pause(cursor: sqlite3.Cursor, namespace: str, name: str, paused: bool, reason: str) -> None:
    cursor.execute(Q["pause_queue"], (namespace, name, paused, reason if paused else ""))


def allowance_of(executor: Executor, namespace: str, queue: Queue, now: int) -> claim_limits.Allowance | None:
    """The runs that the queue may give now; None without a limit."""
    limits = queue.limits
    if not limits.any:
        return None
    owned: Counter[str] = Counter()
    if limits.concurrency is not None or limits.key_concurrency is not None:
        for owner in _owners(executor, namespace):
            owned.update(dict(executor.execute(Q["owned_by_key"], (namespace, owner, queue.name)).fetchall()))

    def begun(key: str) -> list[tuple[int, int]]:
        rate = limits.key_rate if key else limits.rate
        since = 0 if rate is None else rates.forgotten(rate, now)
        return executor.execute(Q["begun"], (namespace, queue.name, key, since)).fetchall()

    return claim_limits.Allowance(limits, now, owned, begun)


def _owners(executor: Executor, namespace: str) -> list[str]:
    return [owner for (owner,) in executor.execute(Q["owners"], {"namespace": namespace}).fetchall()]


def note_begun(
    cursor: sqlite3.Cursor, namespace: str, queue: Queue, allowance: claim_limits.Allowance, now: int
) -> None:
    """Count begun runs, and delete counts that no rate needs any more."""
    for key, count in allowance.begins.items():
        rate = queue.limits.key_rate if key else queue.limits.rate
        if rate is not None:
            cursor.execute(Q["forget_begun"], (namespace, queue.name, key, rates.forgotten(rate, now)))
            values = (namespace, queue.name, key, rates.window_end(rate, now), count)
            cursor.execute(Q["note_begun"], values)


def forget_begun(cursor: sqlite3.Cursor, namespace: str, now: int) -> None:
    """The same for keys that nothing has begun for since."""
    for queue in map(queue_of, cursor.execute(Q["queue_rows"], (namespace,)).fetchall()):
        limits = [rate for rate in (queue.limits.rate, queue.limits.key_rate) if rate is not None]
        if limits:
            since = min(rates.forgotten(rate, now) for rate in limits)
            cursor.execute(Q["forget_all_begun"], (namespace, queue.name, since, rules.BEAT_LIMIT))


def views(connection: sqlite3.Connection, namespace: str, now: int) -> list[QueueInfo]:
    """All queues with settings, work or workers, by name."""
    found: dict[str, QueueInfo] = {}
    for queue in map(queue_of, connection.execute(Q["queue_rows"], (namespace,)).fetchall()):
        if queue.paused or queue.limits.any:
            found[queue.name] = QueueInfo(queue.name, queue.paused, queue.reason, **asdict(queue.limits))
    values = {"namespace": namespace, "now": now}
    for query in ("waiting_in_queues", "keyed_in_queues"):
        for name, ready, delayed, oldest in connection.execute(Q[query], values).fetchall():
            view = found.setdefault(name, QueueInfo(name))
            view.ready, view.delayed = view.ready + ready, view.delayed + delayed
            due = as_datetime(oldest)
            view.oldest = min((at for at in (view.oldest, due) if at is not None), default=None)
    for owner in _owners(connection, namespace):
        for name, count in connection.execute(Q["owned_in_queues"], (namespace, owner)).fetchall():
            found.setdefault(name, QueueInfo(name)).running += count
    for worker in workers_of(connection.execute(Q["workers"], (namespace,)).fetchall(), now):
        for name in set(worker.queues) if worker.live else ():
            found.setdefault(name, QueueInfo(name)).workers += 1
    return [found[name] for name in sorted(found)]
