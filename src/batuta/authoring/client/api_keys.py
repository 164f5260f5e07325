"""Keys of the server: made, listed, rotated and revoked."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct
from msgspec.structs import asdict

from batuta.authoring.services import StoreAccess
from batuta.clock import SECOND, as_datetime
from batuta.durations import Duration, in_seconds
from batuta.errors import InvalidInput, StoreUnavailable, UnknownApiKey
from batuta.journal.audit import Verb
from batuta.journal.server.api_keys import PREFIX, SCOPES, USE_NOTED, StoredKey, digest_of, fits, id_of, new_key
from batuta.names import check_name, check_reason

log = logging.getLogger("batuta.server")

_TRIES = 3
LONGEST = 10 * 366 * 86_400.0
"""Seconds that a key may be valid for, where it expires at all."""


class ApiKey(Struct, kw_only=True):
    """A key of the server, without the key itself."""

    id: str
    name: str
    prefix: str
    """How the key begins: to recognise it by."""
    scope: str
    namespace: str
    """`*`: every one."""
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    last_used_at: datetime | None
    """To the minute."""
    revoked_at: datetime | None


class NewApiKey(ApiKey, kw_only=True):
    """A key that was just made."""

    key: str
    """The key itself: it is shown once and kept nowhere."""

    def __repr__(self) -> str:
        return f"<new API key {self.prefix} ({self.name}, {self.scope})>"


class ApiKeys:
    """The keys of the server for one namespace: `client.api_keys`. With namespace `*`: keys for every namespace."""

    def __init__(self, access: StoreAccess) -> None:
        self._access, self._store = access, access.store

    async def create(self, name: str, scope: str, *, expires: Duration | None = None, reason: str = "") -> NewApiKey:
        """Make a key. `scope`: "viewer", "operator" or "admin". `expires`: seconds from now; without it, never."""
        if scope not in SCOPES:
            raise InvalidInput(f"scope={scope!r} must be one of {', '.join(SCOPES)}")
        return await self._create(check_name(name, "key name"), scope, _expiry(expires), check_reason(reason))

    async def list(self) -> Sequence[ApiKey]:
        """All of them, oldest first, also those that are expired or revoked."""
        found = [_view(key) for key in await self._store.api_keys()]
        return sorted(found, key=lambda one: (one.created_at, one.id))

    async def revoke(self, id: str, *, after: Duration = 0.0, reason: str = "") -> bool:
        """Refuse a key, at once or after so many seconds. False when it is refused by then already. Raises
        UnknownApiKey."""
        seconds = _wait("after", after)
        await self._find(check_name(id, "key id"))
        act = self._access.act(Verb.REVOKE_API_KEY, check_reason(reason), after={"seconds": seconds})
        return await self._store.revoke_api_key(id, round(seconds * SECOND), act)

    async def rotate(self, id: str, *, overlap: Duration = 0.0, reason: str = "") -> NewApiKey:
        """Make a key like this one, and revoke this one after `overlap` seconds. Raises UnknownApiKey."""
        _wait("overlap", overlap)
        old = await self._find(check_name(id, "key id"))
        now = await self._store.now()
        left = None if old.expires_at is None else (old.expires_at - old.created_at) / SECOND
        if not old.digest or not old.is_good(now):
            raise UnknownApiKey(id)
        made = await self._create(old.name, old.scope, left, check_reason(reason))
        await self.revoke(id, after=overlap, reason=reason)
        return made

    async def verify(self, key: str) -> ApiKey | None:
        """Whose key this is, of whatever namespace; None when it is none, or no longer. Notes its use."""
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
        """The key of that id, of whatever namespace; None when it is not valid, or not any more."""
        stored = await self._store.find_api_key(id)
        if stored is None or not stored.digest or not stored.is_good(await self._store.now()):
            return None
        return _view(stored)

    async def any(self) -> bool:
        """Whether there is a key that works, of whatever namespace."""
        return await self._store.has_api_keys()

    async def _create(self, name: str, scope: str, expires: float | None, reason: str) -> NewApiKey:
        for _ in range(_TRIES):  # ids are 48 random bits
            key, id = new_key()
            until = None if expires is None else await self._store.now() + round(expires * SECOND)
            act = self._access.act(Verb.CREATE_API_KEY, reason, after={"name": name, "scope": scope})
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

    async def _find(self, id: str) -> StoredKey:
        found = await self._store.find_api_key(id)
        if found is None or found.namespace != self._store.namespace:
            raise UnknownApiKey(id)
        return found


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


def _expiry(given: Duration | None) -> float | None:
    seconds: float | None = in_seconds(given)
    if seconds is None:
        return None
    if not 1 <= seconds <= LONGEST:
        raise InvalidInput(f"expires={seconds} must be from a second to ten years; None is never")
    return float(seconds)


def _wait(name: str, given: Duration) -> float:
    seconds: float = in_seconds(given)
    if not 0 <= seconds <= LONGEST:
        raise InvalidInput(f"{name}={seconds} must be a number of seconds, not negative and at most ten years")
    return float(seconds)
