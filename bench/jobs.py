"""W9 and W10: plain jobs in one worker process. How many a second, and whether a key with many keeps others waiting."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from batuta import Batuta, Queue, connect, job
from bench.child import Countdown, Figures, Task, answer_now, percentile

WARM_UP: Final = 200
FEW: Final = 100
"""How many the second key of W10 enqueues."""
WORK_S, PLACES = 0.01, 20
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
async def timed(number: int, seconds: float) -> None:
    """Says when it was begun, if somebody will ask."""
    if number >= 0:
        begun_at[number] = time.perf_counter()
    if seconds:
        await asyncio.sleep(seconds)
    countdown.one()


@asynccontextmanager
async def engine(url: str, places: int | None = None) -> AsyncIterator[Batuta]:
    queue = Queue("default", per_worker=places)
    async with connect(url) as batuta, batuta.worker(jobs=[trivial, timed], queues=[queue]):
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


class Keys:
    """A and B, who enqueue jobs of so many seconds into one queue."""

    def __init__(self, batuta: Batuta, seconds: float) -> None:
        self._batuta, self._seconds = batuta, seconds

    async def enqueue(self, key: str, numbers: Sequence[int]) -> None:
        calls = [timed.call(number, self._seconds).with_options(key=key) for number in numbers]
        await self._batuta.enqueue_many(calls)

    async def waits_of_b(self) -> float:
        """B enqueues its few: the p99 of how long they waited until they were begun, in ms."""
        begun_at.clear()
        enqueued = time.perf_counter()
        await self.enqueue("B", range(FEW))
        while len(begun_at) < FEW:
            await asyncio.sleep(0.001)
        return percentile([(at - enqueued) * 1000 for at in begun_at.values()], 0.99)

    async def alone(self) -> float:
        """The median of several times."""
        found = []
        for _ in range(ROUNDS_ALONE):
            countdown.begin(FEW)
            found.append(await self.waits_of_b())
            await done(self._batuta)
        return sorted(found)[ROUNDS_ALONE // 2]

    async def beside(self, many: int) -> float:
        """While A's many jobs, which were there before, are in full flow. Leaves the rest of them."""
        countdown.begin(many + FEW)
        await self.enqueue("A", [-1] * many)
        while countdown.left > many + FEW - IN_FLOW:
            await asyncio.sleep(0.001)
        return await self.waits_of_b()


async def fairness(task: Task) -> Figures:
    """W10: B alone; then B beside A, of whom `runs` jobs were there before, on a worker with so many places for jobs
    that take some time."""
    return await _fairness(task, WORK_S, PLACES)


async def fairness_when_busy(task: Task) -> Figures:
    """The same with jobs that do nothing and as many places as there are: the processor is what they share."""
    return await _fairness(task, 0.0, None)


async def _fairness(task: Task, seconds: float, places: int | None) -> Figures:
    async with engine(task.url, places) as batuta:
        keys = Keys(batuta, seconds)
        alone, beside = await keys.alone(), await keys.beside(task.runs)
        left = await batuta.count(kind="job", states=OPEN)
        if not left:
            raise RuntimeError("nothing of A was left when B was done: it was not beside A")
        answer_now({"alone_p99_ms": alone, "beside_p99_ms": beside, "beside_over_alone": beside / alone})
