"""Runs that others reached into (paused, tried again, reset, forked), that follow others in a chain, and calls of rarer
kinds. Journals of them are kept. Never change a workflow: add another, and record it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from batuta import (
    ActivityTimeout,
    Batuta,
    Handle,
    Interrupted,
    Middleware,
    Retry,
    RunFailed,
    Signal,
    Update,
    UpdateInterrupted,
    Workflow,
    activity,
    activity_info,
    continue_as_new,
    info,
    publish,
    run_child,
    send,
    start_child,
    transaction,
    uuid,
    workflow,
)
from batuta.authoring.middleware import Proceed, Sent
from batuta.engine.backend.middleware import backend_for
from batuta.testing import Environment

Scenario = Callable[[Environment], Awaitable[Handle[Any]]]

word = Signal("word", str)
change = Update("change", int)
broken: set[str] = set()


@activity(retry=Retry(attempts=1))
async def act(name: str, amount: int = 1) -> int:
    await asyncio.sleep(1)
    if name in broken:
        raise ConnectionError(f"{name} is down")
    return amount


@activity(once=True)
async def pay(amount: int) -> int:
    await asyncio.sleep(60)
    return amount


@activity(transactional=True, retry=Retry(attempts=2, first=1, jitter=0))
async def book(number: int) -> int:
    if number == 2 and activity_info().attempt == 1:
        raise LookupError("not yet")
    transaction().signal("its child", word, f"booked {number}")
    return number + 1


@workflow
async def helper(number: int) -> int:
    await asyncio.sleep(number)
    return number


@workflow
async def listener(count: int) -> list[str]:
    return [await word.wait() for _ in range(count)]


@workflow
async def ordered(price: int) -> list[Any]:
    """What a run is told about itself, and what is named after it, before and after a fork."""
    said: list[Any] = [await act("reserve", price), str(uuid())]
    publish("reserved", price)
    said.append(await run_child(helper, 3))
    said.append(await act("charge", price * 2))
    said.append(await run_child(helper, 4))
    try:
        await send("nobody", "word")
    except LookupError as error:
        said.append(type(error).__name__)
    return [*said, await act("ship", price * 3), info().id, str(uuid())]


@workflow
async def held() -> list[Any]:
    said: list[Any] = [await act("first")]
    async with asyncio.timeout(500):
        await asyncio.sleep(50)
    return [*said, await word.wait(), await act("second")]


@workflow
async def pays_once() -> str:
    try:
        return str(await pay(5))
    except Interrupted:
        return f"asked, after {await act('look', 2)}"


@workflow
async def books() -> list[Any]:
    child = await start_child(listener, 3, id="its child")
    booked = [await book(1), *await asyncio.gather(book(2), book(3), act("beside"))]
    return [*booked, sorted(await child.result())]


@workflow
async def hurries() -> list[str]:
    said = []
    for options in ({"total_timeout": 0.5}, {"timeout": 0.5}, {"start_timeout": 5, "queue": "nobody's"}):
        try:
            await act.with_options(**options)("slow")
        except ActivityTimeout as error:
            said.append(error.kind)
    return said


@workflow
async def with_headers() -> list[Any]:
    said: list[Any] = [info().headers.get("tenant"), await run_child(helper, 1)]
    return [*said, await word.wait()]


@workflow
async def goes_on_with_what_is_unread(left: int) -> list[Any]:
    @change.handle
    async def changed(number: int) -> int:
        return await act("change", number * 10)

    if left:
        await asyncio.sleep(10)
        continue_as_new(left - 1)
    return [await word.wait(), await word.wait(), await act("last")]


@workflow
async def fails_first() -> int:
    if info().attempt == 1:
        raise LookupError("the first try")
    return await act("again", info().attempt)


ALL: list[Workflow[..., Any]] = [
    helper,
    listener,
    ordered,
    held,
    pays_once,
    books,
    hurries,
    with_headers,
    goes_on_with_what_is_unread,
    fails_first,
]
ACTIVITIES = [act, pay, book]


# -- what happens to them


async def _failed(env: Environment, at: str) -> Handle[Any]:
    broken.add(at)
    handle = await env.start(ordered, 2, id="id")
    try:
        await handle.result()
    except RunFailed:
        pass
    finally:
        broken.clear()
    return handle


async def paused_and_resumed(env: Environment) -> Handle[Any]:
    """While an activity is at work, while it sleeps, and while it has a signal to read."""
    handle = await env.start(held)
    for wait in (0.5, 20, 40):
        await env.advance(wait)
        await handle.pause("hold on")
        await env.advance(100)
        await handle.resume()
    await handle.pause()
    await handle.signal(word, "while it was held")
    await env.advance(100)
    await handle.resume()
    return handle


async def tried_again_from_its_failure(env: Environment) -> Handle[Any]:
    handle = await _failed(env, "ship")
    await handle.retry("it is up again")
    await handle.result()
    return handle


async def reset_with_an_output(env: Environment) -> Handle[Any]:
    handle = await env.start(ordered, 2, id="id")
    await handle.result()
    await handle.reset(2, output={4: 99}, reason="charged by hand")
    return handle


async def forked_with_an_input(env: Environment) -> Handle[Any]:
    handle = await env.start(ordered, 2, id="id")
    await handle.result()
    return await handle.fork("a fork", at=0, input={1: ["reserve", 7]})


async def forked_twice(env: Environment) -> Handle[Any]:
    handle = await _failed(env, "charge")
    copy = await handle.fork("a fork", at=2)
    await copy.result()
    return await copy.fork("a fork of it", at=5)


async def interrupted(env: Environment) -> Handle[Any]:
    handle = await env.start(pays_once)
    await env.advance(10)
    await env.crash()
    return handle


async def transactional(env: Environment) -> Handle[Any]:
    return await env.start(books, id="id")


async def too_slow(env: Environment) -> Handle[Any]:
    return await env.start(hurries)


class Stamped(Middleware):
    async def send(self, message: Sent, proceed: Proceed) -> None:
        message.headers["clerk"] = "Ada"
        await proceed()


async def headers(env: Environment) -> Handle[Any]:
    handle = await env.start(with_headers, headers={"tenant": "acme"})
    other: Batuta = Batuta(backend_for(env.store, None, [Stamped()]), env.settle, env.settle)
    await (await other.get(handle.id)).signal(word, "hello")
    return handle


async def second_of_a_chain(env: Environment) -> Handle[Any]:
    """It begins with what the first had read and not used, and what it had not read."""
    handle = await env.start(goes_on_with_what_is_unread, 1, id="id")
    await handle.signal(word, "early")
    await env.advance(9.5)
    asked = asyncio.create_task(handle.update(change, 4))
    await env.advance(0.2)
    await handle.signal(word, "late")
    try:
        await asked
    except UpdateInterrupted:
        pass
    await handle.result()
    return await env.client.get("id")


async def second_try(env: Environment) -> Handle[Any]:
    await (await env.start(fails_first, id="id", retry=Retry(attempts=2, first=1, jitter=0))).result()
    return await env.client.get("id")


SCENARIOS: dict[str, Scenario] = {
    "paused_and_resumed": paused_and_resumed,
    "tried_again_from_its_failure": tried_again_from_its_failure,
    "reset_with_an_output": reset_with_an_output,
    "forked_with_an_input": forked_with_an_input,
    "forked_twice": forked_twice,
    "interrupted": interrupted,
    "transactional": transactional,
    "too_slow": too_slow,
    "headers": headers,
    "second_of_a_chain": second_of_a_chain,
    "second_try": second_try,
}
