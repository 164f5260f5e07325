"""Idempotency keys, on a store."""

from __future__ import annotations

from collections.abc import Sequence

from batuta.authoring.client.idempotency import IdempotencyKey
from batuta.clock import as_datetime
from batuta.engine.backend.actor import Actor
from batuta.journal.audit import Verb
from batuta.journal.store import Store


class NativeIdempotency:
    """Implements `authoring.client.idempotency.IdempotencyService` on a store."""

    def __init__(self, store: Store, actor: Actor) -> None:
        self._store, self._actor = store, actor

    async def list(self, after: str, limit: int, prefix: str) -> Sequence[IdempotencyKey]:
        now = await self._store.now()
        return [
            IdempotencyKey(
                key=one.key,
                state="answered"
                if one.answer is not None
                else "in_progress"
                if one.locked_until > now
                else "abandoned",
                locked_until=as_datetime(one.locked_until),
                expires_at=as_datetime(one.expires_at),
            )
            for one in await self._store.list_requests(after, limit, prefix)
        ]

    async def delete(self, key: str, reason: str) -> bool:
        cleared = await self._store.clear_request(key)
        if cleared:
            await self._store.note_act(key, self._actor.act(Verb.DELETE_IDEMPOTENCY_KEY, reason))
        return cleared
