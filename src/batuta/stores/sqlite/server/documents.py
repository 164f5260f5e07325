"""Documents in SQLite, and which namespaces there are."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from batuta.journal.audit import Act, Changed
from batuta.journal.server.documents import Document
from batuta.stores.sqlite.audit import record
from batuta.stores.sqlite.database.connection import Q
from batuta.stores.sqlite.database.readers import Readers
from batuta.stores.sqlite.database.writer import Writer

_COLUMNS = Document.__struct_fields__


class DocumentVerbs(ABC):
    """The part of the store that is about documents."""

    namespace: str
    _writer: Writer
    _readers: Readers

    @abstractmethod
    def clock_now(self) -> int: ...

    async def put_documents(self, kind: str, bodies: Mapping[str, str], keep: int, act: Act | None = None) -> None:
        values: dict[str, Any] = {"namespace": self.namespace, "kind": kind, "now": self.clock_now(), "keep": keep}

        def work(cursor: sqlite3.Cursor) -> None:
            cursor.execute(Q["forget_documents"], {"namespace": self.namespace, "now": values["now"]})
            cursor.executemany(Q["put_document"], [values | {"key": key, "body": body} for key, body in bodies.items()])
            record(cursor, self.namespace, values["now"], act, [Changed(target=key) for key in sorted(bodies)])

        await self._writer.write(work)

    async def rewrite_document(self, kind: str, key: str, before: str, body: str) -> bool:
        values = {"namespace": self.namespace, "now": self.clock_now()}
        values |= {"kind": kind, "key": key, "before": before, "body": body}
        return bool(await self._writer.write(lambda cursor: cursor.execute(Q["rewrite_document"], values).rowcount))

    async def document(self, kind: str, key: str) -> Document | None:
        found = self._documents("document", {"kind": kind, "key": key})
        return found[0] if found else None

    async def documents(self, kind: str, limit: int = 1_000) -> list[Document]:
        return self._documents("documents", {"kind": kind, "limit": limit})

    def _documents(self, statement: str, values: dict[str, Any]) -> list[Document]:
        given = values | {"namespace": self.namespace, "now": self.clock_now()}
        rows = self._readers.read(lambda connection: connection.execute(Q[statement], given).fetchall())
        return [Document(**dict(zip(_COLUMNS, row, strict=True))) for row in rows]

    async def known_namespaces(self, after: str = "", limit: int = 1_000) -> list[str]:
        def work(connection: sqlite3.Connection) -> list[str]:
            found: list[str] = []
            name: str | None = after
            while len(found) < limit:
                name = connection.execute(Q["next_namespace"], {"after": name}).fetchone()[0]
                if name is None:
                    break
                found.append(name)
            return found

        return self._readers.read(work)
