# mypy: disable-error-code="import-not-found,untyped-decorator"
# procrastinate is installed in the peers' environment only.
"""W9 on procrastinate: `python -m bench.peers.procrastinate_run TASK`, in the peers' environment.

Tried against each other, in its favour: 1 to 50 jobs at a time, 1 to 8 of its workers in the process (each asks for one
job after the other, so that several are faster than one), pools of 4 to 40. What is used stands below. Durability is
left at its default (full).
"""

import asyncio
import logging
import time
from typing import Any, Final

from procrastinate import App, PsycopgConnector

from bench.child import Countdown, Figures, Task, answer

WORKERS: Final = 6
AT_A_TIME: Final = 3
POOL: Final = 20
WARM_UP: Final = 200
LEFT: Final = "SELECT count(*) AS n FROM procrastinate_jobs WHERE status <> 'succeeded'"


def application(url: str) -> App:
    return App(connector=PsycopgConnector(conninfo=url, min_size=4, max_size=POOL))


class Burst:
    """Jobs of one task, enqueued in one call."""

    def __init__(self, app: App) -> None:
        self._app, self._countdown = app, Countdown()

        @app.task(name="trivial")
        async def trivial(number: int) -> int:
            self._countdown.one()
            return number + 1

        self._task: Any = trivial

    async def run(self, jobs: int) -> None:
        """Enqueue, and wait until the database has all of them as finished."""
        self._countdown.begin(jobs)
        await self._task.batch_defer_async(*({"number": number} for number in range(jobs)))
        await self._countdown.wait()
        while (await self._app.connector.execute_query_one_async(LEFT))["n"]:
            await asyncio.sleep(0.001)


async def jobs(task: Task) -> Figures:
    """W9: from the first enqueue to the last finish, as the database has it."""
    logging.getLogger("procrastinate").setLevel(logging.ERROR)
    app = application(task.url)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        burst = Burst(app)
        workers = [asyncio.create_task(_work(app, number)) for number in range(WORKERS)]
        await burst.run(WARM_UP)
        begun = time.perf_counter()
        await burst.run(task.runs)
        took = time.perf_counter() - begun
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return {"jobs_per_s": task.runs / took}


async def _work(app: App, number: int) -> None:
    await app.run_worker_async(concurrency=AT_A_TIME, name=f"bench-{number}", install_signal_handlers=False)


if __name__ == "__main__":
    answer({"W9": jobs})
