"""Documents in PostgreSQL, and which namespaces there are."""

from __future__ import annotations

from collections.abc import Mapping

from batuta.journal.audit import Act
from batuta.journal.server.documents import Document
from batuta.stores.postgres.audit import act_values
from batuta.stores.postgres.base import Base


class DocumentVerbs(Base):
    """The part of the store that is about documents."""

    async def put_documents(self, kind: str, bodies: Mapping[str, str], keep: int, act: Act | None = None) -> None:
        await self._pool.write(self._sql["forget_documents"], self.namespace)
        keys, texts = list(bodies), list(bodies.values())
        await self._pool.write(self._sql["put_documents"], self.namespace, kind, keys, texts, keep, *act_values(act))

    async def rewrite_document(self, kind: str, key: str, before: str, body: str) -> bool:
        return bool(await self._pool.write(self._sql["rewrite_document"], self.namespace, kind, key, before, body))

    async def document(self, kind: str, key: str) -> Document | None:
        rows = await self._pool.read(self._sql["document"], self.namespace, kind, key)
        return Document(**dict(rows[0])) if rows else None

    async def documents(self, kind: str, limit: int = 1_000) -> list[Document]:
        rows = await self._pool.read(self._sql["documents"], self.namespace, kind, limit)
        return [Document(**dict(row)) for row in rows]

    async def known_namespaces(self, after: str = "", limit: int = 1_000) -> list[str]:
        return [row["name"] for row in await self._pool.read(self._sql["known_namespaces"], after, limit)]
