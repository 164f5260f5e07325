"""Schedules: many are due at the same moment, several worker processes share them, and one of these is killed."""

import asyncio
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Final

from batuta import Batuta, Schedule, connect, every, workflow
from bench.child import Figures, Task, loop_factory, percentile

PROCESSES: Final = 3
LEAD_S: Final = 3.0
"""Between the last schedule that is made and the moment. With less than a second left, nothing can be measured."""
PERIOD: Final = timedelta(hours=1)
PAGE: Final = 1_000
AT_ONCE: Final = 50


@workflow
async def slot() -> None:
    """What every schedule starts."""


async def slots(task: Task) -> Figures:
    """`runs` schedules with a slot at one moment: how late each run was begun; whether each slot had one run, which
    ended. A worker is killed as soon as the first run is there."""
    async with connect(task.url) as batuta:
        command = (sys.executable, "-m", __name__, task.url)
        pipe = asyncio.subprocess.PIPE
        workers = [await asyncio.create_subprocess_exec(*command, stdout=pipe) for _ in range(PROCESSES)]
        try:
            await asyncio.gather(*(said_ready(worker) for worker in workers))
            moment = datetime.fromtimestamp(int(time.time() + LEAD_S + await time_to_declare(batuta, task.runs)), UTC)
            await declare(batuta, "s", task.runs, moment)
            await begun(batuta, 1)
            workers[0].kill()
            await ended(batuta, task.runs)
        finally:
            for worker in workers:
                if worker.returncode is None:
                    worker.kill()
            await asyncio.gather(*(worker.wait() for worker in workers))
        return await judged(batuta, task.runs, moment)


async def said_ready(worker: asyncio.subprocess.Process) -> None:
    if worker.stdout is None or not await worker.stdout.readline():
        raise RuntimeError(f"a worker ended with {await worker.wait()} before it was ready")


async def time_to_declare(batuta: Batuta, count: int) -> float:
    """How long it will take, judged by some that are never due here."""
    begun = time.perf_counter()
    await declare(batuta, "trial", AT_ONCE, datetime.now(UTC) + PERIOD / 2)
    return (time.perf_counter() - begun) * 1.5 * count / AT_ONCE


async def declare(batuta: Batuta, name: str, count: int, moment: datetime) -> None:
    offset = (moment - datetime.fromtimestamp(0, UTC)) % PERIOD
    for first in range(0, count, AT_ONCE):
        numbers = range(first, min(count, first + AT_ONCE))
        made = (Schedule(f"{name}{number}", every(PERIOD, offset), slot) for number in numbers)
        await asyncio.gather(*(batuta.schedules.create(schedule) for schedule in made))
    if datetime.now(UTC) > moment - timedelta(seconds=1):
        raise RuntimeError("the machine is too slow: the schedules were due before all of them were made")


async def begun(batuta: Batuta, count: int) -> None:
    while await batuta.count() < count:
        await asyncio.sleep(0.002)


async def ended(batuta: Batuta, count: int) -> None:
    while await batuta.count(state="completed") < count:
        await asyncio.sleep(0.02)


async def judged(batuta: Batuta, count: int, moment: datetime) -> Figures:
    late: list[float] = []
    runs: Counter[str] = Counter()
    cursor: str | None = None
    while True:
        page = await batuta.list(limit=PAGE, cursor=cursor)
        for run in page.runs:
            runs[run.id.partition(":")[0]] += 1
            late.append(((run.created_at or moment) - moment).total_seconds() * 1000)
        cursor = page.cursor
        if cursor is None:
            break
    return {
        "late_p50_ms": percentile(late, 0.5),
        "late_p99_ms": percentile(late, 0.99),
        "early": sum(ms < 0 for ms in late),
        "not_once": sum(runs[f"s{number}"] != 1 for number in range(count)) + (len(late) - count),
    }


async def work(url: str) -> None:
    """A worker process."""
    async with connect(url) as batuta, batuta.worker(workflows=[slot]):
        print("ready", flush=True)
        await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(work(sys.argv[1]))
