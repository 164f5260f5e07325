"""Keys of the server, on a store."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from msgspec.structs import asdict

from batuta.authoring.client.api_keys import ApiKey, NewApiKey
from batuta.clock import SECOND, as_datetime
from batuta.engine.backend.actor import Actor
from batuta.errors import StoreUnavailable, UnknownApiKey
from batuta.journal.audit import Verb
from batuta.journal.server.api_keys import PREFIX, USE_NOTED, StoredKey, digest_of, fits, id_of, new_key
from batuta.journal.store import Store
from batuta.names import check_reason

_TRIES = 3
log = logging.getLogger("batuta.server")


class NativeApiKeys:
    """Implements `authoring.client.api_keys.ApiKeyService` on a store."""

    def __init__(self, store: Store, actor: Actor) -> None:
        self._store, self._actor = store, actor

    async def create(self, name: str, scope: str, expires: float | None, reason: str) -> NewApiKey:
        for _ in range(_TRIES):  # ids are 48 random bits
            key, id = new_key()
            until = None if expires is None else await self._store.now() + round(expires * SECOND)
            act = self._actor.act(Verb.CREATE_API_KEY, check_reason(reason), after={"name": name, "scope": scope})
            made = StoredKey(
                id=id,
                namespace=self._store.namespace,
                name=name,
                scope=scope,
                digest=digest_of(key),
                created_by=act.actor,
                expires_at=until,
            )
            if await self._store.put_api_key(made, act):
                stored = await self._find(id)
                return NewApiKey(**asdict(_view(stored)), key=key)
        raise StoreUnavailable("no free id for a key was found: try again")

    async def list(self) -> Sequence[ApiKey]:
        return [_view(key) for key in await self._store.api_keys()]

    async def revoke(self, id: str, after: float, reason: str) -> bool:
        await self._find(id)
        act = self._actor.act(Verb.REVOKE_API_KEY, check_reason(reason), after={"seconds": after})
        return await self._store.revoke_api_key(id, round(after * SECOND), act)

    async def rotate(self, id: str, overlap: float, reason: str) -> NewApiKey:
        old = await self._find(id)
        now = await self._store.now()
        left = None if old.expires_at is None else (old.expires_at - old.created_at) / SECOND
        if not old.digest or not old.is_good(now):
            raise UnknownApiKey(id)
        made = await self.create(old.name, old.scope, left, reason)
        await self.revoke(id, overlap, reason)
        return made

    async def _find(self, id: str) -> StoredKey:
        found = await self._store.find_api_key(id)
        if found is None or found.namespace != self._store.namespace:
            raise UnknownApiKey(id)
        return found

    async def verify(self, key: str) -> ApiKey | None:
        id = id_of(key)
        stored = None if id is None else await self._store.find_api_key(id)
        now = await self._store.now()
        if stored is not None and not stored.digest:
            log.warning("API key %s is refused: its row was not written with the keys of payloads (BATUTA_KEYS)", id)
        if stored is None or not fits(key, stored) or not stored.is_good(now):
            return None
        if stored.last_used_at is None or stored.last_used_at <= now - USE_NOTED:
            await self._store.note_api_key(stored.id)
        return _view(stored)

    async def find(self, id: str) -> ApiKey | None:
        stored = await self._store.find_api_key(id)
        if stored is None or not stored.digest or not stored.is_good(await self._store.now()):
            return None
        return _view(stored)

    async def any(self) -> bool:
        return await self._store.has_api_keys()


def _view(key: StoredKey) -> ApiKey:
    return ApiKey(
        id=key.id,
        name=key.name,
        prefix=f"{PREFIX}{key.id}",
        scope=key.scope,
        namespace=key.namespace,
        created_at=as_datetime(key.created_at),
        created_by=key.created_by,
        expires_at=as_datetime(key.expires_at),
        last_used_at=as_datetime(key.last_used_at),
        revoked_at=as_datetime(key.revoked_at),
    )
