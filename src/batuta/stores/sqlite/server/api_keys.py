"""API keys in SQLite."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from typing import Any

from batuta.journal.audit import Act, Changed
from batuta.journal.server.api_keys import USE_NOTED, StoredKey
from batuta.stores.sqlite.audit import record
from batuta.stores.sqlite.database.connection import Q
from batuta.stores.sqlite.database.readers import Readers
from batuta.stores.sqlite.database.writer import Writer

_COLUMNS = StoredKey.__struct_fields__


class ApiKeyVerbs(ABC):
    """The part of the store that is about keys of the server."""

    namespace: str
    _writer: Writer
    _readers: Readers

    @abstractmethod
    def clock_now(self) -> int: ...

    async def put_api_key(self, key: StoredKey, act: Act | None = None) -> bool:
        values = {name: getattr(key, name) for name in _COLUMNS} | {"namespace": self.namespace}
        return await self._change_key("put_api_key", values, act)

    async def revoke_api_key(self, id: str, after: int = 0, act: Act | None = None) -> bool:
        values = {"namespace": self.namespace, "id": id, "at": self.clock_now() + after}
        return await self._change_key("revoke_api_key", values, act)

    async def _change_key(self, statement: str, values: dict[str, Any], act: Act | None) -> bool:
        now = self.clock_now()

        def work(cursor: sqlite3.Cursor) -> bool:
            if not cursor.execute(Q[statement], values | {"now": now}).rowcount:
                return False
            record(cursor, self.namespace, now, act, [Changed(target=values["id"])])
            return True

        return await self._writer.write(work, small=True)

    async def note_api_key(self, id: str) -> None:
        values = {"id": id, "now": self.clock_now(), "noted": USE_NOTED}
        await self._writer.write(lambda cursor: cursor.execute(Q["note_api_key"], values).rowcount, small=True)

    async def rewrite_api_key(self, id: str, digest: str) -> None:
        values = {"namespace": self.namespace, "id": id, "digest": digest}
        await self._writer.write(lambda cursor: cursor.execute(Q["rewrite_api_key"], values).rowcount, small=True)

    async def api_keys(self) -> list[StoredKey]:
        rows = self._readers.read(lambda connection: connection.execute(Q["api_keys"], (self.namespace,)).fetchall())
        return [_key(row) for row in rows]

    async def find_api_key(self, id: str) -> StoredKey | None:
        row = self._readers.read(lambda connection: connection.execute(Q["find_api_key"], (id,)).fetchone())
        return None if row is None else _key(row)

    async def has_api_keys(self) -> bool:
        now = {"now": self.clock_now()}
        return bool(self._readers.read(lambda connection: connection.execute(Q["has_api_keys"], now).fetchone())[0])


def _key(row: Any) -> StoredKey:
    return StoredKey(**dict(zip(_COLUMNS, row, strict=True)))
