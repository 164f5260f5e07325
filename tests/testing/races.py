"""Workflows for tests of seeds: each with a race that the usual order never shows, and the same one done right."""

import asyncio
from contextlib import suppress
from typing import Any

from batuta import Handle, Retry, RunClosed, Signal, Update, activity, random, run_child, uuid, workflow
from batuta.testing import Environment

ready = Signal("ready")
item = Signal("item", int)
correct = Update("correct", int)


@activity
async def look(what: str) -> str:
    return what


@activity(retry=Retry(attempts=1))
async def fail(what: str) -> None:
    raise ValueError(what)


@activity(retry=Retry(attempts=4), timeout=20)
def crunch(number: int) -> int:
    """In a thread."""
    return number * number


# -- two tasks and one number


@workflow
async def loses_an_update() -> int:
    stock = 10

    async def sell(*looks: str) -> None:
        nonlocal stock
        for what in looks:
            await look(what)
        before = stock
        await look("price")
        stock = before - 1

    await asyncio.gather(sell(), sell("shelf", "cellar"))
    return stock


@workflow
async def loses_no_update() -> int:
    stock = 10

    async def sell(*looks: str) -> None:
        nonlocal stock
        for what in (*looks, "price"):
            await look(what)
        stock -= 1

    await asyncio.gather(sell(), sell("shelf", "cellar"))
    return stock


# -- a signal and the wait for it


@workflow
async def forgets_a_signal() -> str:
    came = asyncio.Event()
    ready.handle(lambda _: came.set())
    await look("door")
    came.clear()
    await came.wait()
    return "open"


@workflow
async def asks_for_ever() -> str:
    came = asyncio.Event()
    ready.handle(lambda _: came.set())
    await look("door")
    came.clear()
    while not came.is_set():
        await asyncio.sleep(1)
        await look("door")
    return "open"


@workflow
async def forgets_no_signal() -> str:
    await look("door")
    await ready.wait()
    return "open"


async def say_ready(env: Environment, handle: Handle[Any]) -> None:
    await env.settle()
    await handle.signal(ready)


# -- an answer and a timeout


@workflow
async def gives_up() -> str:
    try:
        async with asyncio.timeout(10):
            return await look("answer")
    except TimeoutError:
        return "gave up"


# -- the first of two


@workflow
async def takes_the_first() -> str:
    tasks = [asyncio.create_task(look(what)) for what in ("cheap", "dear")]
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    return done.pop().result()


@workflow
async def takes_the_best() -> str:
    tasks = [asyncio.create_task(look(what)) for what in ("cheap", "dear")]
    done, _ = await asyncio.wait(tasks)
    return min(task.result() for task in done)


# -- errors of several


@workflow
async def tells_the_first_error() -> str:
    try:
        await asyncio.gather(fail("left"), fail("right"))
    except ValueError as error:
        return str(error)
    return "none"


@workflow
async def tells_all_errors() -> list[str]:
    answers = await asyncio.gather(fail("left"), fail("right"), return_exceptions=True)
    return [str(error) for error in answers]


# -- children


@workflow
async def child(name: str) -> str:
    return name


@workflow
async def lines_up_children() -> list[str]:
    ended: list[str] = []

    async def have(name: str) -> None:
        ended.append(await run_child(child, name))

    await asyncio.gather(have("ada"), have("bob"))
    return ended


@workflow
async def gathers_children() -> list[str]:
    return list(await asyncio.gather(run_child(child, "ada"), run_child(child, "bob")))


# -- a cancel


@workflow
async def forgets_to_pay_back() -> int:
    paid = 0
    try:
        await look("bank")
        paid = 5
        await look("parcel")
    except asyncio.CancelledError:
        return paid
    return 0


@workflow
async def pays_back() -> int:
    paid = 0
    try:
        await look("bank")
        paid = 5
        await look("parcel")
    except asyncio.CancelledError:
        await look("refund")
        return 0
    return paid - 5


async def cancel(env: Environment, handle: Handle[Any]) -> None:
    await env.settle()
    with suppress(RunClosed):
        await handle.cancel()


# -- an update


@workflow
async def overwrites_a_correction() -> int:
    count = 0

    @correct.handle
    def put(value: int) -> int:
        nonlocal count
        count = value
        return value

    await look("shelf")
    count = 3
    await ready.wait()
    return count


async def correct_it(env: Environment, handle: Handle[Any]) -> None:
    await env.settle()
    await handle.update(correct, 4)
    await handle.signal(ready)


# -- everything at once, to see whether it comes in the same order everywhere


@workflow
async def naps_and_crunches(number: int) -> int:
    await asyncio.sleep(number)
    return await crunch(number)


@workflow
async def does_everything() -> list[str]:
    seen: list[str] = []
    item.handle(lambda number: seen.append(f"item {number}"))

    @correct.handle
    async def corrected(number: int) -> int:
        seen.append(f"corrected {await crunch(number)}")
        return number

    async def within_time(work: Any, name: str) -> None:
        try:
            async with asyncio.timeout(30):
                seen.append(f"{name} {await work}")
        except TimeoutError:
            seen.append(f"{name} is late")

    async with asyncio.TaskGroup() as group:
        for number in range(3):
            group.create_task(within_time(look(f"look {number}"), "look"))
            group.create_task(within_time(crunch(number), "crunch"))
            group.create_task(within_time(run_child(naps_and_crunches, number), "child"))
        group.create_task(within_time(asyncio.wait_for(look("soon"), 10), "soon"))
    await ready.wait()
    return [*seen, str(uuid()), str(random().random())]


async def send_everything(env: Environment, handle: Handle[Any]) -> None:
    async def two() -> None:
        await handle.signal(item, 1)
        await handle.signal(item, 2)

    await asyncio.gather(two(), handle.update(correct, 4), handle.signal(item, 3))
    await handle.signal(ready)


async def everything_under(seed: int, store: Any = "memory") -> list[str]:
    """What happened, line by line."""
    async with Environment(
        workflows=[does_everything, naps_and_crunches],
        activities=[look, crunch],
        store=store,
        seed=seed,
        failing=0.3,
    ) as env:
        handle = await env.start(does_everything)
        await send_everything(env, handle)
        await handle.result()
        return [f"{one.seconds} {one.what}" for one in await env.happened()]
