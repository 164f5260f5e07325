"""`wait_until`: a condition over the state of a run, the same in every replay."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest

from batuta import (
    InvalidInput,
    RunCancelled,
    RunState,
    Signal,
    Update,
    activity,
    continue_as_new,
    now,
    publish,
    wait_until,
    workflow,
)
from batuta.errors import WorkerError
from tests.engine.arena import PATIENCE, Arena, until_state
from tests.engine.kit import commands, parked, replay_all, world

item = Signal("item", int)
add = Update("add", int)
stop = Signal("stop")


@activity
async def double(number: int) -> int:
    await asyncio.sleep(1)
    return 2 * number


@workflow
async def basket(size: int) -> list[int]:
    items: list[int] = []
    item.handle(items.append)
    await wait_until(lambda: len(items) >= size)
    return items


async def test_code_goes_on_when_a_handler_has_made_the_condition_true() -> None:
    async with world(basket) as env:
        handle = await env.start(basket, 3)
        for number in (1, 2):
            await handle.signal(item, number)
        await env.settle()
        assert (await handle.describe()).state is not RunState.COMPLETED
        await handle.signal(item, 3)
        assert await handle.result() == [1, 2, 3]
        assert await commands(handle) == ["complete"]


async def test_a_condition_that_holds_is_not_waited_for() -> None:
    @workflow
    async def at_once() -> str:
        await wait_until(lambda: True, timeout=60)
        return "went on"

    async with world(at_once) as env:
        handle = await env.start(at_once)
        assert await handle.result() == "went on"
        assert await commands(handle) == ["complete"]


async def test_activities_updates_and_tasks_change_what_it_looks_at() -> None:
    @workflow
    async def sums() -> int:
        found: list[int] = []

        async def one(number: int) -> None:
            found.append(await double(number))

        @add.handle
        def append(number: int) -> int:
            found.append(number)
            return len(found)

        tasks = [asyncio.create_task(one(number)) for number in (1, 2)]
        await wait_until(lambda: len(found) == 3)
        await asyncio.gather(*tasks)
        return sum(found)

    async with world(sums, double) as env:
        handle = await env.start(sums)
        assert await handle.update(add, 10) == 1
        assert await handle.result() == 16


async def test_the_time_may_be_over_first() -> None:
    @workflow
    async def patient() -> list[Any]:
        items: list[int] = []
        item.handle(items.append)
        begun = now()
        try:
            await wait_until(lambda: bool(items), timeout=60)
        except TimeoutError:
            pass
        waited = (now() - begun).total_seconds()
        await wait_until(lambda: bool(items), timeout=3600)
        return [waited, *items]

    async with world(patient) as env:
        handle = await env.start(patient)
        await env.advance(100)
        await handle.signal(item, 1)
        assert await handle.result() == [60.0, 1]


async def test_the_condition_holds_for_each_that_goes_on() -> None:
    """Two wait for the same thing, and one takes it away: the other one waits on."""

    @workflow
    async def consumers() -> list[str]:
        items: list[int] = []
        item.handle(items.append)
        took: list[str] = []

        async def consume(name: str) -> None:
            while len(took) < 4:
                await wait_until(lambda: bool(items) or len(took) == 4)
                if items:
                    took.append(f"{name}{items.pop()}")

        async with asyncio.TaskGroup() as group:
            group.create_task(consume("a"))
            group.create_task(consume("b"))
        return took

    async with world(consumers) as env:
        handle = await env.start(consumers)
        for number in range(4):
            await handle.signal(item, number)
            await env.settle()
        assert await handle.result() == ["a0", "b1", "a2", "b3"]


async def test_it_can_be_cancelled_and_given_up() -> None:
    @workflow
    async def given_up() -> str:
        waiting = asyncio.create_task(wait_until(lambda: False))
        await asyncio.sleep(1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        stop.handle(lambda: None)
        await wait_until(lambda: False)
        return "never"

    async with world(given_up) as env:
        handle = await env.start(given_up)
        await env.advance(5)
        await handle.cancel()
        with pytest.raises(RunCancelled):
            await handle.result()


async def test_what_the_condition_raises_is_raised_where_it_is_waited_for() -> None:
    @workflow
    async def fragile() -> list[str]:
        state: dict[str, int] = {"left": 1}
        item.handle(lambda _: state.pop("left", None))
        said = []
        for condition in (lambda: 1 / 0, lambda: state["left"] == 0):
            try:
                await wait_until(condition)
            except (ZeroDivisionError, KeyError) as error:
                said.append(type(error).__name__)
        return said

    async with world(fragile) as env:
        handle = await env.start(fragile)
        await handle.signal(item, 1)
        assert await handle.result() == ["ZeroDivisionError", "KeyError"]


async def test_a_condition_sees_the_contextvars_of_its_task() -> None:
    limit: ContextVar[int] = ContextVar("limit", default=0)

    @workflow
    async def limited() -> int:
        items: list[int] = []
        item.handle(items.append)
        limit.set(2)
        await wait_until(lambda: len(items) >= limit.get() > 0)
        return len(items)

    async with world(limited) as env:
        handle = await env.start(limited)
        for number in range(2):
            await handle.signal(item, number)
        assert await handle.result() == 2


@pytest.mark.parametrize("does", ["publishes", "sleeps", "wakes", "calls", "begins"])
async def test_a_condition_that_does_more_than_look_parks_the_run(does: str) -> None:
    @workflow
    async def acts() -> str:
        event = asyncio.Event()
        came: list[int] = []
        item.handle(came.append)
        waiter = asyncio.create_task(event.wait())

        def condition() -> Any:
            if not came:
                return False
            match does:
                case "publishes":
                    publish("x", 1)
                case "sleeps":
                    return asyncio.sleep(1)
                case "wakes":
                    event.set()
                case "calls":
                    return double(1)
                case "begins":
                    asyncio.get_running_loop().call_soon(came.clear)
            return True

        try:
            await wait_until(condition)
        except Exception:  # noqa: BLE001 - swallowing it does not help
            await stop.wait()
        waiter.cancel()
        return "went on"

    async with world(acts, double) as env:
        handle = await env.start(acts)
        await env.settle()
        await handle.signal(item, 1)
        assert "the condition of wait_until() may only look" in await parked(env, handle)


async def test_a_loop_around_a_condition_that_holds_is_parked() -> None:
    @workflow
    async def spins() -> None:
        while True:
            await wait_until(lambda: True)

    async with world(spins) as env:
        assert "called wait_until() 100,000 times in one turn" in await parked(env, await env.start(spins))


async def test_a_condition_that_nothing_can_change_is_parked() -> None:
    @workflow
    async def stands() -> None:
        await wait_until(lambda: False)

    async with world(stands) as env:
        assert "no activity, timer or message can wake it" in await parked(env, await env.start(stands))


async def test_the_end_of_the_workflow_ends_it() -> None:
    @workflow
    async def leaves() -> str:
        items: list[int] = []
        item.handle(items.append)

        async def beside() -> None:
            await wait_until(lambda: len(items) > 1)

        task = asyncio.create_task(beside())
        await wait_until(lambda: bool(items))
        assert not task.done()
        return "left"

    async with world(leaves) as env:
        handle = await env.start(leaves)
        await handle.signal(item, 1)
        assert await handle.result() == "left"


async def test_bad_input_is_refused() -> None:
    @workflow
    async def careless() -> list[str]:
        said = []
        for condition, timeout in ((True, None), (lambda: True, -1), (lambda: True, "soon")):
            with pytest.raises(InvalidInput) as caught:
                await wait_until(condition, timeout)  # type: ignore[arg-type]  # that is the point
            said.append(str(caught.value))
        return said

    async with world(careless) as env:
        said = await env.run(careless)
        assert "takes a function" in said[0]
        assert "timeout" in said[1] + said[2]
    with pytest.raises(WorkerError, match="outside a workflow"):
        await wait_until(lambda: True)


async def test_it_survives_crashes_evictions_and_continuing_as_new() -> None:
    @workflow
    async def collects(rounds: int, had: list[int]) -> list[int]:
        items: list[int] = list(had)
        item.handle(items.append)
        await wait_until(lambda: len(items) >= rounds * 2)
        await double(1)
        if rounds < 3:
            continue_as_new(rounds + 1, items)
        return items

    async with world(collects, double, keep_in_memory=5.0) as env:
        handle = await env.start(collects, 1, [])
        for number in range(6):
            await handle.signal(item, number)
            await env.advance(100)
            await env.crash()
        assert await handle.result() == list(range(6))


async def test_on_every_store(arena: Arena) -> None:
    client = await arena.client()
    first = await arena.worker(client, basket)
    handle = await client.start(basket, 3)
    await handle.signal(item, 1)
    await until_state(handle, RunState.WAITING)
    await arena.kill(client, first)
    await arena.worker(client, basket)
    for number in (2, 3):
        await handle.signal(item, number)
    assert await handle.result(PATIENCE) == [1, 2, 3]
    await replay_all(arena.store(client), {"basket": basket})
