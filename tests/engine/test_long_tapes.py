"""Many inputs at once, and journals that are replayed in slices: in order, complete, and no turn inside a task."""

import asyncio
from typing import Any

import pytest

from batuta import RunState, activity, connect, workflow
from batuta.engine.run.owned_run import OwnedRun
from batuta.testing import Environment
from tests.engine.kit import world

LONG = 1_200
"""Activities whose entries take several slices to replay."""


@activity
async def count(number: int) -> int:
    return number


@activity
async def waits() -> str:
    await asyncio.sleep(3600)
    return "waited"


@workflow
async def goes_on_for_long() -> str:
    for number in range(LONG):
        await count(number)
    try:
        return await waits()
    except asyncio.CancelledError:
        return f"compensated {await count(7)}"


@workflow
async def sleeps_at_once(sleepers: int) -> int:
    await asyncio.gather(*(asyncio.sleep(0.05) for _ in range(sleepers)))
    return sleepers


# -- many timers


@pytest.mark.parametrize("sleepers", [64, 65, 200, 300])
async def test_however_many_timers_are_due_at_once_all_fire(sleepers: int) -> None:
    async with world(sleeps_at_once) as env:
        assert await env.run(sleeps_at_once, sleepers) == sleepers


async def test_timers_that_were_due_while_no_worker_was_up_all_fire() -> None:
    async with world(sleeps_at_once) as env:
        await env.worker.stop()
        handle = await env.start(sleeps_at_once, 200)
        await env.deploy()
        await env.settle()
        await env.worker.stop()
        await env.advance(60)
        await env.deploy()
        assert await handle.result() == 200


async def test_however_many_timers_are_due_at_once_all_fire_on_a_database(sqlite_url: str, real_time: None) -> None:
    async with connect(sqlite_url) as client, client.worker(workflows=[sleeps_at_once]):
        handle = await client.start(sleeps_at_once, 200)
        assert await handle.result(20) == 200


async def test_turns_that_were_held_up_run_outside_of_every_task_too() -> None:
    host, tasks = asyncio.get_running_loop(), set[Any]()

    async def look() -> None:
        await asyncio.sleep(1)
        tasks.add(asyncio.current_task(host))

    @workflow
    async def looks() -> None:
        await asyncio.gather(*(look() for _ in range(200)))

    async with world(looks) as env:
        await env.run(looks)
        assert tasks == {None}


async def test_inputs_that_were_held_up_are_not_overtaken() -> None:
    order: list[int] = []

    @workflow
    async def notes() -> list[int]:
        async def note(number: int) -> None:
            order.append(await count(number))

        await asyncio.gather(*(note(number) for number in range(100)))
        return list(order)

    async with world(notes, count, undurable_entries=2, always_replay=False) as env:
        assert await env.run(notes) == list(range(100))
        order.clear()


# -- slices


async def in_the_middle(env: Environment) -> OwnedRun:
    """Another worker takes the run, and stands somewhere in its journal."""
    await env.crash()
    session = env.worker.session
    assert session is not None
    while not session.runs:
        await asyncio.sleep(0)
    (run,) = session.runs.values()
    assert 0 < run.machine.entries < run.head
    return run


async def test_a_message_that_comes_in_the_middle_of_a_replay_is_delivered_after_it() -> None:
    async with world(goes_on_for_long, count, waits, always_replay=False) as env:
        handle = await env.start(goes_on_for_long)
        await env.settle()
        await in_the_middle(env)
        await handle.cancel("please")
        assert await handle.result() == "compensated 7"
        tail = (await handle.journal())[LONG + 1 :]
        assert [str(line.kind) for line in tail] == ["cancel_requested", "activity_done"]


async def test_a_message_that_was_there_before_the_replay_is_delivered_after_it_once() -> None:
    async with world(goes_on_for_long, count, waits, always_replay=False) as env:
        handle = await env.start(goes_on_for_long)
        await env.settle()
        await env.worker.stop(0.001)
        await handle.cancel("please")
        await env.deploy()
        assert await handle.result() == "compensated 7"
        tail = (await handle.journal())[LONG + 1 :]
        assert [str(line.kind) for line in tail] == ["cancel_requested", "activity_done"]


async def test_a_worker_that_stops_in_the_middle_of_a_replay_hands_the_run_back_as_due() -> None:
    @workflow
    async def times_out_late() -> str:
        async with asyncio.timeout(30 * 86_400):
            for number in range(LONG):
                await count(number)
        return await waits()

    async with world(times_out_late, count, waits, always_replay=False) as env:
        handle = await env.start(times_out_late)
        await env.settle()
        await in_the_middle(env)
        await env.worker.stop()
        found = await handle.describe()
        assert found.state is RunState.WAITING
        assert found.wake_at is not None
        assert found.wake_at <= env.now
        await env.deploy()
        assert await handle.result() == "waited"


async def test_a_run_that_is_terminated_in_the_middle_of_a_replay_is_gone() -> None:
    async with world(goes_on_for_long, count, waits, always_replay=False) as env:
        handle = await env.start(goes_on_for_long)
        await env.settle()
        await in_the_middle(env)
        await handle.terminate("enough")
        await env.settle()
        assert env.worker.session is not None
        assert not env.worker.session.runs
        assert (await handle.describe()).state is RunState.TERMINATED
