"""W11: a queue with a global limit and one per key, shared by several worker processes. An outside ledger shows whether
more were at work than allowed.

Each job appends a mark to one file when it begins and when it ends. The kernel puts the marks of all processes in one
order, so counting along the file never shows more at a time than there really were, and needs no clock.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final

from batuta import Batuta, Queue, connect, job
from bench.child import Figures, Task, loop_factory
from bench.ledger import ended_count
from bench.several import deadlocks

PROCESSES: Final = 4
LIMIT: Final = 50
KEY_LIMIT: Final = 1
KEYS: Final = 500
WORK_S: Final = 0.001
"""So that many are at work at once, as far as the limits allow it."""
QUEUE: Final = "limited"
WARM_UP: Final = 1_000
OPEN: Final = ("pending", "running", "waiting")


class Marked:
    """The job, with its hand on the ledger."""

    def __init__(self, ledger: Path) -> None:
        self._file = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    @job(queue=QUEUE, result=False)
    async def marked(self, key: str) -> None:
        os.write(self._file, f"B {key}\n".encode())
        await asyncio.sleep(WORK_S)
        os.write(self._file, f"E {key}\n".encode())


def judged(ledger: Path) -> dict[str, float]:
    """How many were at work at a time, at the most: of all, and of one key; and how many have ended."""
    now, per_key, most, most_of_key, ended = 0, Counter[str](), 0, 0, 0
    for line in ledger.read_text().splitlines():
        mark, key = line.split()
        change = 1 if mark == "B" else -1
        now, per_key[key] = now + change, per_key[key] + change
        most, most_of_key = max(most, now), max(most_of_key, per_key[key])
        ended += mark == "E"
    return {"most_at_once": most, "most_of_a_key": most_of_key, "ended": ended}


async def limited(task: Task) -> Figures:
    """`runs` jobs of many keys, from their enqueue to the end of the last."""
    with tempfile.TemporaryDirectory() as directory:
        ledger = Path(directory) / "ledger"
        command = (sys.executable, "-m", __name__, task.url, str(ledger))
        async with connect(task.url) as batuta:
            await batuta.limit_queue(QUEUE, concurrency=LIMIT, key_concurrency=KEY_LIMIT)
            workers = [await asyncio.create_subprocess_exec(*command) for _ in range(PROCESSES)]
            try:
                await burst(batuta, WARM_UP, ledger, 0)
                begun = time.perf_counter()
                await burst(batuta, task.runs, ledger, WARM_UP)
                took = time.perf_counter() - begun
            finally:
                for worker in workers:
                    worker.kill()
                await asyncio.gather(*(worker.wait() for worker in workers))
        found = judged(ledger)
    not_once = abs(found.pop("ended") - task.runs - WARM_UP)
    return {
        "jobs_per_s": task.runs / took,
        **found,
        "not_once": not_once,
        "deadlocks": await deadlocks(task.url),
    }


async def burst(batuta: Batuta, jobs: int, ledger: Path, before: int) -> None:
    """Enqueue, and wait for the end of all: as the ledger has it, which costs the database nothing, then as it has."""
    keys = (f"k{number % KEYS}" for number in range(jobs))
    await batuta.enqueue_many([Marked.marked.call(key).with_options(key=key) for key in keys])
    while ended_count(ledger) < before + jobs:
        await asyncio.sleep(0.01)
    while await batuta.count(kind="job", states=OPEN):
        await asyncio.sleep(0.002)


async def work(url: str, ledger: Path) -> None:
    """A worker process."""
    queue = Queue(QUEUE, concurrency=LIMIT, key_concurrency=KEY_LIMIT)
    async with connect(url) as batuta, batuta.worker(jobs=[Marked(ledger)], queues=[queue]):
        await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(work(sys.argv[1], Path(sys.argv[2])))
