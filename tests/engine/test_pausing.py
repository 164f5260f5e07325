"""A paused run does nothing, and loses nothing."""

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from batuta import (
    CompleteLater,
    Retry,
    RunClosed,
    RunFailed,
    RunState,
    RunTerminated,
    activity,
    activity_info,
    job,
    now,
    workflow,
)
from batuta.authoring.workflow.messages import Signal
from batuta.clock import SECOND
from batuta.engine.run.owned_run import OwnedRun
from batuta.journal.records import PAUSES, Attempt
from batuta.journal.states import CLOSED
from batuta.testing import Environment
from batuta.verify import verify
from tests.engine.kit import jobs, world

begun: list[str] = []
gates: dict[str, asyncio.Event] = {}
go = Signal("go", str)


@pytest.fixture(autouse=True)
def _afresh() -> None:
    begun.clear()
    gates.clear()
    tokens.clear()


def gate(name: str) -> asyncio.Event:
    return gates.setdefault(name, asyncio.Event())


@activity
async def step(name: str) -> str:
    begun.append(name)
    return name


@activity
async def waits_at(name: str) -> str:
    begun.append(name)
    await gate(name).wait()
    return name


@activity(retry=Retry(attempts=5, first=10, jitter=0))
async def flaky(name: str) -> int:
    begun.append(name)
    if activity_info().attempt < 3:
        raise ConnectionError("busy")
    return activity_info().attempt


@workflow
async def two_steps() -> list[str]:
    return [await waits_at("first"), await step("second")]


@workflow
async def sleeps(seconds: float) -> float:
    before = now()
    await asyncio.sleep(seconds)
    return (now() - before).total_seconds()


@workflow
async def listens() -> str:
    return await go.wait()


@workflow
async def side_by_side() -> list[Any]:
    return list(await asyncio.gather(waits_at("slow"), flaky("flaky"), step("quick")))


@workflow
async def many(count: int) -> int:
    return len(await asyncio.gather(*(waits_at(str(number)) for number in range(count))))


@job(retry=Retry(attempts=3, first=1, jitter=0))
async def work(name: str) -> str:
    begun.append(name)
    await gate(name).wait()
    if activity_info().attempt == 1:
        raise ConnectionError("busy")
    return name


async def state_of(env: Environment, id: str) -> RunState:
    await env.settle()
    return (await env.store.get(id)).state


async def test_calls_in_flight_end_and_nothing_new_begins() -> None:
    async with world(two_steps, waits_at, step) as env:
        run = await env.start(two_steps, id="r")
        await env.settle()
        assert await run.pause("hold on")
        assert await state_of(env, "r") is RunState.RUNNING
        gate("first").set()
        assert await state_of(env, "r") is RunState.PAUSED
        found = await run.describe()
        assert (found.reason, found.worker) == ("hold on", None)
        assert begun == ["first"]
        assert [line.kind for line in await run.journal()] == ["started", "activity_done"]
        await env.advance(3_600)
        assert begun == ["first"]
        assert await run.resume()
        assert await run.result() == ["first", "second"]
        assert begun == ["first", "second"]


async def test_a_run_that_only_waits_is_held_at_once() -> None:
    async with world(sleeps) as env:
        run = await env.start(sleeps, 10.0, id="r")
        await env.settle()
        assert await run.pause()
        assert await state_of(env, "r") is RunState.PAUSED
        await env.advance(100)
        assert await state_of(env, "r") is RunState.PAUSED
        await run.resume()
        assert await run.result() >= 100


async def test_a_timer_that_is_not_over_is_waited_for() -> None:
    async with world(sleeps) as env:
        run = await env.start(sleeps, 1_000.0, id="r")
        await env.settle()
        await run.pause()
        await env.advance(10)
        await run.resume()
        assert await run.result() == 1_000


async def test_a_paused_run_is_not_paused_again() -> None:
    async with world(sleeps) as env:
        run = await env.start(sleeps, 10.0, id="r")
        assert not await run.resume()
        await env.settle()
        assert await run.pause()
        assert not await run.pause()
        assert await state_of(env, "r") is RunState.PAUSED
        assert not await run.pause()
        assert await run.resume()
        assert not await run.resume()


async def test_signals_wait_for_it() -> None:
    async with world(listens) as env:
        run = await env.start(listens, id="r")
        await env.settle()
        await run.pause()
        assert await state_of(env, "r") is RunState.PAUSED
        await run.signal(go, "now")
        assert await state_of(env, "r") is RunState.PAUSED
        await run.resume()
        assert await run.result() == "now"


async def test_its_time_limit_is_later_by_as_long_as_it_was_paused() -> None:
    async with world(sleeps) as env:
        run = await env.start(sleeps, 50.0, id="r", timeout=60)
        await env.settle()
        await run.pause()
        await env.advance(1_000)
        assert await state_of(env, "r") is RunState.PAUSED
        await run.resume()
        assert await run.result() >= 1_000


async def test_retries_wait_while_another_call_is_in_flight() -> None:
    async with world(side_by_side, waits_at, flaky, step) as env:
        run = await env.start(side_by_side, id="r")
        await env.settle()
        assert Counter(begun) == {"slow": 1, "flaky": 1, "quick": 1}
        await run.pause()
        await env.advance(1_000)
        assert Counter(begun)["flaky"] == 1
        gate("slow").set()
        assert await state_of(env, "r") is RunState.PAUSED
        await run.resume()
        assert await run.result() == ["slow", 3, "quick"]
        assert Counter(begun)["slow"] == 1


async def test_a_run_resumed_before_it_was_evicted_goes_on() -> None:
    async with world(side_by_side, waits_at, flaky, step) as env:
        run = await env.start(side_by_side, id="r")
        await env.settle()
        await run.pause()
        await env.advance(100)
        assert Counter(begun)["flaky"] == 1
        assert await run.resume()
        await env.advance(100)
        assert Counter(begun)["flaky"] == 3
        assert await state_of(env, "r") is RunState.RUNNING
        gate("slow").set()
        assert await run.result() == ["slow", 3, "quick"]
        assert Counter(begun)["slow"] == 1


async def test_calls_that_wait_for_a_place_do_not_begin() -> None:
    async with world(many, waits_at, max_activities=2) as env:
        run = await env.start(many, 6, id="r")
        await env.settle()
        assert len(begun) == 2
        await run.pause()
        await env.settle()
        gate("0").set()
        await env.settle()
        assert len(begun) == 2
        for number in range(6):
            gate(str(number)).set()
        assert await state_of(env, "r") is RunState.PAUSED
        assert len(begun) == 2
        await run.resume()
        assert await run.result() == 6
        assert Counter(begun) == {str(number): 1 for number in range(6)}


async def test_calls_that_waited_for_a_place_begin_when_it_goes_on_in_time() -> None:
    async with world(many, waits_at, max_activities=2) as env:
        run = await env.start(many, 6, id="r")
        await env.settle()
        await run.pause()
        await env.settle()
        gate("0").set()
        await env.settle()
        assert len(begun) == 2
        await run.resume()
        await env.settle()
        for number in range(6):
            gate(str(number)).set()
        assert await run.result() == 6
        assert Counter(begun) == {str(number): 1 for number in range(6)}


async def test_a_worker_that_dies_while_it_lets_go_leaves_it_to_the_next() -> None:
    async with world(two_steps, waits_at, step) as env:
        run = await env.start(two_steps, id="r")
        await env.settle()
        await run.pause("hold on")
        await env.settle()
        await env.crash()
        assert await state_of(env, "r") is RunState.PAUSED
        assert (await run.describe()).reason == "hold on"
        assert begun == ["first"]
        gate("first").set()
        await run.resume()
        assert await run.result() == ["first", "second"]


async def test_a_paused_run_survives_its_worker() -> None:
    async with world(sleeps) as env:
        run = await env.start(sleeps, 10.0, id="r")
        await env.settle()
        await run.pause()
        await env.settle()
        await env.crash()
        await env.advance(100)
        assert await state_of(env, "r") is RunState.PAUSED
        await run.resume()
        await run.result()


async def test_a_paused_run_can_be_terminated_and_hears_a_cancel_later() -> None:
    async with world(sleeps) as env:
        first, second = await env.start(sleeps, 10.0, id="a"), await env.start(sleeps, 10.0, id="b")
        await env.settle()
        await first.pause()
        await second.pause()
        await env.settle()
        await first.terminate("enough")
        with pytest.raises(RunTerminated):
            await first.result()
        with pytest.raises(RunClosed):
            await first.resume()
        await second.cancel()
        assert await state_of(env, "b") is RunState.PAUSED
        await second.resume()
        assert await state_of(env, "b") is RunState.CANCELLED


async def test_a_job_in_flight_ends_its_attempt_and_is_held_before_the_next() -> None:
    async with jobs(work) as env:
        run = await env.enqueue(work, "j", id="j")
        await env.settle()
        assert begun == ["j"]
        assert await run.pause()
        await env.settle()
        gate("j").set()
        assert await state_of(env, "j") is RunState.PAUSED
        await env.advance(100)
        assert begun == ["j"]
        await run.resume()
        assert await run.result() == "j"
        assert begun == ["j", "j"]


async def test_a_job_that_has_not_begun_is_held() -> None:
    async with jobs(work) as env:
        run = await env.enqueue(work, "j", id="j", delay=10)
        assert await run.pause()
        await env.advance(100)
        assert begun == []
        gate("j").set()
        await run.resume()
        assert await run.result() == "j"


async def test_the_store_is_consistent_after_every_pause() -> None:
    async with world(sleeps, two_steps, waits_at, step) as env:
        for seconds in (10.0, 1_000.0):
            await (await env.start(sleeps, seconds)).pause()
        await (await env.start(two_steps)).pause()
        await env.start(sleeps, 5.0, delay=50)
        await env.client.select(workflow="sleeps").pause()
        gate("first").set()
        await env.settle()
        assert await env.client.count(state="paused") == 4
        report = await verify(env.store)
        assert not report.violations, report


@activity(start_timeout=60, limit=1)
async def starts_soon(name: str) -> str:
    begun.append(name)
    await gate(name).wait()
    return name


@activity(total_timeout=100, retry=Retry(attempts=3, first=20, jitter=0))
async def takes_little() -> int:
    begun.append("little")
    if activity_info().attempt == 1:
        raise ConnectionError("busy")
    await asyncio.sleep(300)
    return activity_info().attempt


@activity(timeout=100, heartbeat=50)
async def asks_someone() -> str:
    tokens.append(activity_info().token)
    raise CompleteLater


@activity(queue="away", total_timeout=50)
async def elsewhere() -> str:
    await gate("away").wait()
    return "away"


@activity(queue="away", start_timeout=100)
async def begins_soon() -> str:
    await gate("away").wait()
    return "away"


tokens: list[str] = []


@workflow
async def sends_away_soon() -> str:
    return await begins_soon()


@workflow
async def sends_away() -> str:
    return await elsewhere()


@workflow
async def one_of_two() -> list[str]:
    return list(await asyncio.gather(starts_soon("a"), starts_soon("b")))


@workflow
async def little() -> int:
    return await takes_little()


@workflow
async def asks() -> str:
    return await asks_someone()


async def test_an_activity_waiting_for_a_slot_is_not_delayed_by_a_pause() -> None:
    async with world(one_of_two, starts_soon) as env:
        run = await env.start(one_of_two, id="r")
        await env.settle()
        await run.pause()
        await env.settle()
        gate("a").set()
        assert await state_of(env, "r") is RunState.PAUSED
        await env.advance(3_600)
        gate("b").set()
        await run.resume()
        assert await run.result() == ["a", "b"]


async def test_the_total_time_of_an_activity_is_as_long_with_a_pause_as_without() -> None:
    async with world(little, takes_little) as env:
        run = await env.start(little, id="r")
        await env.settle()
        began = await env.store.now()
        await run.pause()
        assert await state_of(env, "r") is RunState.PAUSED
        paused = await env.store.now()
        await env.advance(3_600)
        await run.resume()
        resumed = await env.store.now()
        with pytest.raises(RunFailed) as failed:
            await run.result()
        assert "took longer than its 1 min 40 s" in str(failed.value.__cause__)
        assert begun == ["little", "little"]
        took = (await env.store.get("r")).closed_at or 0
        assert 100 <= (took - began - (resumed - paused)) / SECOND < 102
        assert {attempt.seq for attempt in await run.attempts()} == {1}


async def test_an_answer_from_outside_has_as_much_more_time_as_its_run_was_paused() -> None:
    async with world(asks, asks_someone) as env:
        for wait, answers in ((40.0, True), (60.0, False)):
            tokens.clear()
            run = await env.start(asks, id=f"waits-{wait}")
            await env.settle()
            await run.pause()
            assert await state_of(env, run.id) is RunState.PAUSED
            await env.advance(3_600)
            await run.resume()
            await env.advance(wait)
            if answers:
                await env.client.heartbeat(tokens[0])
                await env.advance(wait)
                await env.client.complete(tokens[0], "yes")
                assert await run.result() == "yes"
            else:
                with pytest.raises(RunFailed):
                    await run.result()
                assert len(tokens) > 1


async def test_a_sign_of_life_from_outside_that_comes_in_a_pause_counts_from_its_end() -> None:
    async with world(asks, asks_someone) as env:
        run = await env.start(asks, id="r")
        await env.settle()
        await run.pause()
        assert await state_of(env, "r") is RunState.PAUSED
        await env.advance(1_800)
        await env.client.heartbeat(tokens[0])
        await env.advance(1_800)
        await run.resume()
        await env.advance(40)
        await env.client.complete(tokens[0], "yes")
        assert await run.result() == "yes"
        assert len(tokens) == 1


async def test_an_activity_elsewhere_whose_own_run_is_paused_is_given_its_time() -> None:
    async with world(sends_away, elsewhere) as env:
        run = await env.start(sends_away, id="r")
        await env.settle()
        (child,) = (await env.client.list(kind="any", id_prefix="r/")).runs
        await (await env.client.get(child.id)).pause()
        assert await state_of(env, child.id) is RunState.PAUSED
        await env.advance(3_600)
        assert (await run.describe()).state not in CLOSED
        await (await env.client.get(child.id)).resume()
        gate("away").set()
        async with env.client.worker(activities=[elsewhere], queues=["away"]):
            assert await run.result() == "away"


async def test_an_activity_elsewhere_that_was_paused_and_has_begun_is_not_looked_after_for_ever() -> None:
    async with world(sends_away_soon, begins_soon) as env:
        run = await env.start(sends_away_soon, id="r")
        await env.settle()
        (child,) = (await env.client.list(kind="any", id_prefix="r/")).runs
        there = await env.client.get(child.id)
        await there.pause()
        assert await state_of(env, child.id) is RunState.PAUSED
        await env.advance(60)
        await there.resume()
        async with env.client.worker(activities=[begins_soon], queues=["away"]):
            await env.advance(3_600)
            assert (await env.store.get(run.id)).owner is None  # nothing of it is in memory
            gate("away").set()
            assert await run.result() == "away"


def test_a_pause_that_seems_to_be_older_than_what_it_holds_up_counts_from_there() -> None:
    pauses = [
        Attempt(seq=PAUSES, number=0, started_at=0, ended_at=500),  # of runs before it
        Attempt(seq=PAUSES, number=1, started_at=90, ended_at=150),
        Attempt(seq=PAUSES, number=2, started_at=200, ended_at=230),
        Attempt(seq=PAUSES, number=3, started_at=300, ended_at=290),  # the clock was set back
    ]
    run = cast(OwnedRun, SimpleNamespace(pauses=pauses))
    assert [OwnedRun.counted_from(run, at) - at for at in (80, 100, 160, 240)] == [90, 80, 30, 0]
