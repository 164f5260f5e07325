"""Workflows that talk, whose journals are kept. Never change one: add another, and record it."""

import asyncio
from typing import Any

from batuta import (
    Handle,
    Query,
    Signal,
    Update,
    UpdateFailed,
    UpdateRejected,
    Workflow,
    activity,
    handlers_done,
    publish,
    workflow,
)
from batuta.testing import Environment

approve = Signal("approve", bool)
item = Signal("item", int)
stop = Signal("stop")
add = Update("add", int)
status = Query("status", str)


@activity
async def weigh(number: int) -> int:
    await asyncio.sleep(1)
    return number * 10


@workflow
async def signalled() -> list[Any]:
    """Waits in vain, waits, iterates, and has a handler; one value does not fit."""
    handled: list[int] = []
    said: list[Any] = []
    try:
        await approve.wait(timeout=30)
    except TimeoutError:
        said.append("nobody")
    said.append(await approve.wait(timeout=3600))
    async for number in item:
        said.append(number)
        if number == 3:
            break

    @item.handle
    async def take(number: int) -> None:
        handled.append(await weigh(number))

    await stop.wait()
    return [*said, *handled]


async def signal_it(env: Environment) -> Handle[Any]:
    handle = await env.start(signalled, signal=(item, 1))
    await env.advance(31)
    await handle.signal("approve", "perhaps")
    await handle.signal(approve, True)
    for number in (2, 3, 4, 5):
        await handle.signal(item, number)
    await env.advance(5)
    await handle.signal(stop)
    return handle


@workflow
async def updated() -> list[int]:
    """Accepts, rejects and fails; publishes; one update is still open at its end."""
    numbers: list[int] = []

    def positive(number: int) -> None:
        if number < 0:
            raise ValueError("too low")

    @add.handle(validator=positive)
    async def append(number: int) -> int:
        if number == 13:
            raise LookupError("not that one")
        numbers.append(await weigh(number))
        publish("count", len(numbers))
        return len(numbers)

    status.handle(lambda: f"{len(numbers)} so far")
    await stop.wait()
    return numbers


async def update_it(env: Environment) -> Handle[Any]:
    handle = await env.start(updated)
    await asyncio.gather(*(handle.update(add, number, update_id=f"u{number}") for number in (1, 2, 3)))
    for number in (-1, 13):
        try:
            await handle.update(add, number, update_id=f"u{number}")
        except (UpdateRejected, UpdateFailed):
            pass
    assert await handle.query(status) == "3 so far"
    try:
        await handle.update(add, 4, update_id="u4", timeout=0.5)
    except TimeoutError:
        await handle.signal(stop)
    return handle


@workflow
async def reads_before_it_ends() -> str:
    return "told" if await approve.wait() else "not told"


async def send_as_it_ends(env: Environment) -> Handle[Any]:
    """Two signals in its inbox, and the first ends it: it takes the second, too."""
    handle = await env.start(reads_before_it_ends, delay=10)
    await handle.signal(approve, False, message_id="one")
    await handle.signal(approve, True, message_id="two")
    return handle


@workflow
async def waits_for_its_handlers() -> list[int]:
    numbers: list[int] = []

    @add.handle
    async def append(number: int) -> int:
        numbers.append(await weigh(number))
        return len(numbers)

    await stop.wait()
    await handlers_done()
    return numbers


async def ask_before_it_ends(env: Environment) -> Handle[Any]:
    handle = await env.start(waits_for_its_handlers)
    asked = [asyncio.create_task(handle.update(add, number, update_id=f"u{number}")) for number in (1, 2)]
    await env.advance(0.5)
    await handle.signal(stop)
    await asyncio.gather(*asked)
    return handle


ALL: list[Workflow[..., Any]] = [signalled, updated, reads_before_it_ends, waits_for_its_handlers]
ACTIVITIES = [weigh]
SCENARIOS = {
    "signalled": signal_it,
    "updated": update_it,
    "reads_before_it_ends": send_as_it_ends,
    "waits_for_its_handlers": ask_before_it_ends,
}
