"""Our claims in the cache: names, fields, lifetimes, the index, EXPIRED (C-03)."""

import asyncio
import json

import pytest

from batuta.cache import Cache, CacheBackend, MemoryCache
from batuta.clock import ManualClock, as_datetime
from pixdict.caches import ClaimCache
from tests.pixdict.caches.kit import CLAIM, DAY, ENTRY, Rows, later
from tests.pixdict.caches.test_entries import read

BY_ID = f"dict:claim:id:{CLAIM.id}"
STATUS = f"dict:claim:status:{CLAIM.id}"
INDEX = f"dict:claim:index:entry:{ENTRY.id}"


# covers C-03
async def test_names_fields_and_lifetimes_are_those_of_document_c(backend: CacheBackend, cache: Cache) -> None:
    await ClaimCache(cache).put(CLAIM)
    value, left = await read(backend, BY_ID)
    assert value == {
        "id": "c1234567-89ab-cdef-0123-456789abcdef",
        "workflow_id": "claim-workflow-123",
        "entry_id": "550e8400-e29b-41d4-a716-446655440000",
        "claimer_ispb": "11111111",
        "owner_ispb": "00000000",
        "status": "OPEN",
        "expires_at": "2125-11-24T10:00:00Z",
        "completion_period_days": 30,
    }
    assert 30 < left <= 60
    value, left = await read(backend, STATUS)
    assert (value, 30 < left <= 60) == ("OPEN", True)
    assert await backend.members(INDEX) == {CLAIM.id}


async def test_the_index_has_a_lifetime_of_five_minutes() -> None:
    clock = ManualClock()
    backend = MemoryCache(clock=clock)
    async with Cache(backend, clock=clock) as cache:
        await ClaimCache(cache).put(CLAIM)
        clock.advance(61)
        assert [await backend.get(key) for key in (BY_ID, STATUS)] == [None, None]
        clock.advance(238)
        assert await backend.members(INDEX) == {CLAIM.id}
        clock.advance(2)
        assert await backend.members(INDEX) == set()


async def test_the_status_alone_and_the_whole_claim_are_read_without_the_database(cache: Cache) -> None:
    claims, rows = ClaimCache(cache), Rows(None)
    await claims.put(CLAIM)
    await claims.put(later(CLAIM, status="WAITING_RESOLUTION"))
    assert await claims.status(CLAIM.id, rows) == "WAITING_RESOLUTION"
    found = await claims.by_id(CLAIM.id, rows)
    assert found is not None
    assert (found.status, rows.reads) == ("WAITING_RESOLUTION", 0)


@pytest.mark.parametrize("status", ["COMPLETED", "CANCELLED", "FAILED"])
async def test_a_claim_that_has_ended_is_dropped(backend: CacheBackend, cache: Cache, status: str) -> None:
    claims = ClaimCache(cache)
    await claims.put(CLAIM)
    ended = later(CLAIM, status=status)
    await claims.put(ended)
    assert [await backend.get(key) for key in (BY_ID, STATUS)] == [None, None]
    assert await backend.members(INDEX) == set()
    rows = Rows(ended)
    assert await claims.status(CLAIM.id, rows) == status
    assert await claims.by_id(CLAIM.id, rows) == ended


async def test_the_claims_of_an_entry_are_loaded_once_and_kept_up(cache: Cache) -> None:
    claims, rows = ClaimCache(cache), Rows(["c-0"])
    await claims.put(CLAIM)  # the index does not know yet of those that were there before
    assert await claims.of_entry(ENTRY.id, Rows(["c-0", CLAIM.id])) == {"c-0", CLAIM.id}
    await claims.put(later(CLAIM, id="c-2"))
    assert await claims.of_entry(ENTRY.id, rows) == {"c-0", CLAIM.id, "c-2"}
    assert rows.reads == 0
    await claims.delete(CLAIM)
    assert await claims.of_entry(ENTRY.id, rows) == {"c-0"}
    assert rows.reads == 1


async def test_that_an_entry_has_no_claims_is_known_too(cache: Cache) -> None:
    claims, rows = ClaimCache(cache), Rows([])
    assert [await claims.of_entry(ENTRY.id, rows) for _ in range(3)] == [set()] * 3
    assert rows.reads == 1
    await claims.put(CLAIM)
    assert await claims.of_entry(ENTRY.id, rows) == {CLAIM.id}


async def test_a_claim_that_comes_while_the_claims_of_its_entry_are_read_is_not_lost(cache: Cache) -> None:
    claims, begun, go_on = ClaimCache(cache), asyncio.Event(), asyncio.Event()

    async def slow() -> list[str]:
        begun.set()
        await go_on.wait()
        return ["c-0"]

    reading = asyncio.create_task(claims.of_entry(ENTRY.id, slow))
    await begun.wait()
    await claims.put(CLAIM)
    go_on.set()
    await reading
    assert await claims.of_entry(ENTRY.id, Rows([])) == {"c-0", CLAIM.id}


async def test_a_claim_without_an_entry_of_ours_is_in_no_index(cache: Cache) -> None:
    claims = ClaimCache(cache)
    await claims.put(later(CLAIM, entry_id=""))
    assert await claims.status(CLAIM.id, Rows(None)) == "OPEN"
    await claims.delete(later(CLAIM, entry_id=""))
    assert await claims.status(CLAIM.id, Rows(None)) is None


async def test_a_claim_whose_time_is_over_is_expired_in_its_status_alone() -> None:
    clock = ManualClock()
    backend = MemoryCache(clock=clock)
    async with Cache(backend, clock=clock) as cache:
        claims = ClaimCache(cache)
        open_claim = later(CLAIM, expires_at=as_datetime(clock.now()) + 30 * DAY)
        rows = Rows(open_claim)
        assert await claims.status(CLAIM.id, rows) == "OPEN"
        clock.advance(30 * 86_400)
        assert await claims.status(CLAIM.id, rows) == "EXPIRED"
        assert json.loads(await backend.get(STATUS) or b"") == "EXPIRED"
        assert await claims.by_id(CLAIM.id, rows) == open_claim
        for status in ("CONFIRMED", "COMPLETED", "CANCELLED"):
            assert later(open_claim, status=status).status_at(as_datetime(clock.now())) == status
