"""The smallest durable workflow: one activity, one workflow, one worker.

Prints:
    Hello, Ada! You are number 1.
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from batuta import activity, connect, workflow


@activity
async def greet(name: str, number: int) -> str:
    return f"Hello, {name}! You are number {number}."


@workflow
async def hello(name: str) -> str:
    return await greet(name, 1)


async def main(folder: Path) -> None:
    async with connect(f"sqlite:///{folder / 'hello.db'}") as batuta:
        async with batuta.worker(workflows=[hello], activities=[greet]):
            handle = await batuta.start(hello, "Ada", id="hello-ada")
            print(await handle.result())


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
