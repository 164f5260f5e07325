"""Documents in SQLite, and which namespaces there are."""

from __future__ import annotations

from collections.abc import Mapping

from batuta.journal.audit import Act, Changed
from batuta.journal.server.documents import Document
from batuta.stores.sqlite.database.base import Base
from batuta.stores.sqlite.database.unit_of_work import UnitOfWork


class DocumentVerbs(Base):
    """The part of the store that is about documents."""

    async def put_documents(self, kind: str, bodies: Mapping[str, str], keep: int, act: Act | None = None) -> None:
        def work(unit: UnitOfWork) -> None:
            values = {"namespace": unit.namespace, "kind": kind, "now": unit.now, "keep": keep}
            unit.change("forget_documents", {"namespace": unit.namespace, "now": unit.now})
            unit.change_each("put_document", [values | {"key": key, "body": body} for key, body in bodies.items()])
            unit.record(act, [Changed(target=key) for key in sorted(bodies)])

        await self._write(work)

    async def rewrite_document(self, kind: str, key: str, before: str, body: str) -> bool:
        values = {"namespace": self.namespace, "now": self.clock_now()}
        values |= {"kind": kind, "key": key, "before": before, "body": body}
        return bool(await self._write(lambda unit: unit.change("rewrite_document", values)))

    async def document(self, kind: str, key: str) -> Document | None:
        values = {"namespace": self.namespace, "now": self.clock_now(), "kind": kind, "key": key}
        return self._struct(Document, "document", values)

    async def documents(self, kind: str, limit: int = 1_000) -> list[Document]:
        values = {"namespace": self.namespace, "now": self.clock_now(), "kind": kind, "limit": limit}
        return self._structs(Document, "documents", values)

    async def known_namespaces(self, after: str = "", limit: int = 1_000) -> list[str]:
        def work(unit: UnitOfWork) -> list[str]:
            found: list[str] = []
            name: str | None = after
            while len(found) < limit:
                name = unit.value("next_namespace", {"after": name})
                if name is None:
                    break
                found.append(name)
            return found

        return self._read(work)
