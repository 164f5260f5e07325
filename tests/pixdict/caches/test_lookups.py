"""Keys of other institutions: what may be kept, for how long, and what an answer says of its age (C-11)."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from batuta.cache import Cache, CacheBackend, MemoryCache
from batuta.clock import ManualClock
from pixdict.caches import Lookups
from pixdict.errors import BridgeUnavailable, InvalidArgument, NotFound, RateLimited
from tests.pixdict.caches.kit import ASK, COMPANY, CPF, HUMAN, PHONE, FakeBridge

KEY = f"dict:lookup:key:{hashlib.sha256(PHONE.encode()).hexdigest()}"
AWAY = BridgeUnavailable("no connection")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def memory(clock: ManualClock) -> AsyncIterator[Cache]:
    async with Cache(MemoryCache(clock=clock), clock=clock) as cache:
        yield cache


# covers C-11
async def test_a_company_is_answered_from_the_cache_while_the_bridge_is_away(clock: ManualClock, memory: Cache) -> None:
    bridge = FakeBridge(clock)
    lookups = Lookups(memory, bridge)
    first = await lookups.find(PHONE, **ASK)
    assert (first.source, first.age, first.entry.owner) == ("bridge", 0, COMPANY)
    clock.advance(100)
    bridge.away = AWAY
    again = await lookups.find(PHONE, **ASK)
    assert (again.source, again.age, again.entry) == ("cache", 100, first.entry)
    assert bridge.asked == [(PHONE, ASK["payer_id"], ASK["end_to_end_id"])]


async def test_after_180_seconds_nothing_is_left_not_even_on_errors(clock: ManualClock, memory: Cache) -> None:
    bridge = FakeBridge(clock, max_age=86_400)
    lookups = Lookups(memory, bridge)
    await lookups.find(PHONE, **ASK)
    clock.advance(179.9)
    assert (await lookups.find(PHONE, **ASK)).source == "cache"
    clock.advance(0.1)
    bridge.away = AWAY
    with pytest.raises(BridgeUnavailable):
        await lookups.find(PHONE, **ASK)
    assert (await memory.info()).keys == 0
    bridge.away = None
    assert (await lookups.find(PHONE, **ASK)).source == "bridge"


@pytest.mark.parametrize("max_age", [30, 1])
async def test_the_directory_may_ask_for_less(clock: ManualClock, memory: Cache, max_age: int) -> None:
    lookups = Lookups(memory, FakeBridge(clock, max_age=max_age))
    await lookups.find(PHONE, **ASK)
    clock.advance(max_age - 0.1)
    assert (await lookups.find(PHONE, **ASK)).source == "cache"
    clock.advance(0.1)
    assert (await lookups.find(PHONE, **ASK)).source == "bridge"


async def test_the_time_of_the_call_counts_as_age(clock: ManualClock, memory: Cache) -> None:
    bridge = FakeBridge(clock)
    bridge.takes = 15
    lookups = Lookups(memory, bridge)
    assert (await lookups.find(PHONE, **ASK)).age == 15
    clock.advance(164.9)
    assert (await lookups.find(PHONE, **ASK)).age == pytest.approx(179.9)
    clock.advance(0.1)
    assert (await lookups.find(PHONE, **ASK)).source == "bridge"


@pytest.mark.parametrize(("owner", "max_age"), [(HUMAN, 180), (COMPANY, 0), (COMPANY, -5)])
async def test_natural_persons_and_what_the_directory_forbids_are_not_kept(
    clock: ManualClock, memory: Cache, owner: Any, max_age: int
) -> None:
    bridge = FakeBridge(clock, owner, max_age)
    lookups = Lookups(memory, bridge)
    assert [(await lookups.find(PHONE, **ASK)).source for _ in range(2)] == ["bridge"] * 2
    assert (await memory.info()).keys == 0
    bridge.away = AWAY
    with pytest.raises(BridgeUnavailable):
        await lookups.find(PHONE, **ASK)


async def test_a_cpf_never_comes_near_the_cache(clock: ManualClock) -> None:
    told: list[str] = []

    def observe(entity: str, operation: str, outcome: str, seconds: float) -> None:
        told.append(entity)

    async with Cache(MemoryCache(), observer=observe, clock=clock) as cache:
        bridge = FakeBridge(clock)  # even if it said that this is a company
        assert (await Lookups(cache, bridge).find(CPF, **ASK)).source == "bridge"
        assert told == []


async def test_the_key_is_hashed_and_what_is_kept_has_a_lifetime(backend: CacheBackend, cache: Cache) -> None:
    lookups = Lookups(cache, FakeBridge())
    await lookups.find(PHONE, **ASK)
    found = await backend.get_with_lifetime(KEY)
    assert found is not None
    assert 100 < found[1] <= 180
    cnpj = "1a2b3c4d5e6f7g"
    await lookups.find(cnpj, **ASK)
    assert await backend.get(f"dict:lookup:key:{hashlib.sha256(cnpj.upper().encode()).hexdigest()}") is not None
    await lookups.delete(PHONE)
    assert await backend.get(KEY) is None


async def test_those_who_ask_at_once_for_a_company_share_one_look_up(cache: Cache) -> None:
    bridge = FakeBridge()
    lookups = Lookups(cache, bridge)
    found = await asyncio.gather(*(lookups.find(PHONE, **ASK) for _ in range(20)))
    assert len(bridge.asked) == 1
    assert sorted(one.source for one in found) == ["bridge", *["cache"] * 19]


async def test_those_who_ask_at_once_for_a_person_ask_each_for_themselves(cache: Cache) -> None:
    bridge = FakeBridge(owner=HUMAN)
    lookups = Lookups(cache, bridge)
    payers = [f"{number:011}" for number in range(5)]
    found = await asyncio.gather(
        *(lookups.find(PHONE, payer_id=payer, end_to_end_id=ASK["end_to_end_id"]) for payer in payers)
    )
    assert {one.source for one in found} == {"bridge"}
    assert sorted(payer for _, payer, _ in bridge.asked) == payers


async def test_no_tokens_of_one_payer_are_no_answer_for_another(cache: Cache) -> None:
    bridge = FakeBridge()
    lookups = Lookups(cache, bridge)
    bridge.free.clear()
    bridge.poor = {ASK["payer_id"]}
    poor = asyncio.create_task(lookups.find(PHONE, **ASK))
    while not bridge.asked:
        await asyncio.sleep(0)
    rich = asyncio.create_task(lookups.find(PHONE, payer_id="99988877766", end_to_end_id=ASK["end_to_end_id"]))
    await asyncio.sleep(0)
    bridge.free.set()
    with pytest.raises(RateLimited):
        await poor
    assert (await rich).source == "bridge"


async def test_what_is_not_there_is_not_remembered(cache: Cache) -> None:
    bridge = FakeBridge()
    bridge.away = NotFound("NotFound")
    lookups = Lookups(cache, bridge)
    for _ in range(2):
        with pytest.raises(NotFound):
            await lookups.find(PHONE, **ASK)
    bridge.away = None
    assert (await lookups.find(PHONE, **ASK)).source == "bridge"
    assert len(bridge.asked) == 3


async def test_what_is_no_key_is_refused_before_anything_is_asked(cache: Cache) -> None:
    bridge = FakeBridge()
    for key in ("", "nonsense", "12345", "+5511987654321 ", "x" * 500):
        with pytest.raises(InvalidArgument, match="is no key"):
            await Lookups(cache, bridge).find(key, **ASK)
    assert bridge.asked == []


async def test_a_wall_clock_that_jumps_back_keeps_nothing_longer(clock: ManualClock, memory: Cache) -> None:
    lookups = Lookups(memory, FakeBridge(clock))
    await lookups.find(PHONE, **ASK)
    clock.advance(170)
    clock.jump(-3600)
    assert (await lookups.find(PHONE, **ASK)).source == "cache"
    clock.advance(10)
    assert (await lookups.find(PHONE, **ASK)).source == "bridge"


async def test_a_wall_clock_that_jumps_ahead_ends_it(clock: ManualClock, memory: Cache) -> None:
    lookups = Lookups(memory, FakeBridge(clock))
    await lookups.find(PHONE, **ASK)
    clock.jump(200)
    assert (await lookups.find(PHONE, **ASK)).source == "bridge"
    assert (await lookups.find(PHONE, **ASK)).source == "cache", "the new one is kept in place of the old one"
