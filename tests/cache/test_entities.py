"""Entities: typed values with keys, lifetimes, single flight and early expiry."""

import asyncio
import gzip
import math
from collections import Counter
from decimal import Decimal
from typing import Any

import pytest
from msgspec import Struct

from batuta.cache import Cache, CacheBackend, Entity, KeyPattern, MemberSet, MemoryCache
from batuta.clock import ManualClock
from batuta.errors import InvalidInput, NotSerialisable
from batuta.ids import foresee, go_on_from


class Account(Struct):
    number: str
    balance: Decimal = Decimal(0)


def accounts(cache: Cache, **options: Any) -> Entity[Account]:
    return Entity(cache, "bank:account:id:{id}", Account, **({"lifetime": 300} | options))


class Loader:
    """Counts its calls, and can be held back."""

    def __init__(self, *answers: Account | Exception | None) -> None:
        self.calls = 0
        self.answers = list(answers)
        self.open = asyncio.Event()
        self.open.set()
        self.begun = asyncio.Event()

    async def __call__(self) -> Account | None:
        self.calls += 1
        self.begun.set()
        await self.open.wait()
        answer = self.answers[min(self.calls, len(self.answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer


# -- keys


def test_keys_follow_the_naming_rule() -> None:  # covers C-01
    pattern = KeyPattern("dict:entry:key:{key_type}:{key_value}")
    assert pattern.key({"key_type": "CPF", "key_value": "12345678900"}) == "dict:entry:key:CPF:12345678900"
    assert KeyPattern("workflow:claim:{id}:status").key({"id": 7}) == "workflow:claim:7:status"
    assert KeyPattern("dict:v2:entry:{id}").key({"id": "x"}) == "dict:v2:entry:x"


def test_different_identifiers_never_make_one_key() -> None:
    pattern = KeyPattern("a:b:{x}:{y}")
    pairs = [("1:2", "3"), ("1", "2:3"), ("1%3A2", "3"), ("{1}", "3"), ("1 ", "3"), ("1\n", "3")]
    keys = [pattern.key({"x": x, "y": y}) for x, y in pairs]
    assert len(set(keys)) == len(pairs)
    assert not any(set(key) & set("{} \n") for key in keys)


@pytest.mark.parametrize(
    "pattern", ["", "one", "Dict:entry", "dict:Entry:{id}", "dict:{id", "dict:{id}x", "dict::x", "{id}:x", "a:{i}:{i}"]
)
def test_a_pattern_that_breaks_the_rule_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidInput, match="cache key pattern"):
        KeyPattern(pattern)


@pytest.mark.parametrize(
    "given",
    [{}, {"id": ""}, {"id": None}, {"id": "\ud800"}, {"id": "x" * 600}, {"id": "1", "more": "2"}, {"other": 1}],
)
def test_identifiers_that_do_not_fit_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        KeyPattern("a:b:{id}").key(given)


# -- values


async def test_a_value_comes_back_as_its_type_and_is_plain_json_there(cache: Cache, backend: CacheBackend) -> None:
    entity = accounts(cache)
    assert await entity.get(id="1") is None
    await entity.put(Account("12-3", Decimal("1.50")), id="1")
    assert await entity.get(id="1") == Account("12-3", Decimal("1.50"))
    assert await backend.get("bank:account:id:1") == b'{"number":"12-3","balance":"1.50"}'
    await entity.delete(id="1")
    assert await entity.get(id="1") is None


# covers C-08
async def test_a_large_value_is_compressed_and_tells_so_itself(cache: Cache, backend: CacheBackend) -> None:
    entity = accounts(cache)
    for size in (10_000, 20_000):
        await entity.put(Account("7" * size), id=size)
        data = await backend.get(entity.key(id=size))
        assert data is not None
        assert data.startswith(b"\x1f\x8b") == (size > 10 * 1024)
        assert await entity.get(id=size) == Account("7" * size)


@pytest.mark.parametrize(
    "data",
    [b"{", b"[]", b'{"number":1}', b"\x1f\x8bxx", b"\x00", gzip.compress(b" " * 9_000_000), b"\x1f\x8b" * 9],
    ids=["cut", "list", "type", "not-gzip", "zero", "bomb", "gzips"],
)
async def test_bytes_that_do_not_decode_are_taken_for_missing(cache: Cache, backend: CacheBackend, data: bytes) -> None:
    entity = accounts(cache)
    await backend.put(entity.key(id="1"), data, 60)
    assert await entity.get(id="1") is None
    assert await entity.get_or_load(Loader(Account("9")), id="1") == Account("9")
    assert await entity.get(id="1") == Account("9")


async def test_what_does_not_exist_is_remembered_for_its_own_lifetime(cache: Cache) -> None:
    load = Loader(None)
    entity = accounts(cache, absent_lifetime=60)
    assert [await entity.get_or_load(load, id="1") for _ in range(3)] == [None] * 3
    assert load.calls == 1
    assert await entity.get(id="1") is None
    forgetful = accounts(cache)
    assert [await forgetful.get_or_load(load, id="2") for _ in range(3)] == [None] * 3
    assert load.calls == 4
    await entity.put(Account("1"), id="1")
    await entity.put_absent(id="1")
    assert await entity.get_or_load(load, id="1") is None
    assert load.calls == 4


async def test_a_value_without_json_is_refused_and_nothing_is_written(cache: Cache, backend: CacheBackend) -> None:
    entity: Entity[Any] = Entity(cache, "a:b:{id}", dict, lifetime=60)
    with pytest.raises(NotSerialisable):
        await entity.put({"x": object()}, id=1)
    with pytest.raises(NotSerialisable):
        await entity.get_or_load(Loader({"x": object()}), id=1)  # type: ignore[arg-type]
    assert await backend.get("a:b:1") is None
    assert await backend.lock("a:b:1", "x", 60), "no lock is left behind"


@pytest.mark.parametrize(
    "options",
    [
        {"lifetime": 0},
        {"lifetime": -1},
        {"lifetime": 1e18},
        {"lifetime": "5"},
        {"stale": -1},
        {"early": -1},
        {"load_time": 0},
    ],
)
def test_lifetimes_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(options))):
        accounts(Cache(MemoryCache()), **options)


@pytest.mark.parametrize("lifetime", [0, math.inf, math.nan, "5", None])
def test_a_set_that_would_stay_for_ever_or_never_is_refused(lifetime: Any) -> None:
    with pytest.raises(InvalidInput, match="lifetime"):
        MemberSet(Cache(MemoryCache()), "a:b:{id}", lifetime=lifetime)


async def test_a_set_of_members_is_kept_by_entity(cache: Cache) -> None:
    claims = MemberSet(cache, "dict:claim:index:entry:{entry_id}", lifetime=300)
    await claims.add("c1", "c2", entry_id="e")
    await claims.remove("c1", entry_id="e")
    assert await claims.members(entry_id="e") == {"c2"}
    await claims.delete(entry_id="e")
    assert await claims.members(entry_id="e") == set()


@pytest.mark.parametrize("member", ["\ud800", None, 7])
async def test_a_member_that_is_no_text_is_refused_and_the_cache_goes_on(cache: Cache, member: Any) -> None:
    claims = MemberSet(cache, "dict:claim:index:entry:{entry_id}", lifetime=300)
    for _ in range(6):
        with pytest.raises(InvalidInput, match="member of dict:claim:index:entry"):
            await claims.add(member, entry_id="e")
    assert cache.available


# -- one load for many readers


# covers C-09
async def test_many_readers_of_a_missing_value_cause_one_load(cache: Cache, backend: CacheBackend) -> None:
    load = Loader(Account("1"))
    load.open.clear()
    here, elsewhere = accounts(cache), accounts(Cache(backend, timeout=20))
    readers = [asyncio.create_task(one.get_or_load(load, id="1")) for one in (here, elsewhere) for _ in range(100)]
    await load.begun.wait()
    await asyncio.sleep(0)
    load.open.set()
    assert await asyncio.gather(*readers) == [Account("1")] * 200
    assert load.calls == 1


async def test_a_reader_who_goes_away_does_not_end_the_load_of_the_others(cache: Cache) -> None:
    load = Loader(Account("1"))
    load.open.clear()
    entity = accounts(cache)
    first, second = (asyncio.create_task(entity.get_or_load(load, id="1")) for _ in range(2))
    await load.begun.wait()
    first.cancel()
    load.open.set()
    assert await second == Account("1")
    assert load.calls == 1


async def test_a_failed_load_reaches_its_readers_and_the_next_one_loads_again(cache: Cache) -> None:
    load = Loader(ZeroDivisionError("away"), Account("1"))
    entity = accounts(cache)
    with pytest.raises(ZeroDivisionError):
        await entity.get_or_load(load, id="1")
    assert await entity.get_or_load(load, id="1") == Account("1")


async def test_a_change_during_a_load_wins_over_what_was_loaded(cache: Cache) -> None:
    load = Loader(Account("old"))
    load.open.clear()
    entity = accounts(cache)
    reader = asyncio.create_task(entity.get_or_load(load, id="1"))
    await load.begun.wait()
    await entity.put(Account("new"), id="1")
    load.open.set()
    await reader
    assert await entity.get(id="1") == Account("new")


async def test_who_asks_after_a_change_does_not_wait_for_the_load_of_before(cache: Cache) -> None:
    for change in ("delete", "put_absent"):
        before, after = Loader(Account("old")), Loader(Account("new"))
        before.open.clear()
        entity = accounts(cache)
        reader = asyncio.create_task(entity.get_or_load(before, id=change))
        await before.begun.wait()
        await getattr(entity, change)(id=change)
        assert await entity.get_or_load(after, id=change) == Account("new")
        before.open.set()
        assert await reader == Account("old")
        assert await entity.get(id=change) == Account("new")


async def test_others_load_themselves_when_the_one_who_loads_takes_too_long(
    cache: Cache, backend: CacheBackend
) -> None:
    entity = accounts(cache, load_time=0.05)
    assert await backend.lock(entity.key(id="1"), "dead", 60)
    assert await entity.get_or_load(Loader(Account("1")), id="1") == Account("1")


async def test_a_load_that_takes_too_long_says_that_its_value_is_not_kept(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    entity = accounts(Cache(MemoryCache(clock=clock), clock=clock), load_time=5)

    async def slow() -> Account:
        clock.advance(6)
        return Account("1")

    assert await entity.get_or_load(slow, id="1") == Account("1")
    assert await entity.get(id="1") is None
    assert "took 6.0 s to load, over load_time=5: it is not kept" in caplog.text


# -- before and after the end of a lifetime


async def test_a_value_about_to_end_is_loaded_early_by_one_and_used_by_the_others() -> None:
    """XFetch: the chance grows as the end comes near, and with the time that a load takes."""
    clock = ManualClock()
    backend = MemoryCache(clock=clock)
    load = Loader(Account("1"), Account("2"))
    entity = accounts(Cache(backend, clock=clock), lifetime=100)

    async def slow() -> Account | None:
        clock.advance(5)
        return await load()

    before = foresee(1)
    try:
        await entity.get_or_load(slow, id="1")
        early: Counter[int] = Counter()
        for left in (60, 20, 5, 1):
            clock.advance(100 - left)
            for _ in range(200):
                early[left] += entity._ends_soon(left)
    finally:
        go_on_from(before)
    assert early[60] == 0
    assert early[20] < early[5] < early[1]
    assert early[1] > 100


async def test_an_early_load_leaves_the_old_value_for_its_readers(cache: Cache, monkeypatch: Any) -> None:
    load = Loader(Account("1"), Account("2"))
    entity = accounts(cache)
    await entity.get_or_load(load, id="1")
    monkeypatch.setattr(entity, "_ends_soon", lambda left: True)
    load.open.clear()
    load.begun.clear()
    assert [await entity.get_or_load(load, id="1") for _ in range(5)] == [Account("1")] * 5
    await load.begun.wait()
    assert load.calls == 2
    load.open.set()
    await asyncio.gather(*entity._loading.values())
    monkeypatch.setattr(entity, "_ends_soon", lambda left: False)
    assert await entity.get_or_load(load, id="1") == Account("2")


async def test_a_value_that_ends_while_another_process_loads_it_early_is_waited_for(
    cache: Cache, backend: CacheBackend, monkeypatch: Any
) -> None:
    """Readers that join an early load, which found that another process loads already, get the value and not None."""
    load = Loader(Account("ours"))
    entity = accounts(cache)
    await entity.put(Account("old"), id="1")
    key = entity.key(id="1")
    assert await backend.lock(key, "theirs", 60)
    monkeypatch.setattr(entity, "_ends_soon", lambda left: True)
    assert await entity.get_or_load(load, id="1") == Account("old")
    early = entity._loading[key]
    reader = asyncio.create_task(entity._load_for(key, load, None))
    await asyncio.wait([early])
    assert await backend.put_loaded(key, b'{"number":"new"}', 60, "theirs")
    assert await reader == Account("new")
    assert load.calls == 0


async def test_a_value_that_another_process_has_just_loaded_early_is_not_loaded_again(
    cache: Cache, backend: CacheBackend, monkeypatch: Any
) -> None:
    """The value looked old, and was loaded anew before this process got the lock."""
    load = Loader(Account("ours"))
    entity = accounts(cache)
    await backend.put(entity.key(id="1"), b'{"number":"old"}', 20)
    monkeypatch.setattr(entity, "_ends_soon", lambda left: True)
    assert await entity.get_or_load(load, id="1") == Account("old")
    key, early = entity.key(id="1"), list(entity._loading.values())
    lock, asked = backend.lock, []

    async def after_the_other(*args: Any) -> bool:
        asked.append(args)
        await backend.put(key, b'{"number":"theirs"}', 300)
        return await lock(*args)

    monkeypatch.setattr(backend, "lock", after_the_other)
    await asyncio.wait(early)
    assert asked
    assert load.calls == 0
    assert await entity.get(id="1") == Account("theirs")
    assert await lock(key, "x", 60), "no lock is left behind"


async def test_a_stale_value_is_used_only_when_loading_fails() -> None:
    clock = ManualClock()
    load = Loader(Account("1"), ZeroDivisionError("away"), Account("2"))
    entity = accounts(Cache(MemoryCache(clock=clock), clock=clock), lifetime=10, stale=50, early=0)
    assert await entity.get_or_load(load, id="1") == Account("1")
    clock.advance(20)
    assert await entity.get_or_load(load, id="1") == Account("1")
    assert load.calls == 2
    assert await entity.get_or_load(load, id="1") == Account("2")
    clock.advance(61)
    with pytest.raises(ZeroDivisionError):
        await entity.get_or_load(Loader(ZeroDivisionError("away")), id="1")


async def test_the_least_recently_used_values_leave_a_full_memory() -> None:
    backend = MemoryCache(max_bytes=5_000)
    for number in range(100):
        await backend.put(f"a:{number}", b"x" * 100, 60)
        await backend.get("a:0")
    assert await backend.get("a:0") is not None
    assert await backend.get("a:99") is not None
    assert await backend.get("a:1") is None
    info = await backend.info()
    assert info.memory_used <= 5_000
    assert info.evicted > 50


async def test_a_value_that_is_larger_than_the_memory_pushes_out_no_others() -> None:
    backend = MemoryCache(max_bytes=5_000)
    await backend.put("a:1", b"x", 60)
    await backend.put("a:2", b"x" * 6_000, 60)
    assert await backend.get("a:1") == b"x"
    assert await backend.get("a:2") is None
    assert (await backend.info()).evicted == 1


async def test_a_value_may_say_itself_how_long_it_is_used() -> None:
    clock = ManualClock()
    backend = MemoryCache(clock=clock)
    numbers = Entity(Cache(backend, clock=clock), "test:n:{id}", int, lifetime=100, early=0, lifetime_of=float)

    for value in (10, 500, 0, -3):

        async def load(value: int = value) -> int:
            return value

        assert await numbers.get_or_load(load, id=str(value)) == value
    lives = {key: round(end - clock.monotonic()) for key, (_, end) in backend._found.items()}
    assert lives == {"test:n:10": 10, "test:n:500": 100}
    await numbers.put(20, id="10")
    assert (await backend.get_with_lifetime("test:n:10") or (b"", 0))[1] == 20
    await numbers.put(0, id="10")
    assert await backend.get("test:n:10") is None
