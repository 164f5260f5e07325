"""Runs leave memory when they wait for long, come back when they are due, and survive the worker's death."""

import asyncio
import gc
import logging
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from batuta import RunState, activity, now, random, uuid, workflow
from batuta.engine.worker.session import Session
from batuta.testing import Environment
from tests.engine.kit import world

executed: list[str] = []


@activity
async def act(name: str) -> str:
    executed.append(name)
    return name


@workflow
async def sleeps(*naps: float) -> list[str]:
    done = []
    for number, nap in enumerate(naps):
        done.append(await act(f"step {number}"))
        await asyncio.sleep(nap)
    return done


def session_of(env: Environment) -> Session:
    assert env.worker.session is not None
    return env.worker.session


async def test_a_long_sleep_takes_the_run_out_of_memory() -> None:
    async with world(sleeps, act) as env:
        handle = await env.start(sleeps, 31)
        await env.settle()
        assert session_of(env).runs == {}
        found = await handle.describe()
        assert (found.state, found.worker) == (RunState.WAITING, None)
        assert found.wake_at is not None
        assert abs(found.wake_at - env.now - timedelta(seconds=31)) < timedelta(milliseconds=5)


async def test_a_short_sleep_stays_in_memory() -> None:
    async with world(sleeps, act) as env:
        handle = await env.start(sleeps, 29)
        await env.settle()
        assert len(session_of(env).runs) == 1
        assert (await handle.describe()).state is RunState.RUNNING


async def test_a_run_that_comes_back_goes_on_where_it_was() -> None:
    executed.clear()
    async with world(sleeps, act) as env:
        assert await env.run(sleeps, 100, 5, 100) == ["step 0", "step 1", "step 2"]
        assert executed == ["step 0", "step 1", "step 2"]


async def test_a_run_in_memory_is_neither_read_nor_replayed_again(
    caplog: pytest.LogCaptureFixture,
) -> None:  # covers B-08
    caplog.set_level(logging.DEBUG, "batuta.engine")
    async with world(sleeps, act, always_replay=False) as env:
        handle = await env.start(sleeps, 5, 20, 29, 1)
        await handle.result()
        said = [line for line in caplog.messages if handle.id in line]
        assert sum("executed activity act" in line for line in said) == 4
        assert not [line for line in said if "replayed" in line]
        assert set(await env.store.epochs(handle.run_id)) == {1}


async def test_a_run_with_an_activity_in_flight_is_not_evicted() -> None:
    @activity
    async def works() -> str:
        await asyncio.sleep(3600)
        return "done"

    @workflow
    async def waits() -> str:
        return await works()

    async with world(waits, works) as env:
        await env.start(waits)
        await env.advance(600)
        assert len(session_of(env).runs) == 1


@workflow
async def touches_the_world_in_finally() -> str:
    try:
        await asyncio.sleep(3600)
    finally:
        try:
            now()
            executed.append("asked for the time")
        finally:
            await act("in finally")
    return "slept"


async def test_finally_blocks_that_run_at_eviction_can_do_nothing() -> None:
    executed.clear()
    async with world(touches_the_world_in_finally, act, always_replay=False) as env:
        handle = await env.start(touches_the_world_in_finally)
        await env.settle()
        assert session_of(env).runs == {}
        gc.collect()
        assert executed == []
        assert await handle.result() == "slept"
        assert executed == ["asked for the time", "in finally"]


async def test_nested_finally_blocks_that_wait_can_do_nothing_either() -> None:
    @workflow
    async def clings() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            try:
                await asyncio.Event().wait()
            finally:
                try:
                    await asyncio.sleep(0)
                finally:
                    await act("from the grave")

    executed.clear()
    async with world(clings, act) as env:
        handle = await env.start(clings)
        await env.settle()
        await handle.terminate()
        await env.settle()
        gc.collect()
        assert executed == []


async def counts_slowly() -> AsyncIterator[int]:
    try:
        for number in range(3):
            await asyncio.sleep(3600)
            yield number
    finally:
        closed.append("slowly")
        await act("closed")


async def doubles() -> AsyncIterator[int]:
    try:
        async for number in counts_slowly():
            yield 2 * number
    finally:
        closed.append("doubles")


closed: list[str] = []


async def test_generators_are_closed_from_the_inside_out_at_eviction() -> None:
    @workflow
    async def adds() -> int:
        return sum([number async for number in doubles()])

    closed.clear()
    executed.clear()
    async with world(adds, act, always_replay=False) as env:
        handle = await env.start(adds)
        await env.settle()
        assert session_of(env).runs == {}
        assert closed == ["slowly", "doubles"]
        assert executed == []
        gc.collect()  # nothing was left for it: what it closes is reported, and fails the test
        assert closed == ["slowly", "doubles"]
        assert await handle.result() == 6
        assert executed == ["closed"]


async def test_tasks_made_while_being_torn_down_are_closed_too() -> None:
    @workflow
    async def fans_out_in_finally() -> None:
        async def inner(name: str) -> None:
            executed.append(name)

        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.gather(inner("a"), inner("b"), act("c"))

    executed.clear()
    async with world(fans_out_in_finally, act) as env:
        handle = await env.start(fans_out_in_finally)
        await env.settle()
        await handle.terminate()
        await env.settle()
        gc.collect()
        assert executed == []


async def test_a_run_woken_early_still_wakes_up_for_its_next_timer() -> None:
    @workflow
    async def naps_again() -> str:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            await asyncio.sleep(2000)
        return "slept"

    async with world(naps_again) as env:
        handle = await env.start(naps_again)
        await env.advance(500)
        await handle.cancel()
        assert await handle.result() == "slept"


@pytest.mark.parametrize("ask", [now, random, uuid])
async def test_every_question_is_refused_in_a_run_that_is_gone(ask: object) -> None:
    answered: list[object] = []

    @workflow
    async def asks() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            answered.append(ask())  # type: ignore[operator]  # one of the above

    async with world(asks) as env:
        handle = await env.start(asks)
        await env.settle()
        await handle.terminate()
        await env.settle()
        gc.collect()
        assert answered == []


async def test_a_coroutine_that_refuses_to_be_closed_does_not_harm_the_worker() -> None:
    @workflow
    async def clings() -> None:
        while True:
            try:
                await asyncio.sleep(3600)
            except BaseException:  # noqa: BLE001 - as bad code does
                await asyncio.sleep(1)

    async with world(clings, sleeps, act) as env:
        await env.start(clings)
        assert await env.run(sleeps, 100) == ["step 0"]


async def test_a_crash_does_not_execute_finished_activities_again() -> None:  # covers B-03
    executed.clear()
    async with world(sleeps, act) as env:
        handle = await env.start(sleeps, 10, 10, 10)
        await env.advance(15)
        await env.crash()
        assert await handle.result() == ["step 0", "step 1", "step 2"]
        assert executed == ["step 0", "step 1", "step 2"]


async def test_a_durable_sleep_keeps_its_first_deadline_over_crashes() -> None:  # covers B-06
    async with world(sleeps, act) as env:
        before = env.now
        handle = await env.start(sleeps, 1000)
        for _ in range(5):
            await env.advance(100)
            await env.crash()
        await handle.result()
        assert timedelta(seconds=1000) <= env.now - before < timedelta(seconds=1001)


async def test_a_timer_that_was_due_while_no_worker_was_there_fires_at_once() -> None:
    async with world(sleeps, act) as env:
        handle = await env.start(sleeps, 1000)
        await env.settle()
        await env.worker.stop()
        await env.advance(5000)
        before = env.now
        await env.deploy()
        assert await handle.result() == ["step 0"]
        assert env.now - before < timedelta(seconds=1)


async def test_an_activity_in_flight_when_the_worker_dies_is_executed_again() -> None:
    begun: list[int] = []

    @activity
    async def works() -> int:
        begun.append(len(begun))
        await asyncio.sleep(10)
        return len(begun)

    @workflow
    async def waits() -> int:
        return await works()

    async with world(waits, works) as env:
        handle = await env.start(waits)
        await env.advance(5)
        await env.crash()
        assert await handle.result() == 2


async def test_graceful_stop_hands_idle_runs_back_and_waits_for_activities() -> None:
    @activity
    async def works() -> str:
        await asyncio.sleep(10)
        return "finished"

    @workflow
    async def waits() -> str:
        return await works()

    executed.clear()
    async with world(waits, works, sleeps, act) as env:
        idle = await env.start(sleeps, 20)
        busy = await env.start(waits)
        await env.settle()
        await env.worker.stop()
        assert (await idle.describe()).state is RunState.WAITING
        assert (await busy.describe()).entries == 2
        await env.deploy()
        assert await busy.result() == "finished"
        assert await idle.result() == ["step 0"]
        assert executed == ["step 0"]


async def test_runs_that_are_busy_after_the_grace_go_on_elsewhere() -> None:
    @activity
    async def works() -> str:
        await asyncio.sleep(100)
        return "finished"

    @workflow
    async def waits() -> str:
        return await works()

    async with world(waits, works) as env:
        handle = await env.start(waits)
        await env.settle()
        before = env.now
        await env.worker.stop(grace=5)
        assert timedelta(seconds=5) <= env.now - before < timedelta(seconds=6)
        await env.deploy()
        assert await handle.result() == "finished"


async def test_a_worker_takes_no_more_runs_than_it_may_hold() -> None:
    async with world(sleeps, act, max_runs=3) as env:
        handles = [await env.start(sleeps, 5) for _ in range(20)]
        await env.settle()
        assert len(session_of(env).runs) <= 3
        for handle in handles:
            assert await handle.result() == ["step 0"]


async def test_a_run_may_go_only_so_far_ahead_of_its_durable_entries() -> None:
    @workflow
    async def many() -> int:
        return len(await asyncio.gather(*(act(str(n)) for n in range(300))))

    async with world(many, act, undurable_entries=4) as env:
        assert await env.run(many) == 300


async def test_a_very_long_run_comes_back_in_slices() -> None:
    @workflow
    async def counts() -> int:
        for _ in range(1_200):
            await act("tick")
        await asyncio.sleep(3600)
        return 1

    async with world(counts, act, always_replay=False) as env:
        assert await env.run(counts) == 1
