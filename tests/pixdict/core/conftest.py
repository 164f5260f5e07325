"""A stand with a real Valkey, where no key may be left without a lifetime."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from batuta.cache import RedisCache
from batuta.testing.valkey import ValkeyServer
from tests.cache.conftest import PATIENT, valkey
from tests.pixdict.core import kit

__all__ = ["valkey"]


@pytest.fixture
async def stand(valkey: ValkeyServer) -> AsyncIterator[Any]:
    """`kit.stand` with caches."""
    backend = await RedisCache.connect(valkey.url, PATIENT)
    await backend._client.flushall()
    yield partial(kit.stand, redis=valkey.url)
    assert await backend.without_lifetime(10) == []
    await backend.close()
