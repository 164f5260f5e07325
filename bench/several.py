"""W8: W2 shared by several worker processes on one database. The runs come from a client that is no worker."""

import asyncio
import sys
import time
from typing import Final

from batuta import Batuta, connect
from bench.batuta_run import ids, step, steps
from bench.child import Figures, Task

WARM_UP_RUNS: Final = 200


async def shared(task: Task) -> Figures:
    """`runs` workflows of `steps` activities, done by as many processes as the name of the workload ends with."""
    count = int(task.workload.rpartition("-")[2])
    async with connect(task.url) as batuta:
        workers = [await asyncio.create_subprocess_exec(sys.executable, "-m", __name__, task.url) for _ in range(count)]
        try:
            await burst(batuta, WARM_UP_RUNS, task.steps)
            before = await deadlocks(task.url)
            begun = time.perf_counter()
            await burst(batuta, task.runs, task.steps)
            took = time.perf_counter() - begun
            return {
                "steps_per_s": task.runs * task.steps / took,
                "deadlocks": await deadlocks(task.url) - before,
            }
        finally:
            for worker in workers:
                worker.kill()
            await asyncio.gather(*(worker.wait() for worker in workers))


async def burst(batuta: Batuta, runs: int, count: int) -> None:
    """Start them all and wait for all: one that nobody is woken up for would never end."""
    handles = await asyncio.gather(*(batuta.start(steps, count, id=next(ids)) for _ in range(runs)))
    await asyncio.gather(*(handle.result() for handle in handles))


async def deadlocks(url: str) -> float:
    """How many PostgreSQL has found in this database."""
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        query = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        return float(await connection.fetchval(query))
    finally:
        await connection.close()


async def work(url: str) -> None:
    """A worker process."""
    async with connect(url) as batuta, batuta.worker(workflows=[steps], activities=[step]):
        await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1]))
