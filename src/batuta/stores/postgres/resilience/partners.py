"""Breakers and limits in PostgreSQL."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from batuta.errors import StoreUnavailable
from batuta.ids import jitter
from batuta.journal.audit import Act
from batuta.journal.records import Hint
from batuta.journal.resilience.partners import Partner, PartnerChange, PartnerDocs, PartnerRule, gate_reason, hint_of
from batuta.stores.postgres.audit import act_values
from batuta.stores.postgres.base import Base
from batuta.stores.postgres.database.rows import record_of

T = TypeVar("T")

_TRIES = 50
_LONGEST_PAUSE = 0.05
_FORGET_EVERY = 100
"""Changes by key between two looks for documents that have expired."""


class PartnerVerbs(Base):
    _keyed_changes = 0

    async def change_partner(
        self, kind: str, name: str, key: str, rule: PartnerRule[T], act: Act | None = None
    ) -> PartnerChange[T]:
        place = (kind, name, key)
        for number in range(_TRIES):  # decided here, and written only if no other change came in between
            [row] = await self._read("partner_docs", *place)
            changed = rule(PartnerDocs(row["own"], row["doc"], row["now"]))
            if changed.doc is None or changed.doc == (row["doc"] or ""):
                break
            values = (row["version"] or 0, changed.doc, changed.expires_at, *act_values(act))
            if await self._execute("put_partner", *place, *values):
                break
            await asyncio.sleep(min(_LONGEST_PAUSE, 0.001 * 2**number) * jitter())
        else:
            raise StoreUnavailable(f"{kind} {name!r} is changed by too many others at once: try again")
        self._announcer.tell(hint_of(kind, name, key, changed))
        self._keyed_changes += bool(key)
        if self._keyed_changes >= _FORGET_EVERY:
            self._keyed_changes = 0
            await self._execute("forget_partners", kind, name)
        return changed

    async def partners(self, keys: bool = False, limit: int = 1_000) -> list[Partner]:
        return await self._read_all(record_of(Partner), "partner_keys" if keys else "partners", limit)

    async def wake_gate(self, name: str, limit: int) -> int:
        rows = await self._execute("wake_gate", gate_reason(name), limit)
        woken: int = rows[0]["woken"]
        self._announcer.tell(Hint(due=woken > 0))
        return woken
