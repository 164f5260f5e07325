"""Requests with an idempotency key, in PostgreSQL."""

from __future__ import annotations

from batuta.errors import StoreUnavailable
from batuta.journal.server.requests import PRUNE_EVERY, KeptRequest
from batuta.stores.postgres.base import Base
from batuta.stores.postgres.database.rows import record_of

_TRIES = 5


class RequestVerbs(Base):
    _begun = 0

    async def begin_request(self, key: str, digest: str, owner: str, lock: int, keep: int) -> KeptRequest:
        self._begun += 1
        if self._begun % PRUNE_EVERY == 1:
            await self._execute("forget_requests")
        for _ in range(_TRIES):  # the row that was in the way may be gone when it is looked for
            rows = await self._execute("begin_request", key, digest, owner, lock, keep)
            rows = rows or await self._read("kept_request", key)
            if rows:
                return KeptRequest(**dict(rows[0]))
        raise StoreUnavailable("a request was begun and dropped again and again by others: try again")

    async def renew_request(self, key: str, owner: str, lock: int) -> bool:
        return bool(await self._execute("renew_request", key, owner, lock))

    async def find_request(self, key: str) -> KeptRequest | None:
        return await self._read_first(record_of(KeptRequest), "find_request", key)

    async def list_requests(self, after: str, limit: int, prefix: str = "") -> list[KeptRequest]:
        return await self._read_all(record_of(KeptRequest), "list_requests", after, limit, prefix)

    async def clear_request(self, key: str) -> bool:
        return bool(await self._execute("clear_request", key))

    async def finish_request(self, key: str, owner: str, answer: str) -> bool:
        return bool(await self._execute("finish_request", key, owner, answer))

    async def drop_request(self, key: str, owner: str) -> bool:
        return bool(await self._execute("drop_request", key, owner))
