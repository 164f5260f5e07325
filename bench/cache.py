"""cache: reading and writing one value through an entity, against bare calls of redis-py on one Valkey, in turns."""

import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from msgspec import Struct
from redis.asyncio import Redis

from batuta.cache import Entity, open_cache
from batuta.testing.valkey import ValkeyServer
from bench.child import Figures, Task

BURST: Final = 200
LIFETIME: Final = 300


class Entry(Struct):
    id: str
    name: str
    account: str
    status: str


VALUE: Final = Entry("e-1", "A name of some length", "00000000-0001-000012345", "ACTIVE")


async def cache(task: Task) -> Figures:
    """One caller, each call after the one before. A bare call handles bytes; an entity encodes and decodes, too."""
    with ValkeyServer() as server:
        bare = Redis.from_url(server.url)
        kept = await open_cache(server.url)
        entries = Entity(kept, "bench:entry:id:{entry_id}", Entry, lifetime=LIFETIME)
        await entries.put(VALUE, entry_id="e-1")
        key = entries.key(entry_id="e-1")
        data = await bare.get(key) or b""
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "bare_get": lambda: bare.get(key),
            "get": lambda: entries.get(entry_id="e-1"),
            "bare_put": lambda: bare.set(key, data, px=LIFETIME * 1000),
            "put": lambda: entries.put(VALUE, entry_id="e-1"),
        }
        spent: dict[str, list[float]] = {name: [] for name in calls}
        end = time.perf_counter() + task.seconds
        while time.perf_counter() < end or len(spent["put"]) < 5:
            for name, call in calls.items():
                spent[name].append(await _burst(call))
        await kept.close()
        await bare.aclose()
    figures = {f"{name}_us": statistics.median(times) / BURST * 1e6 for name, times in spent.items()}
    return figures | {f"{name}_over_bare": _ratio(spent[name], spent[f"bare_{name}"]) for name in ("get", "put")}


async def _burst(call: Callable[[], Awaitable[Any]]) -> float:
    begun = time.perf_counter()
    for _ in range(BURST):
        await call()
    return time.perf_counter() - begun


def _ratio(ours: list[float], bare: list[float]) -> float:
    return statistics.median(one / other for one, other in zip(ours, bare, strict=True))
