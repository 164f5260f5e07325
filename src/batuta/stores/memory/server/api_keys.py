"""API keys in memory."""

from __future__ import annotations

from msgspec.structs import replace

from batuta.journal.audit import Act, Changed
from batuta.journal.server.api_keys import USE_NOTED, StoredKey
from batuta.stores.memory.audit import record
from batuta.stores.memory.base import Base, verb
from batuta.stores.memory.unit_of_work import UnitOfWork


class ApiKeyVerbs(Base):
    @verb
    def put_api_key(self, unit: UnitOfWork, key: StoredKey, act: Act | None = None) -> bool:
        if key.id in self._database.keys:
            return False
        record(unit, act, [Changed(target=key.id)])
        self._database.keys[key.id] = replace(key, namespace=self.namespace, created_at=unit.now)
        return True

    @verb
    def rewrite_api_key(self, unit: UnitOfWork, id: str, digest: str) -> None:
        if id in self._database.keys and self._database.keys[id].namespace == self.namespace:
            self._database.keys[id].digest = digest

    @verb
    def api_keys(self, unit: UnitOfWork) -> list[StoredKey]:
        keys = sorted(self._database.keys.items())
        return [replace(key) for _, key in keys if key.namespace == self.namespace]

    @verb
    def find_api_key(self, unit: UnitOfWork, id: str) -> StoredKey | None:
        return replace(self._database.keys[id]) if id in self._database.keys else None

    @verb
    def has_api_keys(self, unit: UnitOfWork) -> bool:
        return any(key.is_good(unit.now) for key in self._database.keys.values())

    @verb
    def note_api_key(self, unit: UnitOfWork, id: str) -> None:
        key = self._database.keys.get(id)
        if key is not None and (key.last_used_at is None or key.last_used_at <= unit.now - USE_NOTED):
            key.last_used_at = unit.now

    @verb
    def revoke_api_key(self, unit: UnitOfWork, id: str, after: int = 0, act: Act | None = None) -> bool:
        key, at = self._database.keys.get(id), unit.now + after
        if key is None or key.namespace != self.namespace or (key.revoked_at or at + 1) <= at:
            return False
        record(unit, act, [Changed(target=id)])
        key.revoked_at = at
        return True
