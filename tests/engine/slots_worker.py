"""A worker as a process of its own: `python -m tests.engine.slots_worker URL`. Says when it is ready."""

import asyncio
import sys

from batuta import connect, workflow


@workflow
async def tick(number: int = 0) -> int:
    return number


async def main(url: str) -> None:
    async with connect(url, migrate=False) as client:
        async with client.worker(workflows=[tick], heartbeat=0.5, lease=2.0):
            print("ready", flush=True)
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
