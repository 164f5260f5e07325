"""Heartbeats of activities: silence is noticed, details outlive attempts and workers, a lost attempt is told so."""

import asyncio
import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from batuta import (
    ActivityCancelled,
    ActivityTimeout,
    InvalidInput,
    LostAttempt,
    Retry,
    RunCancelled,
    activity,
    activity_info,
    heartbeat,
    workflow,
)
from batuta.errors import NotSerialisable, WorkerError
from tests.engine.kit import world

PROMPT = Retry(attempts=3, first=1, factor=1, jitter=0)
seen: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    seen.clear()


@dataclass
class Page:
    """How far a copy has come."""

    number: int


@activity(retry=PROMPT, heartbeat=30)
async def copies(pages: int, pause: float, fails_at: int = -1) -> int:
    """Goes on where the last attempt was."""
    known = activity_info().details_as(Page)
    seen.append(known.number if known else 0)
    for number in range(known.number if known else 0, pages):
        await asyncio.sleep(pause)
        heartbeat(Page(number + 1))
        if number == fails_at and activity_info().attempt == 1:
            raise ConnectionError("reset")
    return len(seen)


@workflow
async def copying(pages: int, pause: float, fails_at: int = -1) -> int:
    return await copies(pages, pause, fails_at)


# -- details


async def test_the_next_attempt_reads_the_details_of_the_one_before() -> None:
    async with world(copying, copies) as env:
        assert await env.run(copying, 10, 0.1, 6) == 2
        assert seen == [0, 7]


async def test_details_outlive_the_worker() -> None:
    async with world(copying, copies) as env:
        handle = await env.start(copying, 10, 10)
        await env.advance(55)
        await env.crash()
        assert await handle.result() == 2
        assert seen == [0, 5]


async def test_details_of_a_worker_that_stops_are_flushed() -> None:
    async with world(copying, copies, grace=0.5) as env:
        handle = await env.start(copying, 1000, 0.3)
        await env.advance(1.3)  # the tick has written the third, the fourth came after it
        await env.deploy()
        await env.settle()
        assert seen == [0, 5]
        await handle.terminate()


async def test_details_that_were_not_repeated_are_kept_over_several_attempts() -> None:
    @activity(retry=PROMPT)
    async def forgetful() -> Any:
        seen.append(activity_info().details)
        if activity_info().attempt == 1:
            heartbeat({"page": 3})
        if activity_info().attempt < 3:
            raise ConnectionError("reset")
        return activity_info().details

    @workflow
    async def asks() -> Any:
        return await forgetful()

    async with world(asks, forgetful) as env:
        assert await env.run(asks) == {"page": 3}
        assert seen == [None, {"page": 3}, {"page": 3}]


async def test_a_heartbeat_without_details_keeps_those_before() -> None:
    @activity
    async def beats() -> Any:
        heartbeat([1])
        heartbeat()
        return activity_info().details

    @workflow
    async def asks() -> Any:
        return await beats()

    async with world(asks, beats) as env:
        assert await env.run(asks) == [1]


async def test_many_heartbeats_are_written_once_a_second() -> None:
    @activity
    async def chatters() -> None:
        for number in range(1000):
            heartbeat(number)
            await asyncio.sleep(0.01)

    @workflow
    async def asks() -> None:
        await chatters()

    async with world(asks, chatters) as env:
        written: list[str | None] = []
        commit = env.store.commit

        async def counting(worker_id: str, changes: Any) -> Any:
            written.extend(attempt.details for change in changes for attempt in change.attempts)
            return await commit(worker_id, changes)

        env.store.commit = counting  # type: ignore[method-assign]  # to look at what is written
        await env.run(asks)
        assert 9 <= len(written) <= 11


async def test_details_of_an_open_run_are_described() -> None:
    async with world(copying, copies) as env:
        handle = await env.start(copying, 1000, 0.7)
        await env.advance(6.1)  # the tick at 6 s has written the eighth
        attempts = (await handle.describe()).attempts
        assert [(a.number, a.details) for a in attempts] == [(1, '{"number":8}')]
        await handle.terminate()


# -- silence


@activity(heartbeat=5, retry=PROMPT)
async def falls_silent(beats: int) -> str:
    seen.append(activity_info().attempt)
    for _ in range(beats):
        heartbeat()
        await asyncio.sleep(4)
    await asyncio.sleep(86_400)
    return "woke up"


@workflow
async def listens(beats: int) -> str:
    try:
        return await falls_silent(beats)
    except ActivityTimeout as error:
        return f"{error.kind}: {error}"


async def test_an_attempt_that_is_silent_too_long_fails_and_is_tried_again() -> None:
    async with world(listens, falls_silent) as env:
        before = env.now
        said = await env.run(listens, 10)
        assert said == "heartbeat: activity 'falls_silent' sent no heartbeat for 5 s (attempt 3)"
        assert seen == [1, 2, 3]
        took = env.now - before
        assert timedelta(0) <= took - timedelta(seconds=3 * (9 * 4 + 5) + 2) < timedelta(seconds=0.1)


async def test_an_attempt_that_never_beats_counts_from_its_start() -> None:
    async with world(listens, falls_silent) as env:
        before = env.now
        await env.run(listens, 0)
        assert timedelta(seconds=17) <= env.now - before < timedelta(seconds=17.1)


async def test_a_beating_attempt_may_still_be_over_its_time() -> None:
    @workflow
    async def impatient() -> str:
        try:
            return await falls_silent.with_options(timeout=10, retry=Retry(attempts=1))(99)
        except ActivityTimeout as error:
            return error.kind

    async with world(impatient, falls_silent) as env:
        assert await env.run(impatient) == "attempt"


# -- lost attempts


def deaf_to_cancellation() -> Any:
    """An async activity that hears no cancellation, only heartbeats."""

    @activity(name="stubborn", retry=Retry(attempts=1), timeout=10)
    async def stubborn() -> None:
        while True:
            try:
                await asyncio.sleep(3)
            except asyncio.CancelledError:
                pass
            try:
                heartbeat()
            except LostAttempt as error:
                seen.append(error)
                raise

    return stubborn


async def test_a_heartbeat_of_an_attempt_over_its_time_is_refused() -> None:
    stubborn = deaf_to_cancellation()

    @workflow
    async def asks() -> str:
        try:
            await stubborn()
        except ActivityTimeout as error:
            return error.kind
        return "?"

    async with world(asks, stubborn) as env:
        assert await env.run(asks) == "attempt"
        await env.advance(10)
        assert [type(error) for error in seen] == [LostAttempt]
        assert "over its time" in str(seen[0])


async def test_a_heartbeat_after_the_run_was_taken_away_is_refused() -> None:
    stubborn = deaf_to_cancellation()

    @workflow
    async def asks() -> None:
        await stubborn.with_options(timeout=None)()

    async with world(asks, stubborn) as env:
        handle = await env.start(asks)
        await env.advance(1)
        session = env.worker.session
        assert session is not None
        session.runs[handle.run_id.int].drop()
        await env.advance(1)
        assert [type(error) for error in seen] == [LostAttempt]
        assert "not this worker's any more" in str(seen[0])
        await handle.terminate()


async def test_a_heartbeat_while_the_lease_is_over_is_refused_and_the_attempt_is_not_counted() -> None:
    leased = True

    @activity(retry=Retry(attempts=1))
    async def beats() -> int:
        seen.append(activity_info().attempt)
        await asyncio.sleep(3)
        heartbeat()
        return len(seen)

    @workflow
    async def asks() -> int:
        return await beats()

    async with world(asks, beats) as env:
        assert env.worker.session is not None
        env.worker.session.executor.beats._may_act = lambda: leased
        handle = await env.start(asks)
        await env.advance(1)
        leased = False
        await env.advance(3)
        leased = True
        assert await handle.result() == 2
        assert seen == [1, 1]


# -- threads


@activity(retry=Retry(attempts=1))
def grinds(rounds: int) -> str:
    """Sync code that looks up now and then."""
    for number in range(rounds):
        started.set()
        pause.wait(0.005)
        try:
            heartbeat(number)
        except LostAttempt as error:
            seen.append((error, activity_info().cancelled))
            raise
    return "ground"


started = threading.Event()
pause = threading.Event()


@workflow
async def grinding(rounds: int) -> str:
    return await grinds(rounds)


async def until_ground(env: Any) -> None:
    while not seen:
        await asyncio.to_thread(pause.wait, 0.01)


async def test_a_cancelled_run_reaches_its_thread() -> None:
    async with world(grinding, grinds) as env:
        handle = await env.start(grinding, 10_000)
        await env.advance(0.1)
        await handle.cancel()
        with pytest.raises(RunCancelled):
            await handle.result()
        await until_ground(env)
        error, cancelled = seen[0]
        assert isinstance(error, ActivityCancelled)
        assert cancelled


async def test_a_thread_over_its_time_is_told_so() -> None:
    @workflow
    async def asks() -> str:
        try:
            return await grinds.with_options(timeout=5)(10_000)
        except ActivityTimeout as error:
            return error.kind

    async with world(asks, grinds) as env:
        handle = await env.start(asks)
        await env.advance(6)
        assert await handle.result() == "attempt"
        await until_ground(env)
        assert "over its time" in str(seen[0][0])


async def test_a_worker_that_stops_tells_its_threads_after_the_grace() -> None:
    async with world(grinding, grinds, grace=2) as env:
        handle = await env.start(grinding, 10_000)
        await env.advance(0.1)
        stopping = asyncio.create_task(env.worker.stop())
        await env.advance(3)
        await stopping
        await until_ground(env)
        assert isinstance(seen[0][0], LostAttempt)
        await handle.terminate()


async def test_a_thread_keeps_its_place_until_it_has_heard() -> None:
    release = threading.Event()

    @activity(retry=Retry(attempts=1), timeout=5)
    def deaf() -> None:
        release.wait(30)
        heartbeat()

    @activity
    def quick() -> str:
        return "quick"

    @workflow
    async def asks() -> str:
        try:
            await deaf()
        except ActivityTimeout:
            pass
        return await quick()

    async with world(asks, deaf, quick, threads=1) as env:
        handle = await env.start(asks)
        await env.advance(60)
        assert len(await handle.journal()) == 2
        release.set()
        assert await handle.result() == "quick"


async def test_a_cancelled_call_reaches_its_thread_while_the_run_goes_on() -> None:
    @workflow
    async def asks() -> str:
        task = asyncio.create_task(grinds(10_000))
        await asyncio.sleep(5)
        task.cancel()
        await asyncio.sleep(5)
        return "went on"

    async with world(asks, grinds) as env:
        handle = await env.start(asks)
        await env.advance(6)
        await until_ground(env)
        assert isinstance(seen[0][0], ActivityCancelled)
        assert await handle.result() == "went on"


# -- bad input


async def test_a_heartbeat_outside_an_activity_is_an_error() -> None:
    with pytest.raises(WorkerError, match="outside an activity"):
        heartbeat()


async def test_a_heartbeat_in_workflow_code_is_an_error() -> None:
    @workflow
    async def beats() -> str:
        try:
            heartbeat()
        except WorkerError as error:
            return str(error)
        return "fine"

    async with world(beats) as env:
        assert "outside an activity" in await env.run(beats)


@pytest.mark.parametrize("bad", [0, -1, float("inf"), float("nan"), "30", True])
def test_a_heartbeat_option_that_cannot_be_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidInput, match="heartbeat="):
        activity(heartbeat=bad)


async def test_details_without_a_json_form_are_refused() -> None:
    @activity(retry=Retry(attempts=1))
    async def beats() -> str:
        try:
            heartbeat(object())
        except NotSerialisable as error:
            return str(error)
        return "fine"

    @workflow
    async def asks() -> str:
        return await beats()

    async with world(asks, beats) as env:
        assert "details of a heartbeat" in await env.run(asks)


async def test_details_that_do_not_fit_the_type_are_named() -> None:
    @activity(retry=PROMPT)
    async def beats() -> str:
        if activity_info().attempt == 1:
            heartbeat("text")
            raise ConnectionError
        try:
            activity_info().details_as(Page)
        except InvalidInput as error:
            return str(error)
        return "fine"

    @workflow
    async def asks() -> str:
        return await beats()

    async with world(asks, beats) as env:
        assert "heartbeat details of activity 'beats'" in await env.run(asks)
