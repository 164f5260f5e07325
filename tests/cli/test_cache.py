"""`batuta cache` on a real Valkey."""

import asyncio
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from batuta.cache import Cache, Entity, RedisCache, RedisOptions, open_cache
from batuta.cli import root
from batuta.testing.valkey import ValkeyServer


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ValkeyServer() as server:
        asyncio.run(_fill(server.url))
        yield server.url


async def _fill(url: str) -> None:
    async with await open_cache(url, options=RedisOptions(min_idle=1)) as cache:
        await Entity(cache, "test:large:{id}", str, lifetime=60).put("x" * 20_000, id=1)
        await Entity(cache, "test:small:{id}", str, lifetime=60).put("hello", id=1)


def call(url: str, *words: str) -> Result:
    return CliRunner().invoke(root, ["cache", *words, "--redis-url", url])


def test_a_value_is_shown_decompressed(url: str) -> None:
    assert '"hello"' in call(url, "show", "test:small:1").output
    assert "x" * 100 in call(url, "show", "test:large:1", "--json").output
    assert call(url, "show", "test:none:1").exit_code == 1


def test_looking_at_a_set_or_at_what_others_have_written_changes_nothing(url: str) -> None:
    async def write(*, clean: bool = False) -> list[bytes]:
        redis = await RedisCache.connect(url, RedisOptions(min_idle=0))
        try:
            if clean:
                kept = [await redis._client.type(key) for key in ("test:set:1", "theirs")]
                await redis.delete(["test:set:1", "theirs"])
                return kept
            await redis.add_members("test:set:1", ["b", "a"], 60)
            await redis._client.rpush("theirs", "1")
            await redis._client.expire("theirs", 60)
            return []
        finally:
            await redis.close()

    asyncio.run(write())
    assert '["a","b"]' in call(url, "show", "test:set:1").output
    refused = call(url, "show", "theirs")
    assert refused.exit_code == 2
    assert "holds a list" in refused.output
    assert asyncio.run(write(clean=True)) == [b"set", b"list"]


def test_keys_memory_and_evictions_are_shown(url: str) -> None:
    assert "keys     2" in call(url, "info").output
    assert '"evicted": 0' in call(url, "info", "--json").output


def test_hits_are_shown_by_entity(url: str) -> None:
    assert "no process has reported" in call(url, "entities").output

    async def look() -> None:
        async with Cache(await RedisCache.connect(url, RedisOptions(min_idle=0)), tell_every=0.001) as cache:
            small = Entity(cache, "test:small:{id}", str, lifetime=60)
            while not await cache.uses():
                assert await small.get(id=1) == "hello"

    asyncio.run(look())
    assert "100.0%" in call(url, "entities").output
    assert '"entity": "test:small"' in call(url, "entities", "--json").output


def test_a_key_without_a_lifetime_is_found_and_deleted(url: str) -> None:
    async def leak() -> None:
        redis = await RedisCache.connect(url, RedisOptions(min_idle=0))
        await redis._client.set("leak", "1")
        await redis.close()

    assert call(url, "check").exit_code == 0
    asyncio.run(leak())
    found = call(url, "check")
    assert (found.exit_code, found.output) == (1, "leak\n")
    assert call(url, "delete", "leak", "none").exit_code == 0
    assert call(url, "check").exit_code == 0


def test_a_redis_that_is_away_is_told_without_its_password() -> None:
    found = call("redis://:secret@127.0.0.1:1/0", "info")
    assert found.exit_code == 4
    assert "redis://127.0.0.1:1/0" in found.output
    assert "secret" not in found.output
    assert call("ftp://x", "info").exit_code == 2
