"""Quotas in PostgreSQL."""

from __future__ import annotations

from asyncpg import Record
from msgspec.structs import replace

from batuta.journal.audit import Act
from batuta.journal.quotas import EVERYBODY, OPEN_RUNS, STARTS, Quota, grown, whole
from batuta.stores.postgres.audit import act_values
from batuta.stores.postgres.base import Base


class QuotaVerbs(Base):
    """The part of the store that is about how much a namespace may start."""

    async def set_quota(self, quota: Quota, act: Act | None = None) -> bool:
        said = (quota.name, quota.limit, quota.burst, *act_values(act))
        return bool(await self._pool.write(self._sql["set_quota"], self.namespace, *said))

    async def clear_quota(self, name: str, act: Act | None = None) -> bool:
        return bool(await self._pool.write(self._sql["clear_quota"], self.namespace, name, *act_values(act)))

    async def quotas(self) -> list[Quota]:
        rows = await self._pool.read(self._sql["quotas"], self.namespace, EVERYBODY, OPEN_RUNS, STARTS)
        return [_view(row) for row in rows]

    async def spend_starts(self, count: int, quota: Quota, ago: int = 0) -> None:
        values = (self.namespace, count, ago, quota.limit, quota.at_once)
        await self._pool.write(self._sql["spend_starts"], *values)


def _view(row: Record) -> Quota:
    quota = Quota(name=row["name"], limit=whole(row["at_most"]), burst=row["burst"], own=row["own"])
    used = row["open"] if row["starts"] is None else quota.at_once - grown(row["starts"], quota, row["ago"])
    return replace(quota, used=used)
