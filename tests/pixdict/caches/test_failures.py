"""Redis stopped, empty or flushed in the middle: everything goes on, and nothing old is shown."""

import asyncio
import logging
from typing import Any

import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

import batuta
from batuta.cache import Cache, MemoryCache
from batuta.metrics import Metrics
from pixdict.caches import EntryCache, Lookups, open_caches
from pixdict.errors import BridgeUnavailable
from tests.cache.until import until
from tests.pixdict.caches.kit import ASK, CLAIM, ENTRY, HUMAN, PHONE, FakeBridge, Rows, breakable, later
from tests.pixdict.caches.test_workflows import WORK, New, claim_key, go_on, open_door


class Table:
    """Rows by id, and every way to read them."""

    def __init__(self) -> None:
        self.rows: dict[str, Any] = {}

    def reader(self, id: str) -> Any:
        async def read() -> Any:
            return self.rows.get(id)

        return read


# covers C-11
@pytest.mark.parametrize("how", ["stopped", "restarted", "flushed"])
async def test_reads_and_writes_go_on_and_show_the_database(how: str) -> None:
    async with breakable() as (cache, server):
        caches, table = open_caches(cache, FakeBridge()), Table()
        assert caches.lookups is not None
        for round_ in range(12):
            if how == "flushed":
                async with Redis(port=server.port, password=server.password) as raw:
                    await raw.flushall()
            elif round_ == 3:
                server.stop()
            elif round_ == 8 and how == "restarted":
                server.start()
                await until(works(cache))
            entry = replace(ENTRY, id=f"e-{round_}", key_value=f"{round_:011}")
            claim = later(CLAIM, id=f"c-{round_}", entry_id=entry.id)
            for status in ("PENDING", "ACTIVE"):
                entry = replace(entry, status=status)
                table.rows[entry.id] = entry
                await caches.entries.put(entry)
                assert await caches.entries.by_id(entry.id, table.reader(entry.id)) == entry
                assert await caches.entries.by_key("CPF", entry.key_value, table.reader(entry.id)) == entry
            table.rows |= {claim.id: claim, f"claims of {entry.id}": [claim.id]}
            await caches.claims.put(claim)
            assert await caches.claims.by_id(claim.id, table.reader(claim.id)) == claim
            assert await caches.claims.status(claim.id, table.reader(claim.id)) == "OPEN"
            assert await caches.claims.of_entry(entry.id, table.reader(f"claims of {entry.id}")) == {claim.id}
            del table.rows[entry.id]
            await caches.entries.delete(entry)
            assert await caches.entries.by_id(entry.id, table.reader(entry.id)) is None
            assert (await caches.lookups.find(PHONE, **ASK)).entry.key == PHONE
        if how == "stopped":
            server.start()
            await until(works(cache))
        assert await cache.without_lifetime() == []


def works(cache: Cache) -> Any:
    entries = EntryCache(cache)

    async def again() -> bool:
        await entries.by_id("anything", Rows(None))
        return cache.available

    return again


async def test_what_could_not_be_deleted_is_not_shown_and_deleted_later() -> None:
    async with breakable() as (cache, server):
        entries = EntryCache(cache)
        await entries.put(ENTRY)
        server.freeze()
        await asyncio.gather(*(entries.delete(ENTRY) for _ in range(3)))
        assert await entries.by_id(ENTRY.id, Rows(None)) is None
        server.thaw()
        await until(works(cache))
        async with Redis(port=server.port, password=server.password) as raw:
            assert await raw.get(f"dict:entry:id:{ENTRY.id}") is None
            assert await raw.get("dict:entry:key:CPF:12345678900") is None


async def test_a_claim_that_redis_did_not_take_is_among_those_of_its_entry() -> None:
    async with breakable() as (cache, server):
        claims = open_caches(cache).claims
        assert await claims.of_entry(ENTRY.id, Rows(["c-0"])) == {"c-0"}
        server.freeze()
        await asyncio.gather(*(claims.put(CLAIM) for _ in range(3)))
        server.thaw()
        await until(works(cache))
        assert await claims.of_entry(ENTRY.id, Rows(["c-0", CLAIM.id])) == {"c-0", CLAIM.id}


async def test_a_natural_person_is_no_answer_without_the_bridge_whatever_redis_does() -> None:
    async with breakable() as (cache, server):
        bridge = FakeBridge(owner=HUMAN)
        lookups = Lookups(cache, bridge)
        await lookups.find(PHONE, **ASK)
        server.stop()
        bridge.away = BridgeUnavailable("no connection")
        with pytest.raises(BridgeUnavailable):
            await lookups.find(PHONE, **ASK)


async def test_claims_run_to_their_end_without_redis() -> None:
    open_door.set()
    async with breakable() as (cache, server):
        caches = open_caches(cache)
        assert caches.lookups is None
        server.stop()
        async with batuta.connect("memory://", middleware=[caches.workflows]) as client, client.worker(**WORK):
            handles = [await client.start(claim_key, New(str(n)), id=f"claim-{n}") for n in range(5)]
            for handle in handles:
                await handle.signal(go_on)
            assert [await handle.result() for handle in handles] == ["COMPLETED"] * 5
        await caches.workflows.flush()


# covers C-10, C-12
async def test_looks_are_counted_by_entity_and_logged_without_keys(caplog: pytest.LogCaptureFixture) -> None:
    from prometheus_client import generate_latest

    metrics = Metrics()
    async with Cache(MemoryCache(), observer=metrics.observe_cache) as cache:
        caches = open_caches(cache, FakeBridge())
        assert caches.lookups is not None
        with caplog.at_level(logging.DEBUG):
            for _ in range(3):
                await caches.entries.by_id(ENTRY.id, Rows(ENTRY))
                await caches.entries.by_key("CPF", ENTRY.key_value, Rows(ENTRY))
                await caches.claims.by_id(CLAIM.id, Rows(CLAIM))
                await caches.claims.status(CLAIM.id, Rows(CLAIM))
                await caches.claims.of_entry(ENTRY.id, Rows([CLAIM.id]))
                await caches.lookups.find(PHONE, **ASK)
    text = generate_latest(metrics.registry).decode()
    said = [record.message.partition(" in ")[0] for record in caplog.records if record.name == "batuta.cache"]
    for entity in (
        "dict:entry:id",
        "dict:entry:key",
        "dict:claim:id",
        "dict:claim:status",
        "dict:claim:index:entry",
        "dict:lookup:key",
    ):
        for outcome, count in (("hit", 2), ("miss", 1)):
            series = f'batuta_cache_operations_total{{entity="{entity}",operation="get",outcome="{outcome}"}}'
            assert f"{series} {count}.0" in text
            assert said.count(f"{entity} get: {outcome}") == count
    for secret in (ENTRY.key_value, ENTRY.account_number, PHONE, "Padaria", ASK["payer_id"]):
        assert secret not in caplog.text
