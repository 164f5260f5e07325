"""Versions of one flow that are made at the same time."""

import asyncio

import batuta
from tests.flows.http import SPRINT


async def test_versions_that_are_made_at_the_same_time_follow_each_other(url: str) -> None:
    async with batuta.connect(url) as client, batuta.connect(url) as other:
        made = await asyncio.gather(*((client, other)[n % 2].flows.create(SPRINT) for n in range(16)))
    assert sorted(one.version for one in made) == list(range(1, 17))
