"""The cache of the application, as the server sees it: what its Redis says of itself."""

from __future__ import annotations

import asyncio
import logging
import os

from msgspec import Struct

from batuta.cache import CacheBackend, CacheInfo, EntityUse, RedisCache, RedisOptions
from batuta.cache.uses import uses_of
from batuta.clock import SystemClock
from batuta.server.http.call import Call
from batuta.server.http.routing import route

log = logging.getLogger("batuta.cache")

VARIABLE = "BATUTA_REDIS_URL"
_SLOWEST = 2.0
"""Seconds after which Redis counts as away."""
_OPTIONS = RedisOptions(pool_size=2, min_idle=0, retries=0, dial_timeout=_SLOWEST, read_timeout=_SLOWEST)


class CacheDocument(Struct, kw_only=True):
    """The cache, as of now."""

    configured: bool
    """Whether the server knows where it is: BATUTA_REDIS_URL."""
    where: str = ""
    """Without its password."""
    up: bool = False
    error: str = ""
    seconds: float = 0.0
    """How long it took to answer."""
    info: CacheInfo | None = None
    entities: list[EntityUse] = []
    """Hits and misses by entity, as the processes that use it have told in the last minutes."""


class CacheWatch:
    """Asks the Redis of the application how it is doing."""

    def __init__(self, url: str | None = None) -> None:
        self._url = os.environ.get(VARIABLE, "") if url is None else url
        self._backend: CacheBackend | None = None
        self._opening = asyncio.Lock()
        self._clock = SystemClock()

    async def look(self) -> CacheDocument:
        if not self._url:
            return CacheDocument(configured=False)
        where, began = "redis", self._clock.monotonic()
        try:
            async with asyncio.timeout(_SLOWEST):
                async with self._opening:
                    self._backend = self._backend or await RedisCache.connect(self._url, _OPTIONS)
                where, began = self._backend.where, self._clock.monotonic()
                info = await self._backend.info()
                seconds = self._clock.monotonic() - began
                entities = await uses_of(self._backend, self._clock.now())
        except Exception as error:  # noqa: BLE001 - whatever is wrong with it, the page says so
            log.warning("the cache did not say how it is: %r", error)
            return CacheDocument(configured=True, where=where, error=f"{type(error).__name__}: {error}"[:300])
        return CacheDocument(configured=True, where=where, up=True, seconds=seconds, info=info, entities=entities)

    async def close(self) -> None:
        backend, self._backend = self._backend, None
        if backend is not None:
            await backend.close()


async def show(call: Call) -> CacheDocument:
    found: CacheDocument = await call.server.cache.look()
    return found


ROUTES = (
    route(
        "GET", "/api/v1/cache", show, "The Redis of the application: memory, evictions, hits by entity.", CacheDocument
    ),
)
