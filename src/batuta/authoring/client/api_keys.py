"""Keys of the server: made, listed, rotated and revoked."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from msgspec import Struct

from batuta.durations import Duration, in_seconds
from batuta.errors import InvalidInput
from batuta.journal.server.api_keys import SCOPES
from batuta.names import check_name

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


class ApiKeyService(Protocol):
    """Keeps keys."""

    async def create(self, name: str, scope: str, expires: float | None, reason: str) -> NewApiKey: ...
    async def list(self) -> Sequence[ApiKey]: ...
    async def revoke(self, id: str, after: float, reason: str) -> bool: ...
    async def rotate(self, id: str, overlap: float, reason: str) -> NewApiKey: ...
    async def verify(self, key: str) -> ApiKey | None: ...
    async def find(self, id: str) -> ApiKey | None: ...
    async def any(self) -> bool: ...


class ApiKeys:
    """The keys of the server for one namespace: `client.api_keys`. With namespace `*`: keys for every namespace."""

    def __init__(self, backend: ApiKeyService) -> None:
        self._backend = backend

    async def create(self, name: str, scope: str, *, expires: Duration | None = None, reason: str = "") -> NewApiKey:
        """Make a key. `scope`: "viewer", "operator" or "admin". `expires`: seconds from now; without it, never."""
        return await self._backend.create(check_name(name, "key name"), _scope(scope), _expiry(expires), reason)

    async def list(self) -> Sequence[ApiKey]:
        """All of them, oldest first, also those that are expired or revoked."""
        return sorted(await self._backend.list(), key=lambda one: (one.created_at, one.id))

    async def revoke(self, id: str, *, after: Duration = 0.0, reason: str = "") -> bool:
        """Refuse a key, at once or after so many seconds. False when it is refused by then already. Raises
        UnknownApiKey."""
        return await self._backend.revoke(check_name(id, "key id"), _wait("after", after), reason)

    async def rotate(self, id: str, *, overlap: Duration = 0.0, reason: str = "") -> NewApiKey:
        """Make a key like this one, and revoke this one after `overlap` seconds. Raises UnknownApiKey."""
        return await self._backend.rotate(check_name(id, "key id"), _wait("overlap", overlap), reason)

    async def verify(self, key: str) -> ApiKey | None:
        """Whose key this is, of whatever namespace; None when it is none, or no longer. Notes its use."""
        return await self._backend.verify(key)

    async def find(self, id: str) -> ApiKey | None:
        """The key of that id, of whatever namespace; None when it is not valid, or not any more."""
        return await self._backend.find(id)

    async def any(self) -> bool:
        """Whether there is a key that works, of whatever namespace."""
        return await self._backend.any()


def _scope(scope: object) -> str:
    if scope not in SCOPES:
        raise InvalidInput(f"scope={scope!r} must be one of {', '.join(SCOPES)}")
    return str(scope)


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
