"""Documents in PostgreSQL, and which namespaces there are."""

from __future__ import annotations

from collections.abc import Mapping

from batuta.journal.audit import Act
from batuta.journal.server.documents import Document
from batuta.stores.postgres.audit import act_values
from batuta.stores.postgres.base import Base
from batuta.stores.postgres.database.rows import record_of


class DocumentVerbs(Base):
    async def put_documents(self, kind: str, bodies: Mapping[str, str], keep: int, act: Act | None = None) -> None:
        await self._execute("forget_documents")
        keys, texts = list(bodies), list(bodies.values())
        await self._execute("put_documents", kind, keys, texts, keep, *act_values(act))

    async def rewrite_document(self, kind: str, key: str, before: str, body: str) -> bool:
        return bool(await self._execute("rewrite_document", kind, key, before, body))

    async def document(self, kind: str, key: str) -> Document | None:
        return await self._read_first(record_of(Document), "document", kind, key)

    async def documents(self, kind: str, limit: int = 1_000) -> list[Document]:
        return await self._read_all(record_of(Document), "documents", kind, limit)

    async def known_namespaces(self, after: str = "", limit: int = 1_000) -> list[str]:
        return [row["name"] for row in await self._pool.read(self._sql["known_namespaces"], after, limit)]
