"""How runs end: by themselves, by an error, by cancellation, from outside, and by running out of time."""

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

from batuta import (
    RunCancelled,
    RunClosed,
    RunFailed,
    RunState,
    RunTerminated,
    RunTimedOut,
    activity,
    continue_as_new,
    logger,
    workflow,
)
from batuta.journal.entries import EntryKind
from batuta.testing import Stuck
from tests.engine.kit import commands, world

ended: list[str] = []
"""What activities of this module leave behind when they end."""


@activity
async def echo(text: str) -> str:
    return text


@activity
async def works(seconds: float) -> str:
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        ended.append("cancelled")
        raise
    ended.append("done")
    return "done"


# -- by itself


async def test_an_exception_fails_the_run_with_that_error_as_the_cause() -> None:
    @workflow
    async def fails() -> None:
        await echo("x")
        raise ValueError("out of stock")

    async with world(fails, echo) as env:
        with pytest.raises(RunFailed, match="ValueError: out of stock") as caught:
            await env.run(fails, id="a")
        assert isinstance(caught.value.__cause__, ValueError)
        assert (caught.value.id, caught.value.state) == ("a", "failed")


@pytest.mark.parametrize("error", [SystemExit, GeneratorExit], ids=lambda e: e.__name__)
async def test_an_exit_in_a_workflow_ends_the_run_and_not_the_worker(error: type[BaseException]) -> None:
    @workflow
    async def leaves() -> None:
        await echo("x")
        raise error("bye")

    async with world(leaves, echo) as env:
        with pytest.raises(RunFailed, match=error.__name__):
            await env.run(leaves)


async def test_activities_in_flight_are_cancelled_when_the_run_ends() -> None:
    @workflow
    async def leaves_behind() -> str:
        task = asyncio.create_task(works(3600))
        await asyncio.sleep(5)
        return f"still {'pending' if not task.done() else 'done'}"

    ended.clear()
    async with world(leaves_behind, works) as env:
        assert await env.run(leaves_behind) == "still pending"
        await env.settle()
        assert ended == ["cancelled"]


async def test_other_tasks_are_torn_down_with_their_finally_blocks_when_the_run_ends() -> None:
    seen: list[str] = []

    @workflow
    async def leaves_behind() -> str:
        async def linger() -> None:
            try:
                await asyncio.sleep(3600)
            finally:
                seen.append("torn down")

        task = asyncio.create_task(linger())
        await asyncio.sleep(0)
        return task.get_name() and "ended"

    async with world(leaves_behind) as env:
        before = env.now
        assert await env.run(leaves_behind) == "ended"
        await env.settle()
        assert seen[:1] == ["torn down"]
        assert env.now - before < timedelta(seconds=1)


async def test_an_error_in_a_task_that_is_not_awaited_does_not_fail_the_run(caplog: pytest.LogCaptureFixture) -> None:
    @workflow
    async def goes_on() -> str:
        async def breaks() -> None:
            raise ValueError("unseen")

        task = asyncio.create_task(breaks())
        await asyncio.sleep(1)
        return f"{task.exception()!r}"

    async with world(goes_on) as env:
        assert await env.run(goes_on) == "ValueError('unseen')"


async def test_a_result_that_does_not_fit_its_annotation_fails_the_run() -> None:
    @workflow
    async def lies() -> int:
        return "seven"  # type: ignore[return-value]  # this is the point

    async with world(lies) as env:
        with pytest.raises(RunFailed, match="does not fit its annotation"):
            await env.run(lies)


# -- cancelled


@workflow
async def sleeps() -> str:
    await asyncio.sleep(86_400)
    return "slept"


async def test_a_cancelled_run_ends_as_cancelled() -> None:
    async with world(sleeps) as env:
        handle = await env.start(sleeps)
        await env.settle()
        await handle.cancel("changed my mind")
        with pytest.raises(RunCancelled):
            await handle.result()
        assert (await handle.describe()).state is RunState.CANCELLED
        assert str((await handle.journal())[-1].kind) == "cancel_requested"
        assert (await handle.journal())[-1].body.reason == "changed my mind"


@workflow
async def cleans_up() -> str:
    try:
        await asyncio.sleep(86_400)
    except asyncio.CancelledError:
        await asyncio.sleep(60)
        return await echo("cleaned up")
    return "slept"


async def test_cancellation_can_be_caught_to_clean_up_durably() -> None:
    async with world(cleans_up, echo) as env:
        handle = await env.start(cleans_up)
        await env.settle()
        await handle.cancel()
        await env.settle()
        await env.crash()
        assert await handle.result() == "cleaned up"
        assert (await handle.describe()).state is RunState.COMPLETED


async def test_cleaning_up_in_finally_ends_as_cancelled_all_the_same() -> None:
    @workflow
    async def tidies() -> None:
        try:
            await asyncio.sleep(86_400)
        finally:
            await echo("tidied")

    async with world(tidies, echo) as env:
        handle = await env.start(tidies)
        await env.settle()
        await handle.cancel()
        with pytest.raises(RunCancelled):
            await handle.result()
        assert "activity echo" in await commands(handle)


async def test_a_cancel_that_comes_before_the_run_began_is_not_lost() -> None:
    async with world(echo) as env:
        handle = await env.client.start("cleans_up", id="early")
        await handle.cancel("too early")
        await env.deploy(workflows=[cleans_up])
        with pytest.raises(RunCancelled, match="too early"):
            await handle.result()


async def test_cancelling_the_await_of_an_activity_asks_it_to_end_and_raises_at_once() -> None:
    @workflow
    async def gives_up() -> str:
        task = asyncio.create_task(works(3600))
        await asyncio.sleep(5)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return "gave up"
        return "waited"

    ended.clear()
    async with world(gives_up, works) as env:
        before = env.now
        handle = await env.start(gives_up)
        assert await handle.result() == "gave up"
        assert env.now - before < timedelta(seconds=6)
        await env.settle()
        assert ended == ["cancelled"]


async def test_the_result_of_a_cancelled_activity_is_dropped() -> None:
    @activity
    async def stubborn() -> str:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await asyncio.sleep(10)
        return "a result that nobody wants"

    @workflow
    async def gives_up() -> str:
        try:
            async with asyncio.timeout(5):
                await stubborn()
        except TimeoutError:
            await asyncio.sleep(60)
        return await echo("went on")

    async with world(gives_up, stubborn, echo) as env:
        handle = await env.start(gives_up)
        assert await handle.result() == "went on"
        names = [line.body.name for line in await handle.journal() if line.body.name]
        assert names == ["echo"]


async def test_asking_again_does_not_cancel_the_cleaning_up() -> None:
    async with world(cleans_up, echo) as env:
        handle = await env.start(cleans_up)
        await env.settle()
        assert await handle.cancel("first")
        await env.settle()
        assert not await handle.cancel("second")
        await handle.result()
        kinds = [line.kind for line in await handle.journal()]
        assert kinds.count(EntryKind.CANCEL_REQUESTED) == 1


@workflow
async def refuses(times: int) -> list[str]:
    heard: list[str] = []
    while len(heard) < times:
        try:
            await asyncio.sleep(86_400)
        except asyncio.CancelledError as error:
            heard.append(str(error))
    return heard


async def test_a_run_that_refused_a_cancel_can_be_asked_again() -> None:
    async with world(refuses) as env:
        handle = await env.start(refuses, 3)
        assert await handle.cancel("one")
        await env.settle()
        assert not await handle.cancel("two")
        assert await handle.cancel("three", again=True)
        await env.crash()
        assert await handle.cancel("four", again=True)
        assert await handle.result() == ["one", "three", "four"]
        with pytest.raises(RunClosed):
            await handle.cancel("five", again=True)


async def test_a_run_that_was_not_asked_before_hears_a_cancel_that_asks_again() -> None:
    async with world(refuses) as env:
        handle = await env.start(refuses, 1)
        assert await handle.cancel("one", again=True)
        assert await handle.result() == ["one"]


async def test_a_chain_whose_first_run_refused_a_cancel_is_cancelled_by_the_same_handle() -> None:
    @workflow
    async def goes_on(refusing: bool) -> str:
        try:
            await asyncio.sleep(86_400)
        except asyncio.CancelledError as error:
            if refusing:
                continue_as_new(False)
            return str(error)
        return "slept"

    async with world(goes_on) as env:
        handle = await env.start(goes_on, True)
        assert await handle.cancel("one")
        await env.settle()
        assert await handle.cancel("two")
        assert not await handle.cancel("three")
        assert await handle.result() == "two"


async def test_the_reason_of_a_cancel_reaches_the_code() -> None:
    @workflow
    async def listens() -> str:
        try:
            await asyncio.sleep(86_400)
        except asyncio.CancelledError as error:
            return str(error)
        return "slept"

    async with world(listens) as env:
        handle = await env.start(listens)
        await env.settle()
        await handle.cancel("the shop is closed")
        assert await handle.result() == "the shop is closed"


async def test_a_closed_run_refuses_to_be_cancelled_or_terminated() -> None:
    async with world(sleeps) as env:
        handle = await env.start(sleeps)
        await handle.result()
        with pytest.raises(RunClosed, match="completed"):
            await handle.cancel()
        with pytest.raises(RunClosed, match="completed"):
            await handle.terminate()


# -- terminated


async def test_terminating_ends_a_sleeping_run_without_a_word_to_its_code() -> None:
    async with world(cleans_up, echo) as env:
        handle = await env.start(cleans_up)
        await env.settle()
        await handle.terminate("enough")
        with pytest.raises(RunTerminated, match="enough"):
            await handle.result()
        assert "activity echo" not in await commands(handle)


async def test_terminating_a_run_in_memory_cancels_its_activities() -> None:
    @workflow
    async def waits() -> str:
        return await works(3600)

    ended.clear()
    async with world(waits, works) as env:
        handle = await env.start(waits)
        await env.settle()
        await handle.terminate("enough")
        with pytest.raises(RunTerminated):
            await handle.result()
        await env.settle()
        assert ended == ["cancelled"]
        assert env.worker.session is not None
        assert env.worker.session.runs == {}


# -- out of time


@pytest.mark.parametrize("option", ["timeout", "execution_timeout"])
async def test_a_run_over_its_time_is_closed_from_outside(option: str) -> None:
    async with world(cleans_up, echo) as env:
        before = env.now
        options: dict[str, Any] = {option: 3600}
        handle = await env.start(cleans_up, **options)
        with pytest.raises(RunTimedOut):
            await handle.result()
        assert timedelta(hours=1) <= env.now - before < timedelta(hours=1, seconds=1)
        assert (await handle.describe()).state is RunState.TIMED_OUT
        assert "activity echo" not in await commands(handle)


async def test_a_run_with_an_activity_in_flight_runs_out_of_time_too() -> None:
    @workflow
    async def waits() -> str:
        return await works(86_400)

    ended.clear()
    async with world(waits, works) as env:
        handle = await env.start(waits, timeout=60)
        with pytest.raises(RunTimedOut):
            await handle.result()
        await env.settle()
        assert ended == ["cancelled"]


async def test_the_deadline_survives_a_crash() -> None:
    async with world(cleans_up, echo) as env:
        before = env.now
        handle = await env.start(cleans_up, timeout=3600)
        await env.advance(1800)
        await env.crash()
        with pytest.raises(RunTimedOut):
            await handle.result()
        assert timedelta(hours=1) <= env.now - before < timedelta(hours=1, seconds=1)


async def test_a_run_in_time_is_not_touched_by_its_timeout() -> None:
    async with world(sleeps) as env:
        assert await env.run(sleeps, timeout=86_401) == "slept"


# -- waiting for the end


async def test_waiting_for_a_result_can_time_out_while_the_run_goes_on() -> None:
    async with world(sleeps) as env:
        handle = await env.start(sleeps)
        with pytest.raises(TimeoutError):
            await handle.result(timeout=60)
        assert await handle.result() == "slept"


async def test_the_result_of_a_closed_run_is_there_for_everyone() -> None:
    async with world(sleeps) as env:
        await env.run(sleeps, id="s")
        again = await env.client.get("s", sleeps)
        assert [await again.result() for _ in range(3)] == ["slept"] * 3


async def test_many_can_wait_for_one_result() -> None:
    async with world(sleeps) as env:
        handles = [await env.start(sleeps, id="s") for _ in range(5)]
        assert await asyncio.gather(*(handle.result() for handle in handles)) == ["slept"] * 5


async def test_log_lines_of_torn_down_code_vanish(caplog: pytest.LogCaptureFixture) -> None:
    @workflow
    async def talks() -> None:
        try:
            await asyncio.sleep(86_400)
        finally:
            logger.info("from the grave")

    caplog.set_level(logging.INFO)
    async with world(talks) as env:
        handle = await env.start(talks)
        await env.settle()
        await handle.terminate()
        await env.settle()
        assert "from the grave" not in caplog.messages


def test_a_test_in_which_nothing_can_happen_is_told_so() -> None:
    from batuta.testing import run

    async def waits_for_ever() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Stuck, match="waits for something that cannot come"):
        run(waits_for_ever())
