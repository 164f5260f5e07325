"""Breakers and limits in SQLite."""

from __future__ import annotations

from typing import TypeVar

from batuta.journal.audit import Act, Changed
from batuta.journal.resilience.partners import Partner, PartnerChange, PartnerDocs, PartnerRule, gate_reason, hint_of
from batuta.stores.sqlite.database.base import Base
from batuta.stores.sqlite.database.unit_of_work import UnitOfWork

T = TypeVar("T")


class PartnerVerbs(Base):
    """The part of the store that is about partners."""

    async def change_partner(
        self, kind: str, name: str, key: str, rule: PartnerRule[T], act: Act | None = None
    ) -> PartnerChange[T]:
        place = (self.namespace, kind, name)

        def work(unit: UnitOfWork) -> PartnerChange[T]:
            own, found = (unit.value("partner_doc", (*place, which)) for which in ("", key))
            changed = rule(PartnerDocs(own, found, unit.now))
            if changed.doc is not None and changed.doc != (found or ""):
                unit.record(act, [Changed(target=name)])
                if changed.doc:
                    unit.change("put_partner", (*place, key, changed.doc, changed.expires_at))
                else:
                    unit.change("drop_partner", (*place, key))
                unit.change("forget_partners", (*place, unit.now))
            return changed

        changed = await self._write(work, small=True)
        self.tell(hint_of(kind, name, key, changed))
        return changed

    async def partners(self, keys: bool = False, limit: int = 1_000) -> list[Partner]:
        return self._structs(Partner, "partner_keys" if keys else "partners", (self.namespace, limit))

    async def wake_gate(self, name: str, limit: int) -> int:
        values = {"namespace": self.namespace, "reason": gate_reason(name), "now": self.clock_now(), "limit": limit}
        return await self._write(lambda unit: unit.wake("wake_gate", values))
