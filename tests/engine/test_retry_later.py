"""`RetryLater`: an activity or job says itself when it is to be tried again."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from batuta import CompleteLater, InvalidInput, Retry, RetryLater, RunFailed, activity, activity_info, job, workflow
from batuta.journal.records import LetterReason
from tests.engine.arena import PATIENCE, Arena
from tests.engine.kit import jobs, world

EAGER = Retry(attempts=3, first=1, longest=1, jitter=0)
begun: list[float] = []


@pytest.fixture(autouse=True)
def _nothing_begun() -> None:
    begun.clear()


def at() -> float:
    """When this attempt began."""
    return activity_info().started_at.timestamp()


def throttled(times: int, seconds: float) -> str:
    begun.append(at())
    if len(begun) <= times:
        raise RetryLater(seconds)
    return "done"


@activity(retry=EAGER)
async def on_loop(times: int, seconds: float) -> str:
    return throttled(times, seconds)


@activity(retry=EAGER)
def in_thread(times: int, seconds: float) -> str:
    return throttled(times, seconds)


@activity(retry=EAGER, queue="elsewhere")
async def routed(times: int, seconds: float) -> str:
    return throttled(times, seconds)


CALLS = {"loop": on_loop, "thread": in_thread, "routed": routed}


@workflow
async def asks(place: str, times: int, seconds: float) -> str:
    try:
        return await CALLS[place](times, seconds)
    except RetryLater as error:
        return f"given up: {error.seconds:g}"


def waits() -> list[float]:
    return [round(later - earlier) for earlier, later in pairwise(begun)]


@pytest.mark.parametrize("place", CALLS)
@pytest.mark.parametrize("seconds", [0, 5, 20, 3600, 86_400])
async def test_the_next_attempt_begins_after_the_seconds_that_the_code_asks_for(place: str, seconds: float) -> None:
    async with world(asks, *CALLS.values(), queues=["default", "elsewhere"]) as env:
        assert await env.run(asks, place, 2, seconds) == "done"
    assert waits() == [seconds, seconds]


async def test_it_counts_as_an_attempt_and_is_the_error_of_the_last() -> None:
    async with world(asks, on_loop) as env:
        assert await env.run(asks, "loop", 9, 60) == "given up: 60"
    assert waits() == [60, 60]


async def test_a_call_that_would_be_over_its_time_by_then_fails_at_once() -> None:
    @workflow
    async def has_an_hour() -> str:
        try:
            return await on_loop.with_options(total_timeout=3600)(9, 7200)
        except RetryLater as error:
            return f"given up: {error.seconds:g}"

    async with world(has_an_hour, on_loop) as env:
        before = env.now
        assert await env.run(has_an_hour) == "given up: 7200"
        assert env.now == before


async def test_a_call_that_is_made_once_is_not_tried_again() -> None:
    @activity(once=True)
    async def pays() -> None:
        raise RetryLater(5)

    @workflow
    async def asks_once() -> str:
        try:
            await pays()
        except RetryLater:
            return "told"
        return "done"

    async with world(asks_once, pays) as env:
        assert await env.run(asks_once) == "told"


async def test_the_wait_survives_a_crash_and_the_run_needs_no_memory_for_it() -> None:
    async with world(asks, on_loop) as env:
        handle = await env.start(asks, "loop", 1, 7200)
        await env.settle()
        assert env.worker.session is not None
        assert not env.worker.session.runs
        await env.advance(3600)
        await env.crash()
        assert await handle.result() == "done"
    assert waits() == [7200]


async def test_the_timeline_shows_how_long_it_was_asked_to_wait() -> None:
    async with world(asks, on_loop) as env:
        handle = await env.start(asks, "loop", 1, 7200)
        await env.settle()
        call = (await handle.timeline()).steps[1]
        first = call.attempts[0]
        assert first.next_at is not None
        assert first.ended_at is not None
        assert (first.next_at - first.ended_at).total_seconds() == 7200
        assert "asked to be tried again after 2 h" in (first.error or "")
        assert call.segments[-1].kind == "backoff"
        await handle.result()
        assert [one.kind for one in (await handle.timeline()).steps[1].segments] == ["backoff"]


@pytest.mark.parametrize("seconds", ["60", float("nan"), 1e12])
async def test_a_delay_that_is_none_fails_the_call_and_says_so(seconds: Any) -> None:
    @activity
    async def trusts() -> None:
        begun.append(at())
        raise RetryLater(seconds)

    @workflow
    async def meets() -> str:
        try:
            await trusts()
        except InvalidInput as error:
            return str(error)
        return "done"

    async with world(meets, trusts) as env:
        assert "must be given seconds or a timedelta" in await env.run(meets)
    assert len(begun) == 1


async def test_a_job_waits_as_long_and_is_a_dead_letter_when_that_was_its_last_attempt() -> None:
    @job(retry=Retry(attempts=2))
    async def sends() -> None:
        begun.append(at())
        raise RetryLater(600) from ConnectionError("busy")

    async with jobs(sends) as env:
        handle = await env.enqueue(sends)
        with pytest.raises(RunFailed) as caught:
            await handle.result()
        assert isinstance(caught.value.__cause__, RetryLater)
        assert isinstance(caught.value.__cause__.__cause__, ConnectionError)
        letter = (await env.dead_letters.list()).letters[0]
        assert (letter.reason, letter.error, letter.attempts) == (LetterReason.EXHAUSTED, "RetryLater", 2)
    assert waits() == [600]


async def test_a_job_waits_as_the_list_says_that_it_was_enqueued_with() -> None:
    @job
    async def sends() -> None:
        begun.append(at())
        raise ConnectionError("away")

    async with jobs(sends) as env:
        with pytest.raises(RunFailed):
            await env.run(sends, retry=Retry(attempts=5, waits=[5, 3_600, 60], jitter=0))
    assert waits() == [5, 3_600, 60, 60]


async def test_a_completer_from_outside_may_ask_for_the_run() -> None:
    tokens: list[str] = []

    @activity(retry=EAGER)
    async def waits_outside() -> str:
        tokens.append(activity_info().token)
        begun.append(at())
        raise CompleteLater

    @workflow
    async def waits_for_it() -> str:
        return await waits_outside()

    async with world(waits_for_it, waits_outside) as env:
        handle = await env.start(waits_for_it)
        await env.settle()
        await env.client.fail(tokens[0], RetryLater(7200))
        await env.settle()
        await env.advance(7100)
        assert len(tokens) == 1
        await env.advance(200)
        assert len(tokens) == 2
        await env.client.complete(tokens[1], "answered")
        assert await handle.result() == "answered"


async def test_a_run_that_is_tried_again_waits_as_long() -> None:
    @workflow
    async def stumbles() -> str:
        begun.append(asyncio.get_running_loop().time())
        raise RetryLater(3600)

    async with world(stumbles) as env:
        before = env.now
        with pytest.raises(RunFailed):
            await env.run(stumbles, retry=Retry(attempts=2, first=1, jitter=0))
        assert (env.now - before).total_seconds() == 3600


@activity(retry=Retry(attempts=2, first=0, longest=0, jitter=0))
async def briefly() -> str:
    return throttled(1, 0.2)


@workflow
async def asks_briefly() -> str:
    return await briefly()


async def test_it_is_the_same_on_every_store(arena: Arena) -> None:
    client = await arena.client()
    async with client.worker(workflows=[asks_briefly], activities=[briefly]):
        handle = await client.start(asks_briefly)
        assert await handle.result(PATIENCE) == "done"
        first = (await handle.attempts())[0]
        assert first.next_at is not None
        assert first.ended_at is not None
        assert (first.next_at - first.ended_at).total_seconds() >= 0.2
    assert begun[1] - begun[0] >= 0.2
