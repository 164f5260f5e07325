"""Documents in memory, and which namespaces there are."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from batuta.journal.audit import Act, Changed
from batuta.journal.server.documents import Document
from batuta.stores.memory.audit import record
from batuta.stores.memory.base import Base, verb
from batuta.stores.memory.tables import DocumentRow
from batuta.stores.memory.unit_of_work import UnitOfWork


class DocumentVerbs(Base):
    @verb
    def put_documents(
        self, unit: UnitOfWork, kind: str, bodies: Mapping[str, str], keep: int, act: Act | None = None
    ) -> None:
        kept = unit.tables.documents
        for old in [key for key, row in kept.items() if row.expires_at <= unit.now]:
            del kept[old]
        for key, body in bodies.items():
            before = kept.get((kind, key))
            created = unit.now if before is None else before.created_at
            kept[kind, key] = DocumentRow(body, created, unit.now, unit.now + keep)
        record(unit, act, [Changed(target=key) for key in sorted(bodies)])

    @verb
    def rewrite_document(self, unit: UnitOfWork, kind: str, key: str, before: str, body: str) -> bool:
        row = unit.tables.documents.get((kind, key))
        if row is None or row.body != before or row.expires_at <= unit.now:
            return False
        unit.tables.documents[kind, key] = replace(row, body=body)
        return True

    async def document(self, kind: str, key: str) -> Document | None:
        return next((found for found in await self.documents(kind) if found.key == key), None)

    @verb
    def documents(self, unit: UnitOfWork, kind: str, limit: int = 1_000) -> list[Document]:
        found = [
            Document(key=key, body=row.body, created_at=row.created_at, age=unit.now - row.written_at)
            for (of, key), row in unit.tables.documents.items()
            if of == kind and row.expires_at > unit.now
        ]
        return sorted(found, key=lambda one: (-one.created_at, one.key))[:limit]

    @verb
    def known_namespaces(self, unit: UnitOfWork, after: str = "", limit: int = 1_000) -> list[str]:
        of_keys = {key.namespace for key in self._database.keys.values()} - {"*"}
        used = of_keys | {name for name, tables in self._database.namespaces.items() if tables.is_used()}
        return sorted(name for name in used if name > after)[:limit]
