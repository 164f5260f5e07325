"""Sleeps and timeouts are durable timers: they keep their deadline over restarts, and cost nothing while they wait.

Here the worker is stopped while the run sleeps; another one wakes it.

Prints:
    while no worker runs: waiting
    slow answer: gave up; reminders sent: 2
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from batuta import activity, connect, workflow


@activity
async def remind(who: str, number: int) -> None: ...


@activity
async def ask_slow_partner() -> str:
    await asyncio.sleep(60)
    return "an answer"


@workflow
async def dunning(who: str) -> str:
    for number in (1, 2):
        await asyncio.sleep(0.5)  # it could be 30 days
        await remind(who, number)
    try:
        async with asyncio.timeout(0.2):
            answer = await ask_slow_partner()
    except TimeoutError:
        answer = "gave up"
    return f"slow answer: {answer}; reminders sent: 2"


async def main(folder: Path) -> None:
    async with connect(f"sqlite:///{folder / 'timers.db'}") as batuta:
        async with batuta.worker(workflows=[dunning], activities=[remind, ask_slow_partner]):
            handle = await batuta.start(dunning, "Ada")
            while (await handle.describe()).entries == 0:
                await asyncio.sleep(0.01)  # let it begin
        print(f"while no worker runs: {(await handle.describe()).state}")
        async with batuta.worker(workflows=[dunning], activities=[remind, ask_slow_partner]):
            print(await handle.result())


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
