"""Workers that stop gracefully, again and again, under load: what can end within the grace is not executed again."""

import asyncio
import time
from collections import Counter
from typing import Any

import pytest

from batuta import Batuta, Retry, activity, activity_info, connect, heartbeat, workflow
from tests.long import LONG

STOPS = 200 if LONG else 60
CREWS = 2
RUNS = 24
executed: Counter[tuple[str, int]] = Counter()

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(180)]


def note() -> None:
    executed[activity_info().key, activity_info().attempt] += 1


@activity
async def quick(number: int) -> int:
    note()
    return number


@activity(heartbeat=30)
async def slow(number: int) -> int:
    note()
    for step in range(3):
        heartbeat(step)
        await asyncio.sleep(0.004 * (number % 7))
    return number


@activity
def in_thread(number: int) -> int:
    note()
    time.sleep(0.005 * (number % 5))
    return number


@activity(retry=Retry(attempts=3, first=0.01, jitter=0))
async def flaky(number: int) -> int:
    note()
    if activity_info().attempt < 3:
        raise ConnectionError("not yet")
    return number


@activity(queue="other")
async def routed(number: int) -> int:
    note()
    await asyncio.sleep(0.01 * (number % 3))
    return number


@workflow
async def busy(number: int) -> int:
    first = await quick(number)
    total = sum(await asyncio.gather(slow(first), in_thread(first), flaky(first)))
    await asyncio.sleep(0.003 * number)
    return total + await routed(number) + await quick(number)


ACTIVITIES = [quick, slow, in_thread, flaky, routed]


def a_worker(client: Batuta) -> Any:
    return client.worker(workflows=[busy], activities=ACTIVITIES, queues=["default", "other"], grace=30, heartbeat=0.5)


async def stops_and_starts(url: str, stops: int) -> None:
    """One process of a rolling deployment: its workers work for a moment each."""
    async with connect(url) as client:
        for _ in range(stops):
            async with a_worker(client):
                await asyncio.sleep(0.03)


async def load(client: Batuta, number: int, done: asyncio.Event) -> int:
    """A run at all times, none in step with the others. Returns how many."""
    ran = 0
    while not done.is_set():
        handle = await client.start(busy, number)
        assert await handle.result(60) == 5 * number
        ran += 1
    return ran


async def test_nothing_is_executed_again_that_could_end_within_the_grace(sqlite_url: str, real_time: None) -> None:
    executed.clear()
    done = asyncio.Event()
    async with connect(sqlite_url) as client:
        loaders = [asyncio.create_task(load(client, number, done)) for number in range(RUNS)]
        await asyncio.gather(*(stops_and_starts(sqlite_url, STOPS // CREWS) for _ in range(CREWS)))
        done.set()
        async with a_worker(client):
            ran = sum(await asyncio.gather(*loaders))
    assert ran > RUNS
    assert not {key: count for key, count in executed.items() if count > 1}
    assert len(executed) == ran * 8
