"""Quotas in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager

from batuta.journal.acts import Act, Changed
from batuta.journal.quotas import EVERYBODY, OPEN_RUNS, STARTS, Quota, QuotaView, grown, holding, spent
from batuta.stores.memory.audit import record
from batuta.stores.memory.moment import Moment
from batuta.stores.memory.tables import MemoryDatabase, Room


class QuotaVerbs(ABC):
    """The part of the store that is about how much a namespace may start."""

    _database: MemoryDatabase

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Moment]: ...

    async def set_quota(self, quota: Quota, act: Act | None = None) -> bool:
        with self.transaction() as moment:
            known = moment.room.quotas
            if known.get(quota.name) == quota:
                return False
            record(moment, act, [Changed(target=quota.name)])
            known[quota.name] = quota
            return True

    async def clear_quota(self, name: str, act: Act | None = None) -> bool:
        with self.transaction() as moment:
            if moment.room.quotas.pop(name, None) is None:
                return False
            record(moment, act, [Changed(target=name)])
            return True

    async def quotas(self) -> list[QuotaView]:
        with self.transaction() as moment:
            others = self._database.rooms.get(EVERYBODY, Room()).quotas
            found = holding(moment.room.quotas.values(), others.values())
            return [QuotaView(quota=quota, own=own, used=_used(moment, quota)) for quota, own in found]

    async def spend_starts(self, count: int, quota: Quota, ago: int = 0) -> None:
        with self.transaction() as moment:
            room, now = moment.room, moment.now
            room.allowance = spent(room.allowance, quota, count, ago, now), now


def _used(moment: Moment, quota: Quota) -> float:
    room = moment.room
    if quota.name == OPEN_RUNS and quota.limit is not None:
        return min(len(room.open), int(quota.limit) + 1)
    if quota.name == STARTS and room.allowance is not None:
        starts, at = room.allowance
        return quota.at_once - grown(starts, quota, moment.now - at)
    return 0
