"""The audit log in SQLite."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterable

from msgspec import structs

from batuta.journal import acts
from batuta.journal.acts import Act, ActFilter, Changed, Recorded, state_json
from batuta.journal.records import Run
from batuta.stores.sqlite.connection import Q
from batuta.stores.sqlite.readers import Readers
from batuta.stores.sqlite.rows import one
from batuta.stores.sqlite.writer import Writer

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
        return self._readers.read(lambda connection: _head(connection.cursor(), self.namespace))

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
    """Write what an act has changed into the log, in the caller's transaction; nothing without an act."""
    if act is None:
        return
    rows = acts.record(namespace, _head(cursor, namespace), now, act, changed)
    if rows:
        cursor.executemany(Q["insert_audit"], [(namespace, *structs.astuple(row)) for row in rows])
        cursor.execute(Q["move_audit_head"], (namespace, rows[-1].number, rows[-1].hash))


def changed(run: Run, after: str) -> Changed:
    """What an act does to a run, that is as it was before."""
    return Changed(target=run.id, run_id=str(run.run_id), before=state_json(run.state), after=state_json(after))


def _head(cursor: sqlite3.Cursor, namespace: str) -> tuple[int, str]:
    row = one(cursor.execute(Q["audit_head"], (namespace,)))
    return (0, "") if row is None else (row[0], row[1])
