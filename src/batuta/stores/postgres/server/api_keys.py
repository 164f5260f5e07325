"""API keys in PostgreSQL."""

from __future__ import annotations

from batuta.journal.audit import Act
from batuta.journal.server.api_keys import USE_NOTED, StoredKey
from batuta.stores.postgres.audit import act_values
from batuta.stores.postgres.base import Base
from batuta.stores.postgres.database.rows import record_of


class ApiKeyVerbs(Base):
    async def put_api_key(self, key: StoredKey, act: Act | None = None) -> bool:
        values = (key.id, key.name, key.scope, key.digest, key.created_by, key.expires_at)
        return bool(await self._execute("put_api_key", *values, *act_values(act)))

    async def revoke_api_key(self, id: str, after: int = 0, act: Act | None = None) -> bool:
        return bool(await self._execute("revoke_api_key", id, after, *act_values(act)))

    async def note_api_key(self, id: str) -> None:
        await self._pool.write(self._sql["note_api_key"], id, USE_NOTED)

    async def rewrite_api_key(self, id: str, digest: str) -> None:
        await self._execute("rewrite_api_key", id, digest)

    async def api_keys(self) -> list[StoredKey]:
        return await self._read_all(record_of(StoredKey), "api_keys")

    async def find_api_key(self, id: str) -> StoredKey | None:
        rows = await self._pool.read(self._sql["find_api_key"], id)
        return StoredKey(**dict(rows[0])) if rows else None

    async def has_api_keys(self) -> bool:
        return bool((await self._pool.read(self._sql["has_api_keys"]))[0]["found"])
