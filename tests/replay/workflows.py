"""Workflows whose journals are kept in tests/journals. Never change one: add another, and record it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from batuta import (
    AlreadyStarted,
    DuplicateTimer,
    Retry,
    RunCancelled,
    RunClosed,
    RunFailed,
    UnknownRun,
    Workflow,
    activity,
    activity_info,
    as_completed,
    call,
    cancel_timer,
    continue_as_new,
    deprecate_patch,
    info,
    now,
    patched,
    random,
    run_child,
    safe_point,
    saga,
    send,
    side_effect,
    start_child,
    uuid,
    wait_for_timer,
    workflow,
)


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


@dataclass
class Line:
    sku: str
    price: Decimal
    size: Size = Size.SMALL


@dataclass
class Order:
    id: UUID
    lines: list[Line]
    placed: datetime


class OutOfStock(Exception):
    def __init__(self, sku: str) -> None:
        super().__init__(f"no {sku} left")
        self.sku = sku


@activity
async def echo(text: str) -> str:
    return text


@activity
async def after(seconds: float, text: str) -> str:
    await asyncio.sleep(seconds)
    return text


@activity
async def price(line: Line) -> Decimal:
    return line.price * 2


@activity
def in_thread(text: str) -> str:
    return text.upper()


@activity(retry=Retry(attempts=3, first=5, jitter=0))
async def flaky() -> int:
    attempt = activity_info().attempt
    if attempt < 3:
        raise ConnectionError(f"attempt {attempt}")
    return attempt


@activity(retry=Retry(attempts=1))
async def refuses(kind: str) -> None:
    if kind == "stock":
        raise OutOfStock("tea") from KeyError("shelf")
    raise LookupError(kind)


@workflow
async def order(given: Order) -> dict[str, Decimal]:
    prices = {line.sku: await price(line) for line in given.lines}
    await echo(await in_thread(str(given.id)))
    return prices


@workflow
async def fan_out(names: list[str]) -> list[str]:
    done = await asyncio.gather(*(after(10 - n, name) for n, name in enumerate(names)))
    return [*done, *await asyncio.gather(*(echo(name) for name in reversed(names)))]


@workflow
async def group() -> list[str]:
    said: list[str] = []
    async with asyncio.TaskGroup() as tasks:
        for name in "abc":
            tasks.create_task(echo(name))
    try:
        async with asyncio.TaskGroup() as tasks:
            for number in range(8):
                tasks.create_task(after(100 + number, str(number)))
            tasks.create_task(refuses("lost"))
    except* LookupError as errors:
        said += [str(error) for error in errors.exceptions]
    return [*said, await echo("went on")]


@workflow
async def races() -> list[str]:
    tasks = {asyncio.create_task(after(n, str(n))) for n in (50, 5, 40, 30, 20)}
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.wait(pending)
    return [await task for task in done] + [await echo(str(len(pending)))]


@workflow
async def limits() -> list[str]:
    said: list[str] = []
    try:
        async with asyncio.timeout(100):
            try:
                async with asyncio.timeout(5):
                    await after(1000, "late")
            except TimeoutError:
                said.append(await echo("inner"))
            await asyncio.sleep(1000)
    except TimeoutError:
        said.append("outer")
    return said


@workflow
async def waits_for() -> list[str]:
    said = [await asyncio.wait_for(after(1, "in time"), 10)]
    try:
        await asyncio.wait_for(after(100, "late"), 10)
    except TimeoutError:
        said.append(await echo("timeout"))
    return said


@workflow
async def waits_for_several() -> list[str]:
    # The order of these commands is not the same on all Pythons.
    return list(await asyncio.gather(asyncio.wait_for(echo("a"), 10), echo("b"), asyncio.wait_for(echo("c"), 10)))


@workflow
async def naps() -> list[int]:
    begun = now()
    passed = []
    for seconds in (0, 0.001, 1, 29, 31, 86_400, 30 * 86_400):
        await asyncio.sleep(seconds)
        passed.append(round((now() - begun).total_seconds()))
    return passed


@workflow
async def pipeline() -> list[str]:
    queue: asyncio.Queue[str] = asyncio.Queue(2)
    lock, places, opened, seen = asyncio.Lock(), asyncio.Semaphore(2), asyncio.Event(), list[str]()

    async def consume(name: str) -> None:
        await opened.wait()
        while True:
            item = await queue.get()
            async with places:
                got = await after(1, f"{name}{item}")
            async with lock:
                seen.append(await echo(got))
            queue.task_done()

    consumers = [asyncio.create_task(consume(name)) for name in "xyz"]
    await asyncio.sleep(2)
    opened.set()
    for number in range(6):
        await queue.put(str(number))
    await queue.join()
    for consumer in consumers:
        consumer.cancel()
    return seen


def fails() -> str:
    raise LookupError("no flag")


@workflow
async def chance() -> list[str]:
    said = [str(uuid()), str(random().random()), await side_effect(lambda: "made once")]
    try:
        await side_effect(fails)
    except LookupError as error:
        said.append(str(error))
    await echo("a turn")
    said += [str(random().choice("abcdefgh")), str(info().entries)]
    order = list(range(20))
    random().shuffle(order)
    return [*said, await echo(str(order))]


@workflow
async def cleans_up() -> str:
    try:
        await asyncio.gather(after(500, "a"), asyncio.sleep(1000))
    except asyncio.CancelledError as error:
        await asyncio.sleep(60)
        return await echo(f"cleaned up: {error}")
    return "ran through"


@workflow
async def sleeps() -> str:
    try:
        await asyncio.sleep(86_400)
    finally:
        await echo("tidied")
    return "slept"


@workflow
async def gives_up() -> None:
    try:
        await refuses("stock")
    except OutOfStock as error:
        await echo(error.sku)
        raise ValueError("cannot be served") from error


@workflow
async def catches() -> list[str]:
    said = []
    for kind in ("stock", "other"):
        try:
            await refuses(kind)
        except (OutOfStock, LookupError) as error:
            said.append(f"{type(error).__name__}: {error} / {error.__cause__!r}")
    return [*said, str(await flaky()), str(await call("echo", "by name"))]


async def countdown(start: int) -> AsyncIterator[str]:
    try:
        for number in range(start, 0, -1):
            await asyncio.sleep(1)
            yield await echo(str(number))
    finally:
        await echo("closed")


@workflow
async def generators() -> list[str]:
    said = [number async for number in countdown(3)]
    left = countdown(9)
    async for number in left:
        said.append(number)
        break
    async for number in countdown(5):
        if number == "4":
            break
    await left.aclose()  # type: ignore[attr-defined]  # an iterator by its annotation
    return said


@workflow
async def child(number: int) -> int:
    if number < 0:
        raise OutOfStock(f"number {number}")
    await asyncio.sleep(number)
    return number * 2


@workflow
async def parent() -> list[Any]:
    said: list[Any] = list(await asyncio.gather(*(run_child(child, number) for number in (3, 1, 2))))
    named = await start_child(child, 5, id="a child", policy="terminate")
    for refused in (start_child, run_child):
        try:
            await refused(child, 1, id="a child")
        except AlreadyStarted as error:
            said.append(error.id)
    try:
        async with asyncio.timeout(2):
            await run_child(child, 60)
    except TimeoutError:
        said.append("too slow")
    try:
        await run_child("child", -1, result=int)
    except RunFailed as error:
        said += [str(error), repr(error.__cause__)]
    said.append(await named.result())
    return said


@workflow
async def parent_that_leaves() -> str:
    kept = await start_child(child, 50, policy="abandon")
    left = await start_child(child, 60)
    await left.cancel("not needed")
    try:
        await left.result()
    except RunCancelled:
        pass
    return kept.id


@workflow
async def sends() -> list[str]:
    said = []
    other = await start_child(child, 5, id="other")
    await send("other", "news", {"n": 1})
    await other.signal("news", 2)
    await other.result()
    for id in ("other", "nobody"):
        try:
            await send(id, "news")
        except (RunClosed, UnknownRun) as error:
            said.append(type(error).__name__)
    return said


@workflow
async def goes_on(left: int, said: list[str]) -> list[str]:
    said = [*said, await echo(f"{left} left")]
    if left:
        continue_as_new(left - 1, said)
    return said


@workflow(continue_after=4)
async def goes_on_by_itself(number: int) -> int:
    while number < 9:
        number += len(await echo("x"))
        await safe_point(number)
    return number


@workflow(continue_after=3)
async def tidies_up_and_goes_on(number: int) -> int:
    number += len(await echo("x"))
    await safe_point(number)
    if number < 2:
        number += len(await echo("y"))
    try:
        await safe_point(number)
    finally:
        await echo("tidied up")
    return number


@workflow
async def passes_a_safe_point(left: int) -> str:
    said = await echo(f"{left} left")
    await safe_point(100)
    if left:
        continue_as_new(left - 1)
    return said


@activity
def undo_echo(text: str) -> str:
    return f"not {text}"


@activity(compensate=undo_echo)
def echo_once(text: str) -> str:
    return text


@workflow
async def undoes(fails: bool) -> str:
    async with saga() as undo:
        first = await echo_once("first")
        async with saga() as inner:
            inner(undo_echo, await echo("inner"))
        undo(undo_echo.with_options(retry=Retry(attempts=2)), text=first)
        if fails:
            raise OutOfStock("nothing left")
    return first


@workflow
async def tries_again() -> int:
    if info().attempt < 3:
        raise OutOfStock(await echo(f"attempt {info().attempt}"))
    return info().attempt


@workflow
async def changed() -> list[str]:
    said = [await (echo("new") if patched("a change") else echo("old"))]
    await asyncio.sleep(10)
    deprecate_patch("an old change")
    if patched("a change") and patched("another"):
        said.append(await in_thread("both"))
    return said


@workflow(version="2")
async def named_timers() -> list[Any]:
    waiting = asyncio.create_task(wait_for_timer("long", now() + timedelta(days=1)))
    fired = await wait_for_timer("short", now() + timedelta(seconds=5))
    cancelled = cancel_timer("long")
    try:
        await wait_for_timer("short", now())
    except DuplicateTimer as error:
        return [fired, cancelled, await waiting, error.timer_id, info().version]
    return []


@workflow
async def in_order_of_completion() -> list[str]:
    said = [await one for one in as_completed([after(3, "c"), after(1, "a"), after(2, "b")])]
    try:
        said += [await one for one in as_completed([after(1, "d"), after(9, "e")], timeout=4)]
    except TimeoutError:
        said.append("timeout")
    return said


ALL: list[Workflow[..., Any]] = [
    order,
    fan_out,
    group,
    races,
    limits,
    waits_for,
    waits_for_several,
    naps,
    pipeline,
    chance,
    cleans_up,
    sleeps,
    gives_up,
    catches,
    generators,
    child,
    parent,
    parent_that_leaves,
    sends,
    goes_on,
    goes_on_by_itself,
    tidies_up_and_goes_on,
    passes_a_safe_point,
    undoes,
    tries_again,
    changed,
    named_timers,
    in_order_of_completion,
]
ACTIVITIES = [echo, echo_once, undo_echo, after, price, in_thread, flaky, refuses]

AN_ORDER = Order(
    UUID(int=7),
    [Line("tea", Decimal("3.50")), Line("cup", Decimal("0.10"), Size.LARGE)],
    datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC),
)
