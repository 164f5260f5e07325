"""Many activities at once, with plain asyncio: gather for all results, TaskGroup to give up together.

Prints:
    squares: [0, 1, 4, 9, 16, 25, 36, 49, 64, 81]
    words: {'fan': 3, 'out': 3, 'and': 3, 'in': 2}
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from batuta import activity, connect, workflow


@activity
async def square(number: int) -> int:
    return number * number


@activity
def length(word: str) -> int:
    """Not async: it runs in a thread."""
    return len(word)


@workflow
async def squares(count: int) -> list[int]:
    return await asyncio.gather(*(square(number) for number in range(count)))


@workflow
async def lengths(words: list[str]) -> dict[str, int]:
    async with asyncio.TaskGroup() as group:
        tasks = {word: group.create_task(length(word)) for word in words}
    return {word: task.result() for word, task in tasks.items()}


async def main(folder: Path) -> None:
    async with connect(f"sqlite:///{folder / 'fan_out.db'}") as batuta:
        async with batuta.worker(workflows=[squares, lengths], activities=[square, length]):
            first = await batuta.start(squares, 10)
            second = await batuta.start(lengths, ["fan", "out", "and", "in"])
            print(f"squares: {await first.result()}")
            print(f"words: {await second.result()}")


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
