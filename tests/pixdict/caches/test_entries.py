"""Our entries in the cache: names, fields, lifetimes, write-through, invalidation (C-02)."""

import asyncio
import json
from typing import Any

from msgspec.structs import replace

from batuta.cache import Cache, CacheBackend, MemoryCache
from batuta.clock import ManualClock
from pixdict.caches import EntryCache
from tests.pixdict.caches.kit import ENTRY, Rows

BY_ID = "dict:entry:id:550e8400-e29b-41d4-a716-446655440000"
BY_KEY = "dict:entry:key:CPF:12345678900"
OF_DOCUMENT_C = {
    "id": "550e8400-e29b-41d4-a716-446655440000",
    "key_type": "CPF",
    "key_value": "12345678900",
    "account_ispb": "00000000",
    "account_number": "12345-6",
    "status": "ACTIVE",
    "created_at": "2025-10-25T10:00:00Z",
}


async def read(backend: CacheBackend, key: str) -> tuple[Any, float]:
    found = await backend.get_with_lifetime(key)
    assert found is not None
    return json.loads(found[0]), found[1]


# covers C-02
async def test_names_fields_and_lifetimes_are_those_of_document_c(backend: CacheBackend, cache: Cache) -> None:
    await EntryCache(cache).put(ENTRY)
    for key in (BY_ID, BY_KEY):
        value, left = await read(backend, key)
        assert value == OF_DOCUMENT_C
        assert 270 < left <= 300


async def test_what_was_written_is_read_without_the_database(cache: Cache) -> None:
    entries, rows = EntryCache(cache), Rows(None)
    await entries.put(ENTRY)
    changed = replace(ENTRY, account_number="777")
    await entries.put(changed)
    assert await entries.by_id(ENTRY.id, rows) == changed
    assert await entries.by_key("CPF", "12345678900", rows) == changed
    assert rows.reads == 0


async def test_what_is_missing_is_loaded_once_however_many_ask(cache: Cache) -> None:
    entries, rows = EntryCache(cache), Rows(ENTRY)
    assert await asyncio.gather(*(entries.by_id(ENTRY.id, rows) for _ in range(20))) == [ENTRY] * 20
    assert rows.reads == 1
    assert await entries.by_key("CPF", "12345678900", rows) == ENTRY
    assert rows.reads == 2


async def test_an_unknown_entry_is_not_remembered(cache: Cache) -> None:
    entries, rows = EntryCache(cache), Rows(None)
    assert await entries.by_id("unknown", rows) is None
    rows.row = ENTRY
    assert await entries.by_id("unknown", rows) == ENTRY


async def test_deletion_and_another_status_drop_both(backend: CacheBackend, cache: Cache) -> None:
    entries, rows = EntryCache(cache), Rows(None)
    await entries.put(ENTRY)
    await entries.delete(ENTRY)
    assert [await backend.get(key) for key in (BY_ID, BY_KEY)] == [None, None]
    assert await entries.by_id(ENTRY.id, rows) is None
    assert rows.reads == 1


async def test_the_key_leads_to_an_active_entry_or_to_the_database(backend: CacheBackend, cache: Cache) -> None:
    """A second creation of the same key, which will be refused, does not hide the first."""
    entries, rows = EntryCache(cache), Rows(ENTRY)
    await entries.put(ENTRY)
    await entries.put(replace(ENTRY, id="second", status="PENDING"))
    assert await backend.get(BY_KEY) is None
    assert await entries.by_key("CPF", "12345678900", rows) == ENTRY
    found = await entries.by_id("second", rows)
    assert found is not None
    assert found.status == "PENDING"


async def test_an_entry_without_a_key_yet_is_kept_by_id(backend: CacheBackend, cache: Cache) -> None:
    entries, rows = EntryCache(cache), Rows(None)
    pending = replace(ENTRY, key_type="EVP", key_value="", status="PENDING")
    await entries.put(pending)
    assert await entries.by_id(ENTRY.id, rows) == pending
    await entries.delete(pending)
    assert await entries.by_id(ENTRY.id, rows) is None


async def test_a_load_does_not_bring_back_what_was_deleted_meanwhile(backend: CacheBackend, cache: Cache) -> None:
    entries, begun, go_on = EntryCache(cache), asyncio.Event(), asyncio.Event()

    async def slow() -> Any:
        begun.set()
        await go_on.wait()
        return ENTRY

    reading = asyncio.create_task(entries.by_id(ENTRY.id, slow))
    await begun.wait()
    await entries.delete(ENTRY)
    go_on.set()
    assert await reading == ENTRY
    assert await backend.get(BY_ID) is None


async def test_an_entry_ends_after_five_minutes() -> None:
    clock = ManualClock()
    async with Cache(MemoryCache(clock=clock), clock=clock) as cache:
        entries, rows = EntryCache(cache), Rows(ENTRY)
        await entries.put(ENTRY)
        clock.advance(299)
        await entries.by_id(ENTRY.id, rows)
        assert rows.reads == 0
        clock.advance(1.1)
        await entries.by_id(ENTRY.id, rows)
        assert rows.reads == 1


async def test_a_colon_in_a_key_makes_no_other_key(backend: CacheBackend, cache: Cache) -> None:
    entries = EntryCache(cache)
    await entries.put(replace(ENTRY, key_type="EMAIL", key_value="a:b@c.br"))
    assert await backend.get("dict:entry:key:EMAIL:a%3Ab@c.br") is not None


async def test_a_large_entry_is_compressed_and_read_back(backend: CacheBackend, cache: Cache) -> None:
    entries, large = EntryCache(cache), replace(ENTRY, account_number="9" * 20_000)
    await entries.put(large)
    data = await backend.get(BY_ID)
    assert data is not None
    assert data[:2] == b"\x1f\x8b"
    assert await entries.by_id(ENTRY.id, Rows(None)) == large
