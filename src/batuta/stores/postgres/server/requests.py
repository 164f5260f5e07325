"""Requests with an idempotency key, in PostgreSQL."""

from __future__ import annotations

from batuta.errors import StoreUnavailable
from batuta.journal.server.requests import PRUNE_EVERY, KeptRequest
from batuta.stores.postgres.base import Base

_TRIES = 5


class RequestVerbs(Base):
    """The part of the store that is about requests."""

    _begun = 0

    async def begin_request(self, key: str, digest: str, owner: str, lock: int, keep: int) -> KeptRequest:
        self._begun += 1
        if self._begun % PRUNE_EVERY == 1:
            await self._pool.write(self._sql["forget_requests"], self.namespace)
        for _ in range(_TRIES):  # the row that was in the way may be gone when it is looked for
            values = (self.namespace, key, digest, owner, lock, keep)
            rows = await self._pool.write(self._sql["begin_request"], *values)
            rows = rows or await self._pool.read(self._sql["kept_request"], self.namespace, key)
            if rows:
                return KeptRequest(**dict(rows[0]))
        raise StoreUnavailable("a request was begun and dropped again and again by others: try again")

    async def renew_request(self, key: str, owner: str, lock: int) -> bool:
        return bool(await self._pool.write(self._sql["renew_request"], self.namespace, key, owner, lock))

    async def find_request(self, key: str) -> KeptRequest | None:
        rows = await self._pool.read(self._sql["find_request"], self.namespace, key)
        return KeptRequest(**dict(rows[0])) if rows else None

    async def list_requests(self, after: str, limit: int, prefix: str = "") -> list[KeptRequest]:
        rows = await self._pool.read(self._sql["list_requests"], self.namespace, after, limit, prefix)
        return [KeptRequest(**dict(row)) for row in rows]

    async def clear_request(self, key: str) -> bool:
        return bool(await self._pool.write(self._sql["clear_request"], self.namespace, key))

    async def finish_request(self, key: str, owner: str, answer: str) -> bool:
        return bool(await self._pool.write(self._sql["finish_request"], self.namespace, key, owner, answer))

    async def drop_request(self, key: str, owner: str) -> bool:
        return bool(await self._pool.write(self._sql["drop_request"], self.namespace, key, owner))
