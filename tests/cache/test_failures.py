"""A cache whose Redis is away, slow, flushed, read-only or failing over: everything goes on, only slower."""

import math
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from batuta.cache import Cache, Entity, MemberSet, MemoryCache, RedisCache, RedisOptions, open_cache
from batuta.errors import InvalidInput, InvalidURL
from batuta.testing.valkey import ValkeyServer
from tests.cache.clusters import two_nodes
from tests.cache.until import until

HASTY = RedisOptions(pool_size=20, min_idle=1, retries=0, dial_timeout=1, read_timeout=1)
LOADERS = """
import asyncio, sys
from batuta.cache import Entity, open_cache

async def main(url, marks, readers):
    async with await open_cache(url, timeout=20) as cache:
        entity = Entity(cache, "test:hot:{id}", str, lifetime=60)
        async def load():
            with open(marks, "a") as file:
                file.write("loaded\\n")
            await asyncio.sleep(0.2)
            return "value"
        async def read():
            while (found := await entity.get_or_load(load, id=1)) == "old":
                await asyncio.sleep(0.01)
            return found
        print("ready", flush=True)
        sys.stdin.readline()
        found = await asyncio.gather(*(read() for _ in range(readers)))
        assert found == ["value"] * readers

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


@pytest.fixture
def server() -> Iterator[ValkeyServer]:
    """One that the test may end."""
    with ValkeyServer() as server:
        yield server


class Told(Counter[str]):
    def __call__(self, entity: str, operation: str, outcome: str, seconds: float) -> None:
        self[outcome] += 1


async def hasty(url: str, told: Told | None = None) -> Cache:
    backend = await RedisCache.connect(url, HASTY)
    return Cache(backend, timeout=1, failures=3, retry_after=0.05, observer=told)


async def load() -> int:
    return 7


def numbers(cache: Cache) -> Entity[int]:
    return Entity(cache, "test:number:{id}", int, lifetime=60)


async def test_without_redis_values_are_loaded_and_with_it_again_they_are_kept(server: ValkeyServer) -> None:
    told = Told()
    async with await hasty(server.url, told) as cache:
        entity = numbers(cache)
        await entity.put(1, id=1)
        server.stop()
        assert [await entity.get_or_load(load, id=1) for _ in range(20)] == [7] * 20
        assert await entity.get(id=1) is None
        assert not cache.available
        assert told["skipped"] > told["failed"], "the breaker spares the callers most of the waiting"
        server.start()

        async def kept() -> bool:
            await entity.put(2, id=2)
            return await entity.get(id=2) == 2

        await until(kept)
        assert cache.available


async def test_a_cache_can_be_opened_while_redis_is_away(
    server: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.stop()
    async with await hasty(server.url) as cache:
        assert await numbers(cache).get_or_load(load, id=1) == 7
        assert "is not reachable" in caplog.text
        assert server.password not in caplog.text


async def test_a_redis_that_stands_still_costs_the_timeout_and_no_more(server: ValkeyServer) -> None:
    backend = await RedisCache.connect(server.url, HASTY)
    async with Cache(backend, timeout=0.05, failures=3, retry_after=60) as cache:
        server.freeze()
        try:
            assert [await numbers(cache).get_or_load(load, id=n) for n in range(50)] == [7] * 50
            assert not cache.available
        finally:
            server.thaw()


async def test_an_invalidation_that_failed_is_made_up_for(server: ValkeyServer) -> None:
    """The old value is still in Redis when it comes back: it is used by nobody here, and deleted."""
    async with await hasty(server.url) as cache, await hasty(server.url) as other:
        entity, theirs = numbers(cache), numbers(other)
        await entity.put(1, id=1)
        await entity.put(1, id=2)
        server.freeze()
        await entity.delete(id=1)
        await entity.put(2, id=2)
        server.thaw()
        assert await entity.get(id=1) is None
        assert await entity.get_or_load(load, id=2) == 7

        async def gone() -> bool:
            await entity.get(id=3)
            return await theirs.get(id=1) is None and await theirs.get(id=2) in (None, 7)

        await until(gone)


async def test_many_invalidations_that_failed_are_made_up_for_bit_by_bit() -> None:
    """All together they would take longer than an operation may: then the cache would never work again."""

    class Slow(MemoryCache):
        async def delete(self, keys: Iterable[str]) -> None:
            given = list(keys)
            if len(given) > 100:
                raise TimeoutError
            await super().delete(given)

    backend = Slow()
    cache = Cache(backend)
    entity = numbers(cache)
    keys = [entity.key(id=id) for id in range(1_000)]
    for key in keys:
        await backend.put(key, b"1", 60)
    cache.remember(keys, 60)
    assert [await entity.get(id=id) for id in range(1_000)] == [None] * 1_000, "none is used meanwhile"
    for _ in range(20):
        await entity.get(id="other")
    assert cache.available
    assert not any(cache.is_stale(key) for key in keys)
    assert [await backend.get(key) for key in keys] == [None] * 1_000


async def test_a_flushed_redis_only_costs_loads(server: ValkeyServer) -> None:
    async with await hasty(server.url) as cache, await hasty(server.url) as flusher:
        entity = numbers(cache)
        for turn in range(30):
            if turn % 3 == 0:
                backend = flusher._backend
                assert isinstance(backend, RedisCache)
                await backend._client.flushall()
                await backend._client.script_flush()
            assert await entity.get_or_load(load, id=1) == 7
        assert await cache.without_lifetime() == []


async def test_a_read_only_redis_is_as_good_as_none(server: ValkeyServer) -> None:
    async with await hasty(server.url) as cache:
        backend = cache._backend
        assert isinstance(backend, RedisCache)
        await backend._client.replicaof("127.0.0.1", "1")
        assert [await numbers(cache).get_or_load(load, id=1) for _ in range(10)] == [7] * 10


@pytest.mark.parametrize("ends", [False, True], ids=["missing", "ends while it is read"])
async def test_500_readers_in_four_processes_cause_one_load(
    server: ValkeyServer, tmp_path_factory: pytest.TempPathFactory, ends: bool
) -> None:
    marks = tmp_path_factory.mktemp("marks") / "loads"
    command = [sys.executable, "-c", LOADERS, server.url, str(marks), "125"]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    if ends:
        async with await hasty(server.url) as cache:
            await Entity(cache, "test:hot:{id}", str, lifetime=1).put("old", id=1)
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=60)
    assert [process.returncode for process in processes] == [0] * 4
    assert marks.read_text().count("loaded") == 1


# -- Sentinel and Cluster


# covers C-07
async def test_sentinels_lead_to_the_new_master_after_a_failover() -> None:
    with ValkeyServer() as first:
        follows = ("replicaof", f"127.0.0.1 {first.port}")
        with (
            ValkeyServer(follows, password=first.password) as second,
            ValkeyServer(password="", sentinel=True) as watch,
        ):
            await _watch(watch, first)
            url = f"redis+sentinel://:{first.password}@127.0.0.1:{watch.port}/mymaster/0"
            async with await hasty(url) as cache:
                entity = numbers(cache)
                await entity.put(1, id=1)
                assert await entity.get(id=1) == 1
                first.stop()

                async def at_the_new_master() -> bool:
                    assert await entity.get_or_load(load, id=2) == 7  # never an error meanwhile
                    await entity.put(3, id=3)
                    return await entity.get(id=3) == 3

                await until(at_the_new_master)
            async with await hasty(second.url) as direct:
                assert await numbers(direct).get(id=3) == 3


async def _watch(sentinel: ValkeyServer, master: ValkeyServer, *, replicas: bool = True) -> None:
    from redis.asyncio import Redis

    async with Redis(port=sentinel.port, protocol=3, password=sentinel.password or None) as raw:
        await raw.execute_command("SENTINEL", "MONITOR", "mymaster", "127.0.0.1", str(master.port), "1")
        for name, value in (
            ("auth-pass", master.password),
            ("down-after-milliseconds", "300"),
            ("failover-timeout", "2000"),
        ):
            await raw.execute_command("SENTINEL", "SET", "mymaster", name, value)

        async def knows_the_replica() -> bool:
            return any(
                b"s_down" not in str(one).encode()
                for one in await raw.execute_command("SENTINEL", "REPLICAS", "mymaster")
            )

        if replicas:
            await until(knows_the_replica)


async def test_a_slot_that_moves_in_a_cluster_is_followed() -> None:
    async with two_nodes() as cluster, await hasty(cluster.url) as cache:
        entity = numbers(cache)
        for id in range(50):
            await entity.put(id, id=id)
        assert [await entity.get_or_load(load, id=id) for id in range(50)] == list(range(50))
        assert (await cache.info()).keys == 50
        await cluster.move_slot_of(entity.key(id="moved"))
        assert await entity.get_or_load(load, id="moved") == 7
        assert await entity.get(id="moved") == 7
        assert await cache.without_lifetime() == []


# -- bad input


@pytest.mark.parametrize(
    "url",
    [
        "",
        "redis",
        "http://x",
        "redis://a,b/0",
        "redis://h/x",
        "redis://h/0/1",
        "redis+sentinel://h",
        "redis+cluster://h/1",
        "redis://h:port/0",
    ],
)
async def test_an_address_that_names_no_redis_is_refused(url: str) -> None:
    with pytest.raises(InvalidURL, match=r"Redis|Sentinel|hosts"):
        await open_cache(url)


@pytest.mark.parametrize(
    "options",
    [
        {"pool_size": 0},
        {"pool_size": "5"},
        {"min_idle": 200},
        {"retries": -1},
        {"retries": 1.5},
        {"dial_timeout": 0},
        {"read_timeout": -1},
        {"read_timeout": math.nan},
        {"pool_timeout": math.inf},
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(options))):
        RedisOptions(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": "1"},
        {"timeout": 0},
        {"timeout": math.nan},
        {"failures": 0},
        {"failures": "5"},
        {"retry_after": -1},
        {"retry_after": math.inf},
    ],
)
def test_options_of_a_cache_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(options))):
        Cache(MemoryCache(), **options)


async def test_the_password_comes_from_the_environment_and_is_shown_nowhere(
    server: ValkeyServer, tmp_path: Path
) -> None:
    secret = tmp_path / "redis"
    secret.write_text(server.password + "\n")
    url = f"redis://127.0.0.1:{server.port}"
    for env in ({"BATUTA_REDIS_PASSWORD": server.password}, {"BATUTA_REDIS_PASSWORD_FILE": str(secret)}):
        backend = await RedisCache.connect(url, HASTY, env)
        await backend.put("a:b", b"1", 60)
        assert await backend.get("a:b") == b"1"
        assert server.password not in repr(backend)
        await backend.close()
    backend = await RedisCache.connect(server.url, HASTY)
    assert server.password not in repr(backend)
    await backend.close()


async def test_a_set_whose_change_failed_is_taken_for_missing_until_it_is_deleted(server: ValkeyServer) -> None:
    async with await hasty(server.url) as cache:
        claims = MemberSet(cache, "test:claims:{id}", lifetime=60)
        await claims.add("a", id=1)
        server.freeze()
        for _ in range(3):
            await claims.add("b", id=1)
        server.thaw()

        async def works() -> bool:
            await claims.members(id=2)
            return cache.available

        await until(works)
        assert await claims.members(id=1) == set()
        await claims.add("c", id=1)
        assert await claims.members(id=1) == {"c"}
