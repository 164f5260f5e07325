"""Workflows for the tests of the command line. A worker process imports this module by its name."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from batuta import (
    App,
    CompleteLater,
    DeadLetter,
    Query,
    Retry,
    Signal,
    Update,
    activity,
    activity_info,
    job,
    progress,
    publish,
    workflow,
)

LEDGER = "SHOP_LEDGER"


def note(what: str) -> None:
    """Append a line to the test's ledger, whole."""
    file = os.open(os.environ[LEDGER], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, f"{what} {activity_info().key}\n".encode())
    os.close(file)


@activity
async def add(a: int, b: int) -> int:
    return a + b


add_patiently = add.with_options(timeout=60)


@activity
async def step(number: int, seconds: float) -> int:
    note("began")
    await asyncio.sleep(seconds)
    note("ended")
    return number


@activity(retry=Retry(attempts=1))
def block(seconds: float) -> None:
    note("began")
    time.sleep(seconds)


@activity(retry=Retry(attempts=1))
async def decline(reason: str) -> None:
    raise ValueError(reason)


@workflow
async def declined(reason: str) -> None:
    await decline(reason)


@workflow
async def total(numbers: list[int]) -> int:
    found = 0
    for number in numbers:
        found = await add(found, number)
    return found


@workflow
async def refuse(reason: str) -> None:
    raise ValueError(reason)


@workflow
async def nap(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "awake"


@workflow
async def stuck() -> None:
    await asyncio.Event().wait()


@workflow
async def walk(steps: int, seconds: float) -> list[int]:
    return [await step(number, seconds) for number in range(steps)]


@workflow
async def blocked(seconds: float) -> None:
    await block(seconds)


limit = Signal("limit", int)
put = Update("put", int)
size = Query("size", int)


@workflow
async def basket() -> list[str]:
    items: list[str] = []

    def short(item: str) -> None:
        if len(item) > 10:
            raise ValueError("too long a name")

    @put.handle(validator=short)
    def append(item: str) -> int:
        items.append(item)
        publish("last", item)
        return len(items)

    @size.handle
    def count(more: int = 0) -> int:
        return len(items) + more

    return items[: await limit.wait()]


@activity(retry=Retry(attempts=2, first=0.01))
async def ask(question: str) -> int:
    note(f"token={activity_info().token}")
    raise CompleteLater


@workflow
async def survey(question: str) -> int:
    return await ask(question)


@job(retry=Retry(attempts=2, first=0.01))
async def weigh(grams: int) -> int:
    progress(f"{grams} g")
    if grams < 0:
        raise ValueError("less than nothing")
    return grams * 2


app = App(workflows=[total], activities=[add])


def alert(letter: DeadLetter) -> None:
    with open(os.environ[LEDGER], "a") as ledger:
        ledger.write(f"{letter.name} {letter.id} {letter.error}\n")


alerting = App(jobs=[weigh], on_dead_letter=alert)


def make() -> App:
    return app


async def make_async() -> App:
    return app


@asynccontextmanager
async def resource() -> AsyncIterator[App]:
    yield app


def broken() -> App:
    raise RuntimeError("no such luck")


not_an_app = {"workflows": [total]}
