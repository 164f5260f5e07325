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
        return bool(await self._execute("set_quota", *said))

    async def clear_quota(self, name: str, act: Act | None = None) -> bool:
        return bool(await self._execute("clear_quota", name, *act_values(act)))

    async def quotas(self) -> list[Quota]:
        return await self._read_all(_view, "quotas", EVERYBODY, OPEN_RUNS, STARTS)

    async def spend_starts(self, count: int, quota: Quota, ago: int = 0) -> None:
        await self._execute("spend_starts", count, ago, quota.limit, quota.at_once)


def _view(row: Record) -> Quota:
    quota = Quota(name=row["name"], limit=whole(row["at_most"]), burst=row["burst"], own=row["own"])
    used = row["open"] if row["starts"] is None else quota.at_once - grown(row["starts"], quota, row["ago"])
    return replace(quota, used=used)
