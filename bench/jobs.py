"""W9 and W10: plain jobs in one worker process. How many a second, and whether a key with many keeps others waiting."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from batuta import Batuta, JobCall, connect, job
from bench.child import Countdown, Figures, Task, percentile

WARM_UP: Final = 200
FEW: Final = 100
"""How many the second key of W10 enqueues."""
IN_FLOW: Final = 1_000
"""How many of A's jobs are done when B comes."""
ROUNDS_ALONE: Final = 5
OPEN: Final = ("pending", "running", "waiting")

countdown = Countdown()
begun_at: dict[int, float] = {}


@job(result=False)
async def trivial(number: int) -> None:
    """As the peers' jobs: what it returns is not kept."""
    countdown.one()


@job(result=False)
async def timed(number: int) -> None:
    """Says when it was begun, if somebody will ask."""
    if number >= 0:
        begun_at[number] = time.perf_counter()
    countdown.one()


@asynccontextmanager
async def engine(url: str) -> AsyncIterator[Batuta]:
    async with connect(url) as batuta, batuta.worker(jobs=[trivial, timed]):
        yield batuta


async def done(batuta: Batuta) -> None:
    """Until all have been executed, and the database has them as finished."""
    await countdown.wait()
    while await batuta.count(kind="job", states=OPEN):
        await asyncio.sleep(0.001)


async def burst(batuta: Batuta, jobs: int) -> None:
    countdown.begin(jobs)
    await batuta.enqueue_many([trivial.call(number) for number in range(jobs)])
    await done(batuta)


async def throughput(task: Task) -> Figures:
    """W9: from the enqueue of all of them in one call to the end of the last."""
    async with engine(task.url) as batuta:
        await burst(batuta, WARM_UP)
        begun = time.perf_counter()
        await burst(batuta, task.runs)
        took = time.perf_counter() - begun
    return {"jobs_per_s": task.runs / took}


def calls(numbers: Sequence[int], key: str) -> list[JobCall[None]]:
    return [timed.call(number).with_options(key=key) for number in numbers]


async def waits_of_b(batuta: Batuta) -> list[float]:
    """B enqueues its few; how long each of them waited until it was begun, in ms."""
    begun_at.clear()
    enqueued = time.perf_counter()
    await batuta.enqueue_many(calls(range(FEW), "B"))
    while len(begun_at) < FEW:
        await asyncio.sleep(0.001)
    return [(at - enqueued) * 1000 for at in begun_at.values()]


async def fairness(task: Task) -> Figures:
    """W10: B alone, several times; then B while the `runs` jobs of A, before it in the same queue, are in full flow."""
    async with engine(task.url) as batuta:
        alone = []
        for _ in range(ROUNDS_ALONE):
            countdown.begin(FEW)
            alone.append(percentile(await waits_of_b(batuta), 0.99))
            await done(batuta)
        countdown.begin(task.runs + FEW)
        await batuta.enqueue_many(calls([-1] * task.runs, "A"))
        while countdown.left > task.runs + FEW - IN_FLOW:
            await asyncio.sleep(0.001)
        beside = await waits_of_b(batuta)
        waiting = await batuta.count(kind="job", states=OPEN)
        await done(batuta)
    p99_alone, p99_beside = sorted(alone)[len(alone) // 2], percentile(beside, 0.99)
    return {
        "alone_p99_ms": p99_alone,
        "beside_p99_ms": p99_beside,
        "beside_over_alone": p99_beside / p99_alone,
        "left_of_a": float(waiting),
    }
