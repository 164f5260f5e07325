"""Answers to writes, kept under their request id (C-05). The store of Batuta has the last word; a cache is a faster
look."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable

import msgspec
from msgspec import Struct

from batuta import Batuta
from batuta.cache import Cache, Entity
from batuta.resilience.idempotency import Counts, Idempotency

KEY = "bridge:idempotency:{request_id}"


class KeptAnswer(Struct):
    """What the cache has."""

    asked: str
    """The digest of the request: the same id with another one is refused."""
    answer: str


class Answers:
    """Carries out each request once."""

    def __init__(self, batuta: Batuta, keep: float, cache: Cache | None = None, *, lock: float) -> None:
        """`lock`: seconds after which the request of a Bridge that died is carried out by another one. A repetition
        waits for longer than that, so that it takes no further attempt of who asks."""
        self._once = Idempotency(batuta.namespace.requests, keep=keep, lock=lock, wait=2 * lock)
        self._cached = None if cache is None else Entity(cache, KEY, KeptAnswer, lifetime=keep, early=0)

    @property
    def counts(self) -> Counts:
        """What became of requests, since the process began. Those that the cache answered are not in it."""
        return self._once.counts

    async def once(
        self, request_id: str, asked: bytes, kind: type[Struct], work: Callable[[], Awaitable[Struct]]
    ) -> Struct:
        """The first answer. Only answers are kept: after an error the request may be made again. Raises what `work`
        does, IdempotencyKeyReused, IdempotencyInProgress, InvalidInput."""
        digest = hashlib.sha256(asked).hexdigest()
        if self._cached is not None:
            found = await self._cached.get(request_id=request_id)
            if found is not None and found.asked == digest:
                return msgspec.json.decode(found.answer, type=kind)

        async def carried_out() -> tuple[str, bool]:
            return msgspec.json.encode(await work()).decode(), True

        answer, _ = await self._once.once("", KEY.format(request_id=request_id), asked, carried_out)
        if self._cached is not None:
            await self._cached.put(KeptAnswer(digest, answer), request_id=request_id)
        return msgspec.json.decode(answer, type=kind)
