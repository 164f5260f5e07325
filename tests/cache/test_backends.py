"""What every place for cached bytes must do."""

import asyncio

from batuta.cache import CacheBackend
from tests.cache.until import until


async def test_a_value_is_there_until_its_lifetime_ends(backend: CacheBackend) -> None:
    await backend.put("a:b", b"1", 60)
    assert await backend.get("a:b") == b"1"
    found = await backend.get_with_lifetime("a:b")
    assert found is not None
    assert found[0] == b"1"
    assert 0 < found[1] <= 60
    await backend.put("a:b", b"2", 0.01)
    await until(lambda: _is_none(backend.get("a:b")))
    assert await backend.get_with_lifetime("a:b") is None


async def test_one_at_a_time_has_the_lock_of_a_key(backend: CacheBackend) -> None:
    assert await backend.lock("k:v", "mine", 60)
    assert not await backend.lock("k:v", "theirs", 60)
    await backend.unlock("k:v", "theirs")
    assert not await backend.lock("k:v", "theirs", 60)
    await backend.unlock("k:v", "mine")
    assert await backend.lock("k:v", "theirs", 60)


async def test_a_loaded_value_is_written_only_under_its_lock(backend: CacheBackend) -> None:
    await backend.lock("k:v", "mine", 60)
    assert not await backend.put_loaded("k:v", b"old", 60, "theirs")
    assert await backend.put_loaded("k:v", b"new", 60, "mine")
    assert await backend.get("k:v") == b"new"
    assert await backend.lock("k:v", "next", 60), "the lock was released"


async def test_a_load_under_way_brings_no_old_value_back(backend: CacheBackend) -> None:
    for change in ("delete", "put"):
        await backend.lock("k:v", "mine", 60)
        if change == "delete":
            await backend.delete(["k:v"])
        else:
            await backend.put("k:v", b"new", 60)
        assert not await backend.put_loaded("k:v", b"old", 60, "mine")
        assert await backend.get("k:v") != b"old"


async def test_a_counter_ends_its_lifetime_after_the_first_addition(backend: CacheBackend) -> None:
    counts = await asyncio.gather(*(backend.count("c:n", 2, 60) for _ in range(50)))
    assert sorted(counts) == list(range(2, 101, 2))
    assert await backend.count("c:m", 1, 0.01) == 1

    async def begins_anew() -> bool:
        return await backend.count("c:m", 1, 0.01) == 1

    await until(begins_anew)


async def test_what_is_given_back_to_a_counter_that_has_ended_makes_no_room_in_the_next(backend: CacheBackend) -> None:
    assert await backend.count("a:late", -1, 60) == 0
    assert [await backend.count("a:late", amount, 60) for amount in (1, 1, -1)] == [1, 2, 1]


async def test_a_set_has_members_and_a_lifetime(backend: CacheBackend) -> None:
    await backend.add_members("s:x", ["a", "b"], 60)
    await backend.add_members("s:x", ["c"], 60)
    await backend.remove_members("s:x", ["a"])
    assert await backend.members("s:x") == {"b", "c"}
    assert await backend.members("s:y") == set()


async def test_the_place_says_how_it_is_doing(backend: CacheBackend) -> None:
    await backend.put("a:b", b"1" * 1000, 60)
    info = await backend.info()
    assert info.keys >= 1
    assert info.memory_used > 1000
    assert info.evicted == 0


async def _is_none(found: "asyncio.Future[object] | object") -> bool:
    return (await found) is None  # type: ignore[misc]


async def test_a_value_of_another_kind_under_a_key_is_taken_for_missing(backend: CacheBackend) -> None:
    """One such key must not pass for a backend that fails."""
    await backend.add_members("k:v", ["one"], 60)
    assert await backend.get("k:v") is None
    await backend.add_members("k:v", ["one"], 60)
    assert await backend.get_with_lifetime("k:v") is None
    for number in (b"many", b"9223372036854775807"):
        await backend.put("k:n", number, 60)
        assert await backend.count("k:n", 1, 60) == 1
    await backend.put("k:s", b"1", 60)
    assert await backend.members("k:s") == set()
    for change in (backend.add_members("k:s", ["two"], 60), backend.remove_members("k:s", ["one"])):
        await backend.put("k:s", b"1", 60)
        await change
    assert await backend.members("k:s") == set()
