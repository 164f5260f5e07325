"""Heavy work where it belongs: in a process of this worker, and on the queue of another one.

Prints:
    168 primes below 1000, in another process: True
    dawn.png, executed by the worker of queue gpu
    the key is the same wherever it runs: True
"""

import asyncio
import os
from pathlib import Path
from tempfile import TemporaryDirectory

from batuta import activity, activity_info, connect, workflow


@activity(process=True)
def count_primes(below: int) -> tuple[int, int]:
    found = [n for n in range(2, below) if all(n % d for d in range(2, int(n**0.5) + 1))]
    return len(found), os.getpid()


@activity(queue="gpu", heartbeat=30)
async def render(scene: str) -> tuple[str, str]:
    return f"{scene}.png", activity_info().key


@workflow
async def heavy(scene: str) -> tuple[int, int, str, str]:
    primes, process = await count_primes(1000)
    image, key = await render(scene)
    return primes, process, image, key


async def main(folder: Path) -> None:
    async with connect(f"sqlite:///{folder / 'routing.db'}") as batuta:
        here = batuta.worker(workflows=[heavy], activities=[count_primes])
        there = batuta.worker(activities=[render], queues=["gpu"])  # on another machine, in real life
        async with here, there:
            handle = await batuta.start(heavy, "dawn")
            primes, process, image, key = await handle.result()
            print(f"{primes} primes below 1000, in another process: {process != os.getpid()}")
            print(f"{image}, executed by the worker of queue gpu")
            print(f"the key is the same wherever it runs: {key == f'{handle.run_id}:2:render'}")


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
