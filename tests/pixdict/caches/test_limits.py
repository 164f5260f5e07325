"""Limits of participants, with the numbers of document C (C-06)."""

import asyncio
from collections import Counter

import pytest

import batuta
from batuta.cache import Cache, CacheBackend
from batuta.errors import LimitReached
from pixdict.caches import LIMITS, Limits
from pixdict.errors import InvalidArgument
from tests.pixdict.caches.kit import breakable

OURS, THEIRS = "00000000", "11111111"


# covers C-06
def test_the_numbers_are_those_of_document_c() -> None:
    assert {name: list(rates) for name, rates in LIMITS.items()} == {
        "CreateEntry": ["100/min", "1000/h"],
        "CreateClaim": ["50/min", "500/h"],
        "GetEntry": ["500/min"],
    }


@pytest.mark.parametrize(("operation", "most"), [("CreateEntry", 100), ("CreateClaim", 50), ("GetEntry", 500)])
async def test_each_participant_and_operation_has_its_own(cache: Cache, operation: str, most: int) -> None:
    async with batuta.connect("memory://") as client:
        limits = Limits(client, cache)
        outcomes: Counter[bool] = Counter()
        waits: list[float] = []

        async def ask() -> None:
            try:
                await limits.admit(operation, OURS)
                outcomes[True] += 1
            except LimitReached as refused:
                waits.append(refused.retry_after)
                outcomes[False] += 1

        await asyncio.gather(*(ask() for _ in range(most + 20)))
        assert 0.95 * most <= outcomes[True] <= most
        assert all(0 < wait <= 120 for wait in waits)
        assert outcomes[False] == most + 20 - outcomes[True]
        await limits.admit(operation, THEIRS)
        other = next(name for name in LIMITS if name != operation)
        await limits.admit(other, OURS)


async def test_redis_counts_under_the_names_of_document_c(backend: CacheBackend, cache: Cache) -> None:
    async with batuta.connect("memory://") as client:
        limits = Limits(client, cache)
        told: list[str] = []
        count = backend.count

        async def spied(key: str, amount: int, lifetime: float) -> int:
            told.append(f"{key} {lifetime:g}")
            return await count(key, amount, lifetime)

        backend.count = spied  # type: ignore[method-assign]
        await limits.admit("CreateClaim", OURS)
        [hour, minute] = sorted(told, key=len)
        assert minute.startswith(f"ratelimit:{OURS}:CreateClaim:20")
        assert minute.endswith(" 60")
        assert hour.endswith(" 3600")
        assert minute.removesuffix(" 60").rpartition(":")[0] == hour.removesuffix(" 3600")
        assert (await backend.info()).keys == 2


async def test_the_store_holds_the_limit_without_redis_and_after_a_flush() -> None:
    async with batuta.connect("memory://") as client, breakable() as (cache, server):
        limits, admitted = Limits(client, cache, rates={"CreateEntry": ["20/h"]}), 0
        for number in range(40):
            if number == 5:
                server.stop()
            if number == 20:
                server.start()  # empty
            try:
                await limits.admit("CreateEntry", OURS)
                admitted += 1
            except LimitReached:
                pass
        assert admitted == 20


async def test_an_operation_without_a_limit_is_refused() -> None:
    async with batuta.connect("memory://") as client:
        with pytest.raises(InvalidArgument, match="CreateEntry"):
            await Limits(client).admit("DropTable", OURS)
