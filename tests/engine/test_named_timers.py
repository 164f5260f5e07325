"""Timers with names, and awaitables in order of completion."""

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from batuta import (
    DuplicateTimer,
    InvalidInput,
    activity,
    as_completed,
    cancel_timer,
    now,
    wait_for_timer,
    workflow,
)
from tests.engine.kit import commands, world

pytestmark = pytest.mark.parametrize("always_replay", [False, True])


@activity
async def after(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


async def test_a_timer_fires_at_its_time(always_replay: bool) -> None:  # covers B-07
    @workflow
    async def waits() -> list[Any]:
        due = now() + timedelta(days=3)
        return [await wait_for_timer("expiry", due), now() == due]

    async with world(waits, always_replay=always_replay) as env:
        handle = await env.start(waits)
        assert await handle.result() == [True, True]
        assert "timer expiry" in await commands(handle)


async def test_a_timer_that_is_cancelled_says_so_and_one_that_is_not_there_too(always_replay: bool) -> None:
    @workflow
    async def changes_its_mind() -> list[Any]:
        waiting = asyncio.create_task(wait_for_timer("expiry", now() + timedelta(days=3)))
        await asyncio.sleep(60)
        first = cancel_timer("expiry")
        return [first, await waiting, cancel_timer("expiry"), cancel_timer("other")]

    async with world(changes_its_mind, always_replay=always_replay) as env:
        began = env.now
        assert await env.run(changes_its_mind) == [True, False, False, False]
        assert env.now - began < timedelta(minutes=2)


async def test_an_id_used_twice_is_an_error(always_replay: bool) -> None:
    @workflow
    async def twice() -> str:
        await wait_for_timer("expiry", now() - timedelta(days=1))
        try:
            await wait_for_timer("expiry", now() + timedelta(days=1))
        except DuplicateTimer as error:
            return error.timer_id
        return "set twice"

    async with world(twice, always_replay=always_replay) as env:
        assert await env.run(twice) == "expiry"


async def test_a_time_without_a_zone_and_what_is_no_time_are_errors(always_replay: bool) -> None:
    @workflow
    async def careless() -> list[str]:
        said: list[str] = []
        wrong: list[Any] = [datetime(2030, 1, 1), 100, None, "2030-01-01"]  # noqa: DTZ001 - that is what is wrong
        for time in wrong:
            try:
                await wait_for_timer("expiry", time)
            except InvalidInput as error:
                said.append(str(error))
        return said

    async with world(careless, always_replay=always_replay) as env:
        said = await env.run(careless)
        assert ["with a time zone" in each for each in said] == [True] * 4


async def test_results_come_in_order_of_completion(always_replay: bool) -> None:
    @workflow
    async def collects() -> list[Any]:
        seconds = [3.0, 1.0, 2.0]
        said: list[Any] = [await one for one in as_completed([after(each) for each in seconds])]
        tasks: list[asyncio.Future[float]] = [asyncio.create_task(after(each)) for each in seconds]
        said += [tasks.index(done) async for done in as_completed(tasks)]
        try:
            said += [await one for one in as_completed([after(1.0), after(50.0)], timeout=5)]
        except TimeoutError:
            said.append("timeout")
        return said

    async with world(collects, after, always_replay=always_replay) as env:
        assert await env.run(collects) == [1.0, 2.0, 3.0, 1, 2, 0, "timeout"]


async def test_as_completed_works_outside_a_workflow_and_with_nothing(always_replay: bool) -> None:
    assert [await one for one in as_completed([after(2.0), after(1.0)])] == [1.0, 2.0]
    assert [one async for one in as_completed(list[asyncio.Future[int]]())] == []
    (slow,) = as_completed([after(100.0)], timeout=1)
    with pytest.raises(TimeoutError):
        await slow
