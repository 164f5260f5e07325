"""The worker process of W6 on batuta: `python -m bench.w6_worker URL LEDGER RUNS STEPS start|resume`.

Nothing is done by hand in the new process: it connects, offers the same code, and waits for the runs by their ids.
"""

import asyncio
import os
import sys
import time
from pathlib import Path

from batuta import Batuta, activity, connect, workflow
from bench.ledger import Ledger

URL, LEDGER, RUNS, STEPS, MODE = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
ledger = Ledger(LEDGER)


@activity
async def step(run: str, number: int) -> None:
    ledger.begin(f"{run}:{number}")
    await asyncio.sleep(0.02)
    ledger.end(f"{run}:{number}")


@workflow
async def steps(run: str, count: int) -> None:
    for number in range(count):
        await step(run, number)


async def result(batuta: Batuta, run: str) -> None:
    handle = await batuta.get(run, steps)
    await handle.result()


async def main() -> None:
    ids = [f"w6-{number}" for number in range(RUNS)]
    async with connect(URL) as batuta:
        async with batuta.worker(workflows=[steps], activities=[step]):
            if MODE == "start":
                await asyncio.gather(*(batuta.start(steps, run, STEPS, id=run) for run in ids))
                ledger.all_started()
            await asyncio.gather(*(result(batuta, run) for run in ids))
            sys.stdout.write(f"done {time.monotonic()}\n")
            sys.stdout.flush()
            os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())
