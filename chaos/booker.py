"""A worker whose activities write to the store's own database: `python -m chaos.booker TASK`, which ends when all of
its runs have."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import msgspec
from msgspec import Struct

from batuta import Batuta, Handle, Retry, activity, activity_info, connect, job, transaction, workflow
from batuta.errors import OutcomeUnknown, StoreUnavailable

QUICK = Retry(attempts=20, first=0.02, factor=1.2, jitter=0.5)


class Task(Struct):
    """Where, and how much of it."""

    url: str
    namespace: str
    table: str
    runs: int


@job
async def note(what: str) -> str:
    return what


@workflow
async def books(steps: int) -> int:
    for number in range(steps):
        await book(number)
    done = await asyncio.gather(*(book(steps + number) for number in range(3)))
    return len(done) + steps


book: Any
STEPS = 3


def _insert(table: str, mark: str) -> str:
    return f"INSERT INTO {table} VALUES ({mark})"


def booking(task: Task) -> Any:
    """The activity, as the database wants it."""

    def plain(number: int) -> int:
        key = activity_info().key
        transaction().connection.execute(_insert(task.table, "?"), (key,))
        transaction().enqueue(note, key, id=f"note {key}")
        return number

    async def awaited(number: int) -> int:
        key = activity_info().key
        await transaction().connection.execute(_insert(task.table, "$1"), key)
        transaction().enqueue(note, key, id=f"note {key}")
        return number

    fn = plain if task.url.startswith("sqlite") else awaited
    return activity(name="book", transactional=True, retry=QUICK)(fn)


async def started(client: Batuta, id: str) -> Handle[int]:
    """A worker that stood still does not know whether its last start is there: with the same id it is the same run."""
    while True:
        try:
            return await client.start(books, STEPS, id=id)
        except OutcomeUnknown:
            continue


async def main(task: Task) -> None:
    global book  # noqa: PLW0603 - what the workflow calls depends on the database
    book = booking(task)
    async with connect(task.url, namespace=task.namespace, migrate=False) as client:
        async with client.worker(workflows=[books], activities=[book], jobs=[note]):
            handles = [await started(client, f"books {number}") for number in range(task.runs)]
            for handle in handles:
                await handle.result()


async def supervised(task: Task) -> None:
    """One whose database is away when it begins is begun again, as a supervisor would do it."""
    while True:
        try:
            return await main(task)
        except StoreUnavailable as error:
            print(f"begun again: {error}", file=sys.stderr)


if __name__ == "__main__":
    asyncio.run(supervised(msgspec.json.decode(sys.argv[1], type=Task)))
