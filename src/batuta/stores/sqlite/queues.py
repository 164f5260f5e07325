"""Queues: their rows, what they may give, and what is going on in them."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable

from msgspec import Struct

from batuta.journal.queues import LIMITS, QueueLimits, QueueView, Rate
from batuta.journal.records import NewRun
from batuta.stores import flow, rules
from batuta.stores.sqlite.connection import Q
from batuta.stores.sqlite.rows import Row, one, workers_of

Executor = sqlite3.Cursor | sqlite3.Connection


class Queue(Struct):
    """A queue's row."""

    name: str
    keyed: bool
    paused: bool
    note: str
    limits: QueueLimits


def queue_of(row: Row) -> Queue:
    """A row of `SELECT * FROM queues`."""
    _, name, keyed, paused, note, concurrency, key_concurrency, count, period, key_count, key_period = row
    limits = QueueLimits(
        concurrency=concurrency,
        key_concurrency=key_concurrency,
        rate=None if count is None else Rate(count, period),
        key_rate=None if key_count is None else Rate(key_count, key_period),
    )
    return Queue(name, bool(keyed), bool(paused), note, limits)


def special(executor: Executor, namespace: str, names: Iterable[str]) -> dict[str, Queue]:
    """Those of the queues that there is something to heed about."""
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
    limits = limits.only(only)
    rates = [(None, None) if each is None else (each.count, each.period) for each in (limits.rate, limits.key_rate)]
    (count, period), (key_count, key_period) = rates
    values = {
        "namespace": namespace,
        "name": name,
        "at_once": limits.concurrency,
        "of_key_at_once": limits.key_concurrency,
        "count": count,
        "period": period,
        "key_count": key_count,
        "key_period": key_period,
    }
    cursor.execute(Q["limit_queue"], values | {limit: limit in only for limit in LIMITS})


def pause(cursor: sqlite3.Cursor, namespace: str, name: str, paused: bool, note: str) -> None:
    cursor.execute(Q["pause_queue"], (namespace, name, paused, note if paused else ""))


def allowance_of(executor: Executor, namespace: str, queue: Queue, now: int) -> flow.Allowance | None:
    """What the queue may give at this moment; None when that has no limit."""
    limits = queue.limits
    if not limits.any:
        return None
    owned: Counter[str] = Counter()
    if limits.concurrency is not None or limits.key_concurrency is not None:
        for owner in _owners(executor, namespace):
            owned.update(dict(executor.execute(Q["owned_by_key"], (namespace, owner, queue.name)).fetchall()))

    def begun(key: str) -> list[tuple[int, int]]:
        rate = limits.key_rate if key else limits.rate
        since = 0 if rate is None else flow.forgotten(rate, now)
        return executor.execute(Q["begun"], (namespace, queue.name, key, since)).fetchall()

    return flow.Allowance(limits, now, owned, begun)


def _owners(executor: Executor, namespace: str) -> list[str]:
    return [owner for (owner,) in executor.execute(Q["owners"], {"namespace": namespace}).fetchall()]


def note_begun(cursor: sqlite3.Cursor, namespace: str, queue: Queue, allowance: flow.Allowance, now: int) -> None:
    """Count what has begun, and forget what no rate looks at any more."""
    for key, count in allowance.begins.items():
        rate = queue.limits.key_rate if key else queue.limits.rate
        if rate is not None:
            cursor.execute(Q["forget_begun"], (namespace, queue.name, key, flow.forgotten(rate, now)))
            values = (namespace, queue.name, key, flow.window_end(rate, now), count)
            cursor.execute(Q["note_begun"], values)


def forget_begun(cursor: sqlite3.Cursor, namespace: str, now: int) -> None:
    """The same for keys that nothing has begun for since."""
    for queue in map(queue_of, cursor.execute(Q["queue_rows"], (namespace,)).fetchall()):
        rates = [rate for rate in (queue.limits.rate, queue.limits.key_rate) if rate is not None]
        if rates:
            since = min(flow.forgotten(rate, now) for rate in rates)
            cursor.execute(Q["forget_all_begun"], (namespace, queue.name, since, rules.BEAT_LIMIT))


def views(connection: sqlite3.Connection, namespace: str, now: int) -> list[QueueView]:
    """All queues that there is something to say about, by name."""
    found: dict[str, QueueView] = {}
    for queue in map(queue_of, connection.execute(Q["queue_rows"], (namespace,)).fetchall()):
        if queue.paused or queue.limits.any:
            found[queue.name] = QueueView(name=queue.name, paused=queue.paused, note=queue.note, limits=queue.limits)
    values = {"namespace": namespace, "now": now}
    for query in ("waiting_in_queues", "keyed_in_queues"):
        for name, ready, delayed, oldest in connection.execute(Q[query], values).fetchall():
            view = found.setdefault(name, QueueView(name=name))
            view.ready, view.delayed = view.ready + ready, view.delayed + delayed
            view.oldest = min((at for at in (view.oldest, oldest) if at is not None), default=None)
    for owner in _owners(connection, namespace):
        for name, count in connection.execute(Q["owned_in_queues"], (namespace, owner)).fetchall():
            found.setdefault(name, QueueView(name=name)).running += count
    for worker in workers_of(connection.execute(Q["workers"], (namespace,)).fetchall(), now):
        for name in set(worker.queues) if worker.live else ():
            found.setdefault(name, QueueView(name=name)).workers += 1
    return [found[name] for name in sorted(found)]
