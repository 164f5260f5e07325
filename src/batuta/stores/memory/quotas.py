"""Quotas in memory."""

from __future__ import annotations

from msgspec.structs import replace

from batuta.journal.audit import Act, Changed
from batuta.journal.quotas import EVERYBODY, OPEN_RUNS, STARTS, Quota, grown, holding, spent
from batuta.stores.memory.audit import record
from batuta.stores.memory.base import Base, verb
from batuta.stores.memory.tables import NamespaceTables
from batuta.stores.memory.unit_of_work import UnitOfWork


class QuotaVerbs(Base):
    """The part of the store that is about how much a namespace may start."""

    @verb
    def set_quota(self, unit: UnitOfWork, quota: Quota, act: Act | None = None) -> bool:
        known = unit.tables.quotas
        if known.get(quota.name) == quota:
            return False
        record(unit, act, [Changed(target=quota.name)])
        known[quota.name] = quota
        return True

    @verb
    def clear_quota(self, unit: UnitOfWork, name: str, act: Act | None = None) -> bool:
        if unit.tables.quotas.pop(name, None) is None:
            return False
        record(unit, act, [Changed(target=name)])
        return True

    @verb
    def quotas(self, unit: UnitOfWork) -> list[Quota]:
        others = self._database.namespaces.get(EVERYBODY, NamespaceTables()).quotas
        found = holding(unit.tables.quotas.values(), others.values())
        return [replace(quota, used=_used(unit, quota)) for quota in found]

    @verb
    def spend_starts(self, unit: UnitOfWork, count: int, quota: Quota, ago: int = 0) -> None:
        room, now = unit.tables, unit.now
        room.allowance = spent(room.allowance, quota, count, ago, now), now


def _used(unit: UnitOfWork, quota: Quota) -> float:
    room = unit.tables
    if quota.name == OPEN_RUNS and quota.limit is not None:
        return min(len(room.open), int(quota.limit) + 1)
    if quota.name == STARTS and room.allowance is not None:
        starts, at = room.allowance
        return quota.at_once - grown(starts, quota, unit.now - at)
    return 0
