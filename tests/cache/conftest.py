"""Caches to test: in memory and in a real Valkey."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from batuta.cache import Cache, CacheBackend, MemoryCache, RedisCache, RedisOptions
from batuta.testing.valkey import ValkeyServer

PATIENT = RedisOptions(pool_size=50, min_idle=1)


@pytest.fixture(scope="session")
def valkey() -> Iterator[ValkeyServer]:
    """One server for tests that leave it running."""
    with ValkeyServer() as server:
        yield server


@pytest.fixture(params=["memory", "valkey"])
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[CacheBackend]:
    found: Any
    if request.param == "memory":
        found = MemoryCache()
    else:
        server: ValkeyServer = request.getfixturevalue("valkey")
        found = await RedisCache.connect(server.url, PATIENT)
        await found._client.flushall()
    yield found
    if request.param == "valkey":
        assert await found.without_lifetime(10) == []
    await found.close()


@pytest.fixture
async def cache(backend: CacheBackend) -> Cache:
    return Cache(backend, timeout=20)
