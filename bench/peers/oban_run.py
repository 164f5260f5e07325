# mypy: disable-error-code="import-not-found,untyped-decorator"
# Oban is installed in the peers' environment only.
"""W9 on Oban for Python: `python -m bench.peers.oban_run TASK`, in an environment of Python 3.12 or later.

Tried against each other, in its favour: 10 to 1,000 jobs at a time, longer and no debounce. What is used stands below.
It is up to 1.8 times as fast when the jobs are spread over eight queues and enqueued in eight calls at once; that is
another workload than the 10,000 jobs of one queue that each system is given here. Durability is left at its default
(full).
"""

import asyncio
import logging
import time
from typing import Any, Final

from oban import Oban, job
from oban.schema import install

from bench.child import Countdown, Figures, Task, answer

AT_A_TIME: Final = 200
POOL: Final = 20
WARM_UP: Final = 200
UNFINISHED: Final = "SELECT count(*) FROM oban_jobs WHERE state <> 'completed'"


countdown = Countdown()


@job()
async def trivial(number: int) -> int:
    countdown.one()
    return number + 1


async def burst(oban: Oban, pool: Any, jobs: int) -> None:
    """Enqueue, and wait until the database has all of them as finished."""
    countdown.begin(jobs)
    await oban.enqueue_many(trivial.new(number) for number in range(jobs))
    await countdown.wait()
    async with pool.connection() as connection:
        while (await (await connection.execute(UNFINISHED)).fetchone())[0]:
            await asyncio.sleep(0.001)


async def jobs(task: Task) -> Figures:
    """W9: from the first enqueue to the last finish, as the database has it."""
    logging.getLogger("oban").setLevel(logging.ERROR)
    pool = await Oban.create_pool(task.url, min_size=4, max_size=POOL)
    await install(pool)
    async with Oban(pool=pool, queues={"default": AT_A_TIME}) as oban:
        await burst(oban, pool, WARM_UP)
        begun = time.perf_counter()
        await burst(oban, pool, task.runs)
        took = time.perf_counter() - begun
    return {"jobs_per_s": task.runs / took}


if __name__ == "__main__":
    answer({"W9": jobs})
