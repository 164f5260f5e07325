"""Operations of a cache are counted by entity, and what its Redis says is on the server's metrics and page."""

import logging

import pytest
from prometheus_client import generate_latest

import batuta
from batuta.cache import Cache, Entity, EntityUse, MemoryCache, RedisCache, RedisOptions, open_cache
from batuta.cache.uses import Uses, uses_of
from batuta.clock import SECOND, ManualClock, SystemClock
from batuta.metrics import Metrics
from batuta.server import Server
from batuta.server.partners.cache import CacheWatch
from batuta.testing.valkey import ValkeyServer
from tests.server.web import Web


async def test_looks_are_counted_by_entity_and_logged_at_debug(  # covers C-10, C-12
    caplog: pytest.LogCaptureFixture,
) -> None:
    metrics = Metrics()
    async with await open_cache("memory://", observer=metrics.observe_cache) as cache:
        entries = Entity(cache, "dict:entry:id:{entry_id}", str, lifetime=60, absent_lifetime=60)
        with caplog.at_level(logging.DEBUG, "batuta.cache"):
            assert await entries.get(entry_id="12345678901") is None
            await entries.put("x", entry_id="12345678901")
            assert [await entries.get(entry_id="12345678901") for _ in range(3)] == ["x"] * 3
            await entries.put_absent(entry_id="2")
            assert await entries.get(entry_id="2") is None
    text = generate_latest(metrics.registry).decode()
    for outcome, count in (("hit", 3), ("miss", 1), ("absent", 1)):
        series = f'batuta_cache_operations_total{{entity="dict:entry:id",operation="get",outcome="{outcome}"}}'
        assert f"{series} {count}.0" in text
    assert 'batuta_cache_duration_seconds_count{entity="dict:entry:id",operation="get"} 5.0' in text
    said = [record.message.partition(" in ")[0] for record in caplog.records if "get" in record.message]
    assert said == ["dict:entry:id get: miss", *["dict:entry:id get: hit"] * 3, "dict:entry:id get: absent"]
    assert "12345678901" not in caplog.text


async def test_the_server_tells_how_redis_is_doing(valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATUTA_REDIS_URL", valkey.url)
    async with batuta.connect("memory://") as client:
        server = Server(client)
        web = Web(server.serve)
        shown = (await web.get("/api/v1/cache")).json
        assert (shown["configured"], shown["up"]) == (True, True)
        assert shown["info"]["memory_used"] > 100_000
        assert valkey.password not in repr(shown)
        text = (await web.get("/metrics")).body.decode()
        where = f'{{cache="{shown["where"]}"}}'
        assert f"batuta_cache_up{where} 1.0" in text
        assert f"batuta_cache_evictions_total{where} 0.0" in text
        assert f"batuta_cache_memory_bytes{where}" in text
        await server.close()


async def test_a_redis_that_is_away_is_said_and_harms_no_other_metric() -> None:
    async with batuta.connect("memory://") as client:
        server = Server(client)
        web = Web(server.serve)
        assert (await web.get("/api/v1/cache")).json["configured"] is False
        server.cache = CacheWatch("redis://:secret@127.0.0.1:1/0")
        shown = (await web.get("/api/v1/cache")).json
        assert (shown["configured"], shown["up"], shown["info"]) == (True, False, None)
        assert "secret" not in repr(shown)
        text = (await web.get("/metrics")).body.decode()
        assert 'batuta_cache_up{cache="redis://127.0.0.1:1/0"} 0.0' in text
        assert 'batuta_store_up{namespace="default"} 1.0' in text
        server.cache = CacheWatch("nonsense")
        assert (await web.get("/api/v1/cache")).json["up"] is False
        await server.close()


async def test_hits_by_entity_of_all_processes_are_on_the_page(valkey: ValkeyServer) -> None:
    now = SystemClock().now()
    for clock in (ManualClock(now), ManualClock(now)):  # two processes
        backend = await RedisCache.connect(valkey.url, RedisOptions(min_idle=0))
        async with Cache(backend, clock=clock, tell_every=10) as cache:
            entries = Entity(cache, "shown:entry:id:{entry_id}", str, lifetime=60, absent_lifetime=60)
            assert await entries.get(entry_id="1") in (None, "x")
            await entries.put("x", entry_id="1")
            await entries.put_absent(entry_id="2")
            assert [await entries.get(entry_id=id) for id in "112"] == ["x", "x", None]
            clock.advance(11)
            await entries.get(entry_id="1")
            assert cache._telling is not None
            await cache._telling
            assert await backend.without_lifetime(10) == []
    async with batuta.connect("memory://") as client:
        server = Server(client)
        server.cache = CacheWatch(valkey.url)
        entities = (await Web(server.serve).get("/api/v1/cache")).json["entities"]
        await server.close()
    [shown] = [one for one in entities if one["entity"] == "shown:entry:id"]
    assert {name: shown[name] for name in ("entity", "hits", "absent", "misses", "failed")} == {
        "entity": "shown:entry:id",
        "hits": 7,
        "absent": 2,
        "misses": 1,
        "failed": 0,
    }


async def test_an_unreachable_cache_is_asked_nothing_and_fails_no_caller() -> None:
    backend = await RedisCache.connect("redis://127.0.0.1:1/0", RedisOptions(min_idle=0, retries=0))
    async with Cache(backend, tell_every=0.001) as cache:
        entity = Entity(cache, "test:number:{id}", int, lifetime=60)
        for number in range(8):
            assert await entity.get(id=number) is None


async def test_counts_that_cannot_be_read_are_left_out() -> None:
    backend, now = MemoryCache(), 1_700_000_000 * SECOND
    mine = Uses()
    mine.note("dict:entry:id", "hit", 0.5)
    mine.note("dict:entry:id", "ok", 0.5)
    await mine.write(backend, now)
    await backend.add_members(f"batuta:cache:processes:{now // SECOND // 3600}", ["other", "gone"], 60)
    await backend.put("batuta:cache:uses:other", b"[1", 60)
    assert await uses_of(backend, now + 3600 * SECOND) == [EntityUse(entity="dict:entry:id", hits=1, seconds=0.5)]
    assert await uses_of(backend, now + 7200 * SECOND) == []
