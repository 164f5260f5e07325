"""Idempotency keys that the store keeps: looked at and deleted by people."""

from __future__ import annotations

from base64 import b64decode, b64encode
from datetime import datetime

from msgspec import Struct

from batuta.authoring.services import StoreAccess
from batuta.clock import as_datetime
from batuta.errors import InvalidInput
from batuta.journal.audit import Verb
from batuta.journal.server.requests import KeptRequest
from batuta.names import check_page_size, check_reason


class IdempotencyKey(Struct, kw_only=True):
    """A key that came with a request."""

    key: str
    """Where it was used, a space, and the key."""
    state: str
    """`in_progress`; `abandoned` when its holder has not renewed it; `answered`."""
    locked_until: datetime
    expires_at: datetime


class IdempotencyPage(Struct):
    """Some keys, and the cursor of the next page (None: that was the last)."""

    keys: list[IdempotencyKey]
    cursor: str | None


class IdempotencyKeys:
    """The idempotency keys of one namespace: `client.idempotency`."""

    def __init__(self, access: StoreAccess) -> None:
        self._access, self._store = access, access.store

    async def list(self, *, cursor: str | None = None, limit: int = 50, prefix: str = "") -> IdempotencyPage:
        """Keys that are kept, in their order. `cursor`: of the page before. `prefix`: only keys that begin so."""
        check_page_size(limit)
        now = await self._store.now()
        after = _decode(cursor) if cursor else ""
        found = [_view(one, now) for one in await self._store.list_requests(after, limit + 1, prefix)]
        more = len(found) > limit
        return IdempotencyPage(found[:limit], b64encode(found[limit - 1].key.encode()).decode() if more else None)

    async def delete(self, key: str, *, reason: str = "") -> bool:
        """Forget a key: the next request with it is carried out. False when it is not kept. A request in progress goes
        on, and its answer is not kept."""
        if not key:
            raise InvalidInput("which key is to be deleted? Give it as `list` shows it")
        why = check_reason(reason)
        cleared = await self._store.clear_request(key)
        if cleared:
            await self._store.note_act(key, self._access.act(Verb.DELETE_IDEMPOTENCY_KEY, why))
        return cleared


def _view(row: KeptRequest, now: int) -> IdempotencyKey:
    held = "in_progress" if row.locked_until > now else "abandoned"
    return IdempotencyKey(
        key=row.key,
        state=held if row.answer is None else "answered",
        locked_until=as_datetime(row.locked_until),
        expires_at=as_datetime(row.expires_at),
    )


def _decode(cursor: str) -> str:
    try:
        found = b64decode(cursor, validate=True).decode()
    except ValueError:
        found = ""
    if not found.isprintable() or not found:
        raise InvalidInput("the cursor is none of a page of idempotency keys")
    return found
