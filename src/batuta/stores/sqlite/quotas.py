"""Quotas in SQLite."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from batuta.journal.audit import Act, Changed
from batuta.journal.quotas import EVERYBODY, OPEN_RUNS, STARTS, Quota, grown, holding, spent, whole
from batuta.stores.sqlite.database.base import Base
from batuta.stores.sqlite.database.unit_of_work import UnitOfWork


class QuotaVerbs(Base):
    """The part of the store that is about how much a namespace may start."""

    async def set_quota(self, quota: Quota, act: Act | None = None) -> bool:
        return await self._change_quota("set_quota", quota.name, (quota.limit, quota.burst), act)

    async def clear_quota(self, name: str, act: Act | None = None) -> bool:
        return await self._change_quota("clear_quota", name, (), act)

    async def _change_quota(self, statement: str, name: str, values: tuple[Any, ...], act: Act | None) -> bool:
        def work(unit: UnitOfWork) -> bool:
            if not unit.change(statement, (unit.namespace, name, *values)):
                return False
            unit.record(act, [Changed(target=name)])
            if name == OPEN_RUNS:
                unit.execute("index_idle" if unit.finds("counts_open", (OPEN_RUNS,)) else "drop_idle")
            return True

        return await self._write(work, aside=True)

    async def quotas(self) -> list[Quota]:
        found = self._read(_holding)
        if not found:
            return []
        return await self._read_apart(lambda unit: [replace(quota, used=_used(unit, quota)) for quota in found])

    async def spend_starts(self, count: int, quota: Quota, ago: int = 0) -> None:
        def work(unit: UnitOfWork) -> None:
            left = spent(_allowance(unit), quota, count, ago, unit.now)
            unit.change("set_allowance", (unit.namespace, left, unit.now))

        await self._write(work, small=True)


def _holding(unit: UnitOfWork) -> list[Quota]:
    own, everybody = (
        [Quota(name=name, limit=whole(limit), burst=burst) for name, limit, burst in unit.rows("quotas", (whose,))]
        for whose in (unit.namespace, EVERYBODY)
    )
    return holding(own, everybody)


def _used(unit: UnitOfWork, quota: Quota) -> float:
    if quota.limit is None:
        return 0
    if quota.name == OPEN_RUNS:
        values = {"namespace": unit.namespace, "limit": int(quota.limit) + 1}
        return int(unit.value("count_open", values, 0))
    known = _allowance(unit) if quota.name == STARTS else None
    return 0 if known is None else quota.at_once - grown(known[0], quota, unit.now - known[1])


def _allowance(unit: UnitOfWork) -> tuple[float, int] | None:
    row = unit.row("allowance", (unit.namespace,))
    return None if row is None else (row[0], row[1])
