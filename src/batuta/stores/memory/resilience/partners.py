"""Breakers and limits in memory."""

from __future__ import annotations

from typing import TypeVar

from batuta.journal.audit import Act, Changed
from batuta.journal.resilience.partners import Partner, PartnerChange, PartnerDocs, PartnerRule, gate_reason, hint_of
from batuta.stores.memory.audit import record
from batuta.stores.memory.base import Base, verb
from batuta.stores.memory.unit_of_work import UnitOfWork

T = TypeVar("T")


class PartnerVerbs(Base):
    @verb
    def change_partner(
        self, unit: UnitOfWork, kind: str, name: str, key: str, rule: PartnerRule[T], act: Act | None = None
    ) -> PartnerChange[T]:
        kept = unit.tables.partners
        own, found = (kept.get((kind, name, one), (None, None))[0] for one in ("", key))
        changed = rule(PartnerDocs(own, found, unit.now))
        if changed.doc is not None and changed.doc != (found or ""):
            record(unit, act, [Changed(target=name)])
            if changed.doc:
                kept[kind, name, key] = changed.doc, changed.expires_at
            else:
                kept.pop((kind, name, key), None)
        over = [at for at, (_, expires) in kept.items() if expires is not None and expires <= unit.now]
        for at in over:
            if at[:2] == (kind, name):
                del kept[at]
        unit.tell_of_partners(hint_of(kind, name, key, changed))
        return changed

    @verb
    def partners(self, unit: UnitOfWork, keys: bool = False, limit: int = 1_000) -> list[Partner]:
        kept = sorted(unit.tables.partners.items())
        found = [(at, doc) for at, (doc, _) in kept if keys or not at[2]]
        return [Partner(kind=kind, name=name, key=key, doc=doc) for (kind, name, key), doc in found[:limit]]

    @verb
    def wake_gate(self, unit: UnitOfWork, name: str, limit: int) -> int:
        reason, now = gate_reason(name), unit.now
        rows = (row.run for row in unit.tables.open.values())
        held = [run for run in rows if run.reason == reason and run.owner is None and (run.wake_at or 0) > now]
        for run in sorted(held, key=lambda run: run.wake_at or 0)[:limit]:
            run.wake_at = now
        unit.hint.due = bool(held)
        return min(len(held), limit)
