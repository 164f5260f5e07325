"""A program may begin its tasks at once (Python 3.12 can): a worker in it goes on as in any other."""

import asyncio
import sys
from datetime import timedelta

import pytest

from batuta import Retry, activity, connect, workflow
from batuta.testing.virtualtime import VirtualLoop
from tests.engine.kit import world

begun: list[float] = []


@activity
async def doubled(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


@workflow
async def sums(number: int) -> int:
    return sum(await asyncio.gather(doubled(number), doubled(number + 1)))


@activity(retry=Retry(first=5, jitter=0))
async def computes() -> str:
    """For four seconds, in which nothing else can happen."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    begun.append(loop.time())
    loop.clock.pass_by(4)
    if len(begun) == 1:
        raise ValueError("not yet")
    return "done"


@workflow
async def waits() -> str:
    return await computes()


async def test_time_goes_on_in_an_attempt_that_begins_where_its_call_is_durable() -> None:
    begun.clear()
    async with world(waits, computes) as env:
        handle = await env.start(waits)
        assert await handle.result() == "done"
        first = (await handle.attempts())[0]
        assert first.started_at is not None
        assert first.ended_at == first.started_at + timedelta(seconds=4)
        assert first.next_at == first.started_at + timedelta(seconds=9)
        assert begun[1] - begun[0] == 9


if sys.version_info >= (3, 12):

    @pytest.mark.parametrize("place", ["memory://", "sqlite"])
    async def test_a_worker_runs_where_tasks_begin_at_once(place: str, sqlite_url: str) -> None:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        async with connect(sqlite_url if place == "sqlite" else place) as client:
            async with client.worker(workflows=[sums], activities=[doubled]):
                handles = [await client.start(sums, number, id=f"sums {number}") for number in range(20)]
                assert [await handle.result() for handle in handles] == [4 * number + 2 for number in range(20)]
