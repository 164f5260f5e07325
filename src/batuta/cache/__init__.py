"""Values that are slow to get, kept for a while: in Redis or Valkey, or in this process.

```python
async with await open_cache("redis://localhost:6379/0") as cache:
    entries = Entity(cache, "dict:entry:id:{entry_id}", Entry, lifetime=300)
    entry = await entries.get_or_load(lambda: read_from_database(id), entry_id=id)
```
"""

from __future__ import annotations

from batuta.cache.backend import CacheBackend, CacheInfo
from batuta.cache.cache import Cache, Observer
from batuta.cache.entity import Entity, MemberSet
from batuta.cache.keys import KeyPattern
from batuta.cache.memory import MemoryCache
from batuta.cache.redis import RedisCache, RedisOptions
from batuta.cache.uses import EntityUse
from batuta.cache.windows import WindowCounter
from batuta.clock import Clock
from batuta.durations import Duration, in_seconds

__all__ = [
    "Cache",
    "CacheBackend",
    "CacheInfo",
    "Entity",
    "EntityUse",
    "KeyPattern",
    "MemberSet",
    "MemoryCache",
    "Observer",
    "RedisCache",
    "RedisOptions",
    "WindowCounter",
    "open_cache",
]

_TELL_EVERY = 10.0


async def open_cache(
    url: str,
    *,
    options: RedisOptions | None = None,
    timeout: Duration = 1.0,
    observer: Observer | None = None,
    clock: Clock | None = None,
) -> Cache:
    """A cache at `redis://...` (TLS: `rediss://`; `redis+sentinel://`, `redis+cluster://`) or `memory://`.

    A Redis that is away is no error: the cache is empty until it comes back. Raises InvalidURL, MissingExtra.
    """
    if url == "memory://":
        return Cache(MemoryCache(clock=clock), timeout=timeout, observer=observer, clock=clock)
    chosen = options or RedisOptions()
    backend = await RedisCache.connect(url, chosen, bounded=in_seconds(timeout) <= chosen.read_timeout)
    return Cache(backend, timeout=timeout, observer=observer, clock=clock, tell_every=_TELL_EVERY)
