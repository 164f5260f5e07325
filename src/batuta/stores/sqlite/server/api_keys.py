"""API keys in SQLite."""

from __future__ import annotations

from msgspec.structs import asdict

from batuta.journal.audit import Act
from batuta.journal.server.api_keys import USE_NOTED, StoredKey
from batuta.stores.sqlite.database.base import Base


class ApiKeyVerbs(Base):
    """The part of the store that is about keys of the server."""

    async def put_api_key(self, key: StoredKey, act: Act | None = None) -> bool:
        values = asdict(key) | {"namespace": self.namespace, "now": self.clock_now()}
        return await self._change("put_api_key", values, act, key.id)

    async def revoke_api_key(self, id: str, after: int = 0, act: Act | None = None) -> bool:
        now = self.clock_now()
        values = {"namespace": self.namespace, "id": id, "at": now + after, "now": now}
        return await self._change("revoke_api_key", values, act, id)

    async def note_api_key(self, id: str) -> None:
        values = {"id": id, "now": self.clock_now(), "noted": USE_NOTED}
        await self._write(lambda unit: unit.change("note_api_key", values), small=True)

    async def rewrite_api_key(self, id: str, digest: str) -> None:
        values = {"namespace": self.namespace, "id": id, "digest": digest}
        await self._write(lambda unit: unit.change("rewrite_api_key", values), small=True)

    async def api_keys(self) -> list[StoredKey]:
        return self._structs(StoredKey, "api_keys", (self.namespace,))

    async def find_api_key(self, id: str) -> StoredKey | None:
        return self._struct(StoredKey, "find_api_key", (id,))

    async def has_api_keys(self) -> bool:
        return bool(self._read(lambda unit: unit.value("has_api_keys", {"now": unit.now})))
