"""A program may begin its tasks at once (Python 3.12 can): a worker in it goes on as in any other."""

import asyncio
import sys

import pytest

from batuta import activity, connect, workflow


@activity
async def doubled(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


@workflow
async def sums(number: int) -> int:
    return sum(await asyncio.gather(doubled(number), doubled(number + 1)))


if sys.version_info >= (3, 12):

    @pytest.mark.parametrize("place", ["memory://", "sqlite"])
    async def test_a_worker_runs_where_tasks_begin_at_once(place: str, sqlite_url: str) -> None:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        async with connect(sqlite_url if place == "sqlite" else place) as client:
            async with client.worker(workflows=[sums], activities=[doubled]):
                handles = [await client.start(sums, number, id=f"sums {number}") for number in range(20)]
                assert [await handle.result() for handle in handles] == [4 * number + 2 for number in range(20)]
