"""Breakers and limits in SQLite."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from typing import TypeVar

from batuta.journal.audit import Act, Changed
from batuta.journal.records import Hint
from batuta.journal.resilience.partners import Partner, PartnerChange, PartnerDocs, PartnerRule, gate_reason, hint_of
from batuta.stores.sqlite.audit import record
from batuta.stores.sqlite.database.connection import Q
from batuta.stores.sqlite.database.readers import Readers
from batuta.stores.sqlite.database.rows import one
from batuta.stores.sqlite.database.writer import Writer

T = TypeVar("T")


class PartnerVerbs(ABC):
    """The part of the store that is about partners."""

    namespace: str
    _writer: Writer
    _readers: Readers

    @abstractmethod
    def clock_now(self) -> int: ...

    @abstractmethod
    def tell(self, hint: Hint) -> None: ...

    async def change_partner(
        self, kind: str, name: str, key: str, rule: PartnerRule[T], act: Act | None = None
    ) -> PartnerChange[T]:
        place = (self.namespace, kind, name)

        def work(cursor: sqlite3.Cursor) -> PartnerChange[T]:
            own, found = (_doc(cursor, (*place, which)) for which in ("", key))
            now = self.clock_now()  # under the lock: the rule must not go back in time
            changed = rule(PartnerDocs(own, found, now))
            if changed.doc is not None and changed.doc != (found or ""):
                record(cursor, self.namespace, now, act, [Changed(target=name)])
                if changed.doc:
                    cursor.execute(Q["put_partner"], (*place, key, changed.doc, changed.expires_at))
                else:
                    cursor.execute(Q["drop_partner"], (*place, key))
                cursor.execute(Q["forget_partners"], (*place, now))
            return changed

        changed = await self._writer.write(work, small=True)
        self.tell(hint_of(kind, name, key, changed))
        return changed

    async def partners(self, keys: bool = False, limit: int = 1_000) -> list[Partner]:
        query, values = Q["partner_keys" if keys else "partners"], (self.namespace, limit)
        rows = self._readers.read(lambda connection: connection.execute(query, values).fetchall())
        return [Partner(kind=kind, name=name, key=key, doc=doc) for kind, name, key, doc in rows]

    async def wake_gate(self, name: str, limit: int) -> int:
        values = {"namespace": self.namespace, "reason": gate_reason(name), "now": self.clock_now(), "limit": limit}
        woken = await self._writer.write(lambda cursor: cursor.execute(Q["wake_gate"], values).rowcount)
        self.tell(Hint(due=woken > 0))
        return woken


def _doc(cursor: sqlite3.Cursor, place: tuple[str, ...]) -> str | None:
    row = one(cursor.execute(Q["partner_doc"], place))
    return None if row is None else str(row[0])
