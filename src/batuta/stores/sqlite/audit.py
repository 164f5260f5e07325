"""The audit log in SQLite."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterable

from msgspec import structs

from batuta.journal import audit
from batuta.journal.audit import Act, ActFilter, Changed, Recorded, state_json
from batuta.journal.records import Run
from batuta.stores.sqlite.database.connection import Q
from batuta.stores.sqlite.database.readers import Readers
from batuta.stores.sqlite.database.rows import one
from batuta.stores.sqlite.database.writer import Writer

_ABOVE_ALL = 2**63 - 1
_FIELDS = Recorded.__struct_fields__


class AuditVerbs(ABC):
    """The part of the store that reads the audit log."""

    namespace: str
    _readers: Readers
    _writer: Writer

    @abstractmethod
    def clock_now(self) -> int: ...

    async def note_act(self, target: str, act: Act) -> None:
        now, namespace = self.clock_now(), self.namespace
        await self._writer.write(
            lambda cursor: record(cursor, namespace, now, act, [Changed(target=target)]), small=True
        )

    async def audit(self, after: int = 0, limit: int = 1_000) -> list[Recorded]:
        values = (self.namespace, after, limit)
        return await self._readers.read_apart(
            lambda connection: [
                Recorded(**dict(zip(_FIELDS, row, strict=True))) for row in connection.execute(Q["audit"], values)
            ]
        )

    async def audit_head(self) -> tuple[int, str]:
        return self._readers.read(lambda connection: _head(connection.cursor(), self.namespace)[:2])

    async def acts(self, where: ActFilter, before: int | None = None, limit: int = 50) -> list[Recorded]:
        query = Q["acts" if where.target is None else "acts_on"]
        last = _ABOVE_ALL if before is None else before
        values = structs.asdict(where) | {"namespace": self.namespace, "before": last, "limit": limit}
        return await self._readers.read_apart(
            lambda connection: [
                Recorded(**dict(zip(_FIELDS, row, strict=True))) for row in connection.execute(query, values)
            ]
        )


def record(cursor: sqlite3.Cursor, namespace: str, now: int, act: Act | None, changed: Iterable[Changed]) -> None:
    """Write the changes of an action into the log, in the caller's transaction; nothing without an action."""
    if act is None:
        return

    def is_taken(number: int) -> bool:
        return one(cursor.execute(Q["audit_number_taken"], (namespace, number))) is not None

    head = _head(cursor, namespace)
    rows = audit.record(namespace, head, now, act, changed, is_taken)
    if not rows:
        return
    if not head[0]:
        cursor.execute(Q["insert_audit_head"], (namespace,))
    cursor.execute(Q["move_audit_head"], (rows[-1].number, rows[-1].hash, rows[-1].salt, namespace))
    cursor.executemany(Q["insert_audit"], [(namespace, *structs.astuple(row)) for row in rows])


def changed(run: Run, after: str) -> Changed:
    """The effect of an action on a run that is still unchanged."""
    return Changed(target=run.id, run_id=str(run.run_id), before=state_json(run.state), after=state_json(after))


def _head(cursor: sqlite3.Cursor, namespace: str) -> tuple[int, str, str]:
    row = one(cursor.execute(Q["audit_head"], (namespace,)))
    return (0, "", "") if row is None else (row[0], row[1], row[2])
