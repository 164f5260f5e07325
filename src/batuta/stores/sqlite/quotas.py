"""Quotas in SQLite."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from typing import Any

from msgspec.structs import replace

from batuta.journal.audit import Act, Changed
from batuta.journal.quotas import EVERYBODY, OPEN_RUNS, STARTS, Quota, grown, holding, spent, whole
from batuta.stores.sqlite.audit import record
from batuta.stores.sqlite.database.connection import Q
from batuta.stores.sqlite.database.readers import Readers
from batuta.stores.sqlite.database.rows import one
from batuta.stores.sqlite.database.writer import Writer

Executor = sqlite3.Cursor | sqlite3.Connection


class QuotaVerbs(ABC):
    """The part of the store that is about how much a namespace may start."""

    namespace: str
    _writer: Writer
    _readers: Readers

    @abstractmethod
    def clock_now(self) -> int: ...

    async def set_quota(self, quota: Quota, act: Act | None = None) -> bool:
        return await self._change_quota("set_quota", (quota.name, quota.limit, quota.burst), act)

    async def clear_quota(self, name: str, act: Act | None = None) -> bool:
        return await self._change_quota("clear_quota", (name,), act)

    async def _change_quota(self, statement: str, values: tuple[Any, ...], act: Act | None) -> bool:
        now, name = self.clock_now(), values[0]

        def work(cursor: sqlite3.Cursor) -> bool:
            if not cursor.execute(Q[statement], (self.namespace, *values)).rowcount:
                return False
            record(cursor, self.namespace, now, act, [Changed(target=name)])
            if name == OPEN_RUNS:
                is_needed = one(cursor.execute(Q["counts_open"], (OPEN_RUNS,))) is not None
                cursor.execute(Q["index_idle" if is_needed else "drop_idle"])
            return True

        return await self._writer.write(work, aside=True)

    async def quotas(self) -> list[Quota]:
        found = self._readers.read(lambda connection: _holding(connection, self.namespace))
        if not found:
            return []
        now = self.clock_now()
        return await self._readers.read_apart(
            lambda connection: [replace(quota, used=_used(connection, self.namespace, quota, now)) for quota in found]
        )

    async def spend_starts(self, count: int, quota: Quota, ago: int = 0) -> None:
        now = self.clock_now()

        def work(cursor: sqlite3.Cursor) -> None:
            left = spent(_allowance(cursor, self.namespace), quota, count, ago, now)
            cursor.execute(Q["set_allowance"], (self.namespace, left, now))

        await self._writer.write(work, small=True)


def _holding(executor: Executor, namespace: str) -> list[Quota]:
    own, everybody = (
        [
            Quota(name=name, limit=whole(limit), burst=burst)
            for name, limit, burst in executor.execute(Q["quotas"], (whose,)).fetchall()
        ]
        for whose in (namespace, EVERYBODY)
    )
    return holding(own, everybody)


def _used(executor: Executor, namespace: str, quota: Quota, now: int) -> float:
    if quota.limit is None:
        return 0
    if quota.name == OPEN_RUNS:
        values = {"namespace": namespace, "limit": int(quota.limit) + 1}
        row = one(executor.execute(Q["count_open"], values))
        return 0 if row is None else int(row[0])
    known = _allowance(executor, namespace) if quota.name == STARTS else None
    return 0 if known is None else quota.at_once - grown(known[0], quota, now - known[1])


def _allowance(executor: Executor, namespace: str) -> tuple[float, int] | None:
    row = one(executor.execute(Q["allowance"], (namespace,)))
    return None if row is None else (row[0], row[1])
