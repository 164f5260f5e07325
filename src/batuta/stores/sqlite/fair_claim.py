"""Claims from queues with flow keys or limits: due runs, their order, and when the next ones are due."""

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from batuta.journal.records import WorkerInfo
from batuta.stores.contract import claim_limits
from batuta.stores.sqlite.database.claimed_rows import BY_ROWID, Due, place, read_due
from batuta.stores.sqlite.database.connection import Q
from batuta.stores.sqlite.database.rows import Row, to_json
from batuta.stores.sqlite.database.unit_of_work import UnitOfWork
from batuta.stores.sqlite.queues import Queue, allowance_of, note_begun

MOST_VISITS = 1_000
"""Flow keys that a claim looks at, one by one, before it lets the others wait for the next one."""
MOST_HELD = 250
"""The same for runs that a limit holds back: the flow keys lead to the others."""
MOST_HANDS = 1_000
"""Queues and priorities whose rotation is remembered. Forgetting one costs some fairness, once."""
ABOVE_ALL = 2**63 - 1

Rotations = dict[tuple[str, int], claim_limits.Rotation]
"""The rotations, by queue and priority."""

Chosen = tuple[list[Due], bool, int | None]
"""Rows to be owned (see `claimed`), whether a limit held something back, and until when."""


class FairClaim:
    """The state of the worker's queues for one claim."""

    def __init__(
        self,
        unit: UnitOfWork,
        worker: WorkerInfo,
        queues: Mapping[str, Queue],
        *,
        suspects: bool,
    ) -> None:
        self.unit = unit
        self._suspects = suspects
        self._open: list[sqlite3.Cursor] = []
        self._lines: list[claim_limits.Line[int]] = []
        self._earliest: int | None = None
        self._code = to_json(worker.code)
        found = (queues.get(name) or Queue(name) for name in dict.fromkeys(worker.queues))
        self._queues = [queue for queue in found if not queue.paused]

    def choose(self, limit: int, room: Mapping[str, int], rotations: Rotations) -> Chosen:
        """Runs that may be owned now; `rotations` move on with them."""
        suspects = claim_limits.Suspects(int(self._suspects))
        self._lines = [self._line(queue, suspects, limit, room, rotations) for queue in self._queues]
        try:
            chosen = [due.row for due in claim_limits.choose(self._lines, limit)]
        finally:
            self._close()
        rows = read_due(self.unit, BY_ROWID, (to_json(chosen),)) if chosen else []
        rows.sort(key=place)
        times = [line.again_at for line in self._lines if line.again_at is not None]
        held = any(line.held for line in self._lines)
        return rows, held, min(times, default=None)

    def note_begun(self) -> None:
        """The chosen runs are owned now."""
        for queue, line in zip(self._queues, self._lines, strict=True):
            if line.allowance is not None:
                note_begun(self.unit, queue, line.allowance)

    def due_at(self) -> int | None:
        """Earliest time at which something may be owned."""
        self._earliest = None
        try:
            for at in (at for queue in self._queues for at in self._times(queue)):
                self._earliest = at if self._earliest is None else min(at, self._earliest)
                if at <= self.unit.now:
                    break
        finally:
            self._close()
        return self._earliest

    def _line(
        self, queue: Queue, suspects: claim_limits.Suspects, limit: int, room: Mapping[str, int], rotations: Rotations
    ) -> claim_limits.Line[int]:
        found = priorities(self.unit, queue.name, queue.keyed, self.unit.now)
        levels = (self._level(queue, priority, limit + MOST_HELD, rotations) for priority in found)
        return claim_limits.Line(levels, suspects, allowance_of(self.unit, queue), self.unit.now, room.get(queue.name))

    def _level(self, queue: Queue, priority: int, most: int, rotations: Rotations) -> claim_limits.Level[int]:
        if len(rotations) > MOST_HANDS:
            rotations.clear()
        rotation = rotations.setdefault((queue.name, priority), claim_limits.Rotation())
        level = _Level(self, queue.name, priority, rotation)
        streams = [level.stream("due_in_order")]
        if queue.keyed:
            streams.append(level.stream("keyed_in_order"))
        if self._suspects:
            streams.append(level.stream("suspects_in_order", suspect=True))
        ordered = heapq.merge(*(islice(stream, most) for stream in streams), key=lambda due: due.wake_at)
        begun = level.stream("begun_in_order") if queue.limits.rate or queue.limits.key_rate else iter(())
        keys = level.keys if queue.keyed else _no_keys
        return claim_limits.Level(ordered, keys, level.of_key, islice(begun, MOST_VISITS), rotation)

    def _times(self, queue: Queue) -> Iterator[int]:
        """When runs of a queue may be owned: of each kind the first."""
        allowance = allowance_of(self.unit, queue)
        if allowance is not None and allowance.is_full:
            return
        for priority in priorities(self.unit, queue.name, queue.keyed):
            level = _Level(self, queue.name, priority, claim_limits.Rotation(), until=ABOVE_ALL)
            for due in self._firsts(level, queue, allowance):
                at = self.unit.now if allowance is None else allowance.when(due.flow_key, due.first)
                if at is not None:
                    yield due.wake_at if at <= self.unit.now else max(at, due.wake_at)

    def _firsts(
        self, level: _Level, queue: Queue, allowance: claim_limits.Allowance | None
    ) -> Iterator[claim_limits.Due[int]]:
        """Runs of which one is the first that may be owned."""
        limits = queue.limits
        streams = [level.stream("due_in_order")]
        if self._suspects:
            streams.append(level.stream("suspects_in_order", suspect=True))
        if limits.rate or limits.key_rate:
            streams.append(_not_full(level.stream("begun_in_order"), allowance))
        by_key = limits.key_concurrency is not None or limits.key_rate is not None
        if queue.keyed and not by_key:
            streams.append(level.stream("keyed_in_order"))
        for stream in streams:
            yield from islice(stream, 1)
        if queue.keyed and by_key and allowance is not None:
            for key, wake_at in level.keys_from("", MOST_VISITS):
                at = allowance.when(key, first=True)
                if at is not None and (self._earliest is None or max(at, wake_at) < self._earliest):
                    yield from islice(level.of_key(key), 1)

    # -- reading step by step

    def values(self, name: str, priority: int, until: int) -> dict[str, Any]:
        namespace = self.unit.namespace
        return {"namespace": namespace, "queue": name, "priority": priority, "until": until, "code": self._code}

    def steps(self, query: str, values: dict[str, Any]) -> Iterator[Row]:
        """The rows of a query, as far as somebody asks for them."""
        cursor = self.unit.connection.cursor()
        self._open.append(cursor)
        return cursor.execute(Q[query], values)

    def _close(self) -> None:
        # A half-read statement would hold its snapshot, and a write after it would not be seen.
        for cursor in self._open:
            cursor.close()
        self._open.clear()


class _Level:
    """A queue at one priority."""

    def __init__(
        self, turns: FairClaim, name: str, priority: int, rotation: claim_limits.Rotation, until: int | None = None
    ) -> None:
        self.rotation = rotation
        self._turns = turns
        self._priority = priority
        self._until = turns.unit.now if until is None else until
        self._values = turns.values(name, priority, self._until)

    def stream(self, query: str, *, suspect: bool = False) -> Iterator[claim_limits.Due[int]]:
        """Due runs, by wake_at."""
        for row in self._turns.steps(query, self._values):
            yield self._due(row, suspect)

    def keys(self, last: str) -> Iterator[str]:
        """The flow keys in rotation, behind the last one and then from the first; up to `limit`, and the next claim
        goes on."""
        visits = 0
        for after in (last, None):
            if after is None:
                yield ""
                if not last:
                    return
            for key, wake_at in self.keys_from(after or "", MOST_VISITS - visits):
                if after is None and key > last:
                    return
                visits += 1
                if wake_at <= self._until:
                    yield key
                if visits == MOST_VISITS:
                    self.rotation.key = key

    def keys_from(self, after: str, limit: int) -> Iterator[Row]:
        """Flow keys with the times from which on they are due."""
        return self._turns.steps("keys_in_turn", self._values | {"after": after, "limit": limit})

    def of_key(self, key: str) -> Iterator[claim_limits.Due[int]]:
        """Due runs of a flow key, by wake_at."""
        if not key:
            yield from self.stream("due_in_order")
            return
        begin, size = 0, 1
        while True:
            values = self._values | {"flow_key": key, "limit": size, "offset": begin}
            rows = self._turns.unit.rows("due_of_key", values)
            for row in rows:
                yield self._due(row, suspect=False)
            if len(rows) < size:
                return
            begin, size = begin + size, size * 4

    def _due(self, row: Row, suspect: bool) -> claim_limits.Due[int]:
        rowid, run_id, wake_at, flow_key, first = row
        return claim_limits.Due(rowid, run_id, self._priority, wake_at, flow_key, bool(first), suspect)


def priorities(unit: UnitOfWork, name: str, keyed: bool, until: int = ABOVE_ALL) -> Iterator[int]:
    """The priorities of runs due in a queue until then, high first: a few, and more on demand."""
    queries = ["due_priorities", "due_keyed_priorities"] if keyed else ["due_priorities"]
    values: dict[str, Any] = {
        "namespace": unit.namespace,
        "queue": name,
        "until": until,
        "below": ABOVE_ALL,
        "limit": 4,
    }
    while True:
        found = {row[0] for query in queries for row in unit.rows(query, values)}
        some = sorted(found, reverse=True)[: values["limit"]]
        yield from some
        if len(some) < values["limit"]:
            return
        values |= {"below": some[-1], "limit": values["limit"] * 4}


def _no_keys(_last: str) -> Iterator[str]:
    return iter(())


def _not_full(
    stream: Iterator[claim_limits.Due[int]], allowance: claim_limits.Allowance | None
) -> Iterator[claim_limits.Due[int]]:
    for due in islice(stream, MOST_VISITS):
        if allowance is None or not allowance.is_key_full(due.flow_key):
            yield due
