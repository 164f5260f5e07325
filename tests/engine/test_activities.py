"""Activities: attempts, timeouts, threads, keys, and `once`."""

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

from batuta import (
    ActivityFailed,
    ActivityOptions,
    ActivityTimeout,
    CompleteLater,
    Interrupted,
    NonRetryable,
    Retry,
    RunState,
    activity,
    activity_info,
    call,
    now,
    workflow,
)
from batuta.durations import human_duration
from batuta.errors import WorkerError
from batuta.testing import double
from tests.engine.kit import world

STEADY = Retry(attempts=4, first=10, factor=3, longest=60, jitter=0)
tries: list[Any] = []


@pytest.fixture(autouse=True)
def _no_tries() -> None:
    tries.clear()


class Flaky(Exception):
    """Raised by activities of this module that are to be tried again."""


@activity(retry=STEADY)
async def flaky(good_at: int) -> int:
    tries.append(activity_info())
    if len(tries) < good_at:
        raise Flaky(f"attempt {len(tries)}")
    return len(tries)


@workflow
async def calls_flaky(good_at: int) -> int:
    return await flaky(good_at)


@workflow
async def names_the_error(good_at: int) -> str:
    try:
        return str(await flaky(good_at))
    except Flaky as error:
        return f"gave up: {error}"


# -- attempts


async def test_a_failed_attempt_is_tried_again_after_growing_waits() -> None:
    async with world(calls_flaky, flaky) as env:
        before = env.now
        handle = await env.start(calls_flaky, 4)
        assert await handle.result() == 4
        waits = [round((t.started_at - before).total_seconds()) for t in tries]
        assert waits == [0, 10, 40, 100]
        assert (await handle.journal())[-1].body.attempts == 4


async def test_after_the_last_attempt_the_error_is_raised_into_the_workflow() -> None:
    async with world(names_the_error, flaky) as env:
        assert await env.run(names_the_error, 99) == "gave up: attempt 4"
        assert len(tries) == 4


async def test_attempts_are_counted_on_after_a_crash() -> None:
    async with world(names_the_error, flaky) as env:
        handle = await env.start(names_the_error, 99)
        await env.advance(20)
        assert len(tries) == 2
        await env.crash()
        assert await handle.result() == "gave up: attempt 4"
        assert [t.attempt for t in tries] == [1, 2, 3, 4]


async def test_a_retry_keeps_its_time_over_a_crash() -> None:
    async with world(calls_flaky, flaky) as env:
        before = env.now
        handle = await env.start(calls_flaky, 2)
        await env.advance(3)
        await env.crash()
        await handle.result()
        assert round((tries[1].started_at - before).total_seconds()) == 10


async def test_a_retry_that_is_far_away_takes_the_run_out_of_memory() -> None:
    patient = flaky.with_options(retry=Retry(attempts=3, first=3600, longest=7200, jitter=0))

    @workflow
    async def waits() -> int:
        return await patient(3)

    async with world(waits, flaky) as env:
        before = env.now
        handle = await env.start(waits)
        await env.settle()
        assert env.worker.session is not None
        assert env.worker.session.runs == {}
        assert (await handle.describe()).state is RunState.WAITING
        assert await handle.result() == 3
        assert timedelta(hours=3) <= env.now - before < timedelta(hours=3, seconds=1)


async def test_of_hundreds_of_attempts_a_hundred_are_kept_and_all_are_counted() -> None:
    patient = flaky.with_options(retry=Retry(attempts=0, first=60, factor=1, longest=60, jitter=0))

    @workflow
    async def waits_for_months(good_at: int) -> int:
        return await patient(good_at)

    async with world(waits_for_months, flaky) as env:
        handle = await env.start(waits_for_months, 300)
        await env.advance(150 * 60)
        await env.crash()
        assert await handle.result() == 300
        assert [info.attempt for info in tries][-3:] == [298, 299, 300]
        kept = [attempt.number for attempt in await handle.attempts()]
        assert kept == [*range(1, 11), *range(210, 301)]  # the last one is in the journal


async def test_zero_attempts_try_for_ever() -> None:
    endless = flaky.with_options(retry=Retry(attempts=0, first=1, factor=1, jitter=0))

    @workflow
    async def insists() -> int:
        return await endless(50)

    async with world(insists, flaky) as env:
        assert await env.run(insists) == 50


async def test_an_error_named_in_never_is_not_tried_again() -> None:
    @workflow
    async def asks() -> str:
        try:
            await flaky.with_options(retry=Retry(attempts=5, never=["Flaky"]))(99)
        except Flaky as error:
            return str(error)
        return "fine"

    async with world(asks, flaky) as env:
        assert await env.run(asks) == "attempt 1"


async def test_non_retryable_is_not_tried_again() -> None:
    class NoSuchAccount(NonRetryable):
        pass

    @activity(retry=STEADY)
    async def refuses() -> None:
        tries.append(1)
        raise NonRetryable("no such account")

    @workflow
    async def asks() -> str:
        try:
            await refuses()
        except NonRetryable as error:
            return str(error)
        return "fine"

    async with world(asks, refuses) as env:
        assert await env.run(asks) == "no such account"
        assert len(tries) == 1


async def test_the_waiting_attempts_of_an_open_run_are_described() -> None:
    async with world(names_the_error, flaky) as env:
        handle = await env.start(names_the_error, 99)
        await env.advance(20)
        attempts = (await handle.describe()).attempts
        assert [a.number for a in attempts] == [1, 2]
        assert "attempt 1" in (attempts[0].error or "")
        assert attempts[1].next_at is not None


# -- keys and info


async def test_the_key_is_the_same_over_retries_and_crashes_and_unlike_all_others() -> None:
    @workflow
    async def twice() -> list[int]:
        return [await flaky(3), await flaky(0)]

    async with world(twice, flaky) as env:
        handle = await env.start(twice)
        await env.advance(5)
        await env.crash()
        await handle.result()
        keys = [t.key for t in tries]
        assert keys[0] == keys[1] == keys[2] != keys[3]
        assert keys[0] == f"{handle.run_id}:1:flaky"


async def test_activity_info_says_which_call_this_is() -> None:
    async with world(calls_flaky, flaky) as env:
        handle = await env.start(calls_flaky, 2, id="order-3")
        await handle.result()
        first, second = tries
        assert (first.name, first.attempt, first.id, first.seq) == ("flaky", 1, "order-3", 1)
        assert (second.attempt, second.run_id) == (2, handle.run_id)


async def test_activity_info_outside_an_activity_is_an_error() -> None:
    with pytest.raises(WorkerError, match="outside an activity"):
        activity_info()


# -- timeouts


@activity
async def works(seconds: float) -> str:
    tries.append(activity_info().attempt)
    await asyncio.sleep(seconds)
    return "done"


def calls_with(**options: Any) -> Any:
    @workflow(name="calls")
    async def calls(seconds: float) -> str:
        try:
            return await works.with_options(**options)(seconds)
        except ActivityTimeout as error:
            return str(error)

    return calls


@pytest.mark.parametrize("limit", [0.25, 5, 3600])
async def test_an_attempt_over_its_time_is_ended_and_tried_again(limit: float) -> None:
    calls = calls_with(timeout=limit, retry=Retry(attempts=2, first=1, jitter=0))
    async with world(calls, works) as env:
        before = env.now
        said = await env.run(calls, 86_400)
        assert said == f"activity 'works' took longer than its {human_duration(limit)} (attempt 2)"
        assert tries == [1, 2]
        assert timedelta(0) <= env.now - before - timedelta(seconds=2 * limit + 1) < timedelta(seconds=0.1)


async def test_an_attempt_in_time_is_left_alone() -> None:
    calls = calls_with(timeout=60)
    async with world(calls, works) as env:
        assert await env.run(calls, 59) == "done"


async def test_all_attempts_together_may_have_a_limit() -> None:
    @workflow
    async def asks() -> str:
        impatient = flaky.with_options(total_timeout=50, retry=STEADY)
        try:
            return str(await impatient(99))
        except Flaky as error:
            return str(error)

    async with world(asks, flaky) as env:
        before = env.now
        assert await env.run(asks) == "attempt 3"  # the fourth would begin at 100 s
        assert env.now - before < timedelta(seconds=50)


async def test_an_attempt_is_ended_by_the_limit_of_all() -> None:
    calls = calls_with(total_timeout=30, timeout=20, retry=Retry(attempts=9, first=1, factor=1, jitter=0))
    async with world(calls, works) as env:
        before = env.now
        assert "took longer than its 30 s" in await env.run(calls, 86_400)
        assert timedelta(0) <= env.now - before - timedelta(seconds=30) < timedelta(seconds=0.1)
        assert tries == [1, 2]


async def test_the_limit_of_all_attempts_counts_on_over_a_crash() -> None:
    calls = calls_with(total_timeout=30, retry=Retry(attempts=1))
    async with world(calls, works) as env:
        before = env.now
        handle = await env.start(calls, 86_400)
        await env.advance(20)
        await env.crash()
        assert "took longer than its 30 s" in await handle.result()
        assert env.now - before < timedelta(seconds=31)


async def test_an_activity_that_finds_no_place_in_time_fails() -> None:
    @workflow
    async def crowds() -> list[str]:
        begun = now()

        async def one(**options: Any) -> str:
            try:
                return await works.with_options(**options)(60)
            except ActivityTimeout as error:
                return f"{error} after {round((now() - begun).total_seconds())} s"

        return list(await asyncio.gather(one(), one(start_timeout=10, retry=Retry(attempts=1)), one()))

    async with world(crowds, works, max_activities=1) as env:
        assert await env.run(crowds) == [
            "done",
            "activity 'works' did not start within 10 s (attempt 1) after 10 s",
            "done",
        ]


# -- threads


@activity
def in_thread(text: str) -> list[str]:
    info = activity_info()
    return [text, str(threading.current_thread() is threading.main_thread()), info.name]


async def test_sync_activities_run_in_threads_with_their_info() -> None:
    @workflow
    async def asks() -> list[str]:
        return await in_thread("hello")

    async with world(asks, in_thread) as env:
        assert await env.run(asks) == ["hello", "False", "in_thread"]


async def test_a_sync_activity_that_raises_is_tried_again() -> None:
    @activity(retry=Retry(attempts=3, first=1))
    def sometimes() -> int:
        tries.append(1)
        if len(tries) < 3:
            raise OSError("busy")
        return len(tries)

    @workflow
    async def asks() -> int:
        return await sometimes()

    async with world(asks, sometimes) as env:
        assert await env.run(asks) == 3


async def test_a_thread_over_its_time_keeps_its_place_until_it_ends() -> None:
    release = threading.Event()

    @activity(timeout=5, retry=Retry(attempts=1))
    def blocks() -> str:
        release.wait(30)
        return "late"

    @activity
    def quick() -> str:
        return "quick"

    @workflow
    async def asks() -> list[str]:
        try:
            first = await blocks()
        except ActivityTimeout:
            first = "timeout"
        return [first, await quick()]

    async with world(asks, blocks, quick, threads=1) as env:
        handle = await env.start(asks)
        await env.advance(6)
        assert [str(line.kind) for line in await handle.journal()] == ["started", "activity_failed"]
        release.set()
        assert await handle.result() == ["timeout", "quick"]


# -- once


async def test_a_once_activity_is_not_tried_again() -> None:
    @workflow
    async def asks() -> str:
        try:
            await flaky.with_options(once=True)(99)
        except Flaky as error:
            return str(error)
        return "fine"

    async with world(asks, flaky) as env:
        assert await env.run(asks) == "attempt 1"
        assert len(tries) == 1


async def test_a_once_activity_cut_off_by_a_crash_raises_interrupted() -> None:
    @workflow
    async def asks() -> str:
        try:
            return await works.with_options(once=True)(60)
        except Interrupted as error:
            return str(error)

    async with world(asks, works) as env:
        handle = await env.start(asks)
        await env.advance(5)
        await env.crash()
        said = await handle.result()
        assert "may or may not have happened" in said
        assert f"{handle.run_id}:1:works" in said
        assert tries == [1]


async def test_the_start_of_a_once_activity_is_durable_before_it_runs() -> None:
    seen: list[int] = []

    @activity(once=True)
    async def looks() -> str:
        seen.append(len(await env.store.attempts(activity_info().run_id)))
        return "ok"

    @workflow
    async def asks() -> str:
        return await looks()

    async with world(asks, looks) as env:
        assert await env.run(asks) == "ok"
        assert seen == [1]


# -- ways to call


class Gateway:
    """Activities with a dependency."""

    def __init__(self, url: str) -> None:
        self.url = url

    @activity
    async def reserve(self, sku: str, qty: int = 1) -> str:
        return f"{self.url}: {qty} {sku}"

    @activity(name="gateway.release")
    def release(self, sku: str) -> str:
        return f"{self.url} released {sku}"


async def test_bound_methods_of_an_instance_are_activities() -> None:
    @workflow
    async def reserves() -> list[str]:
        return [await Gateway.reserve("tea", qty=3), await Gateway.reserve("tea"), await Gateway.release("tea")]

    async with world(reserves, Gateway("shop")) as env:
        assert await env.run(reserves) == ["shop: 3 tea", "shop: 1 tea", "shop released tea"]


async def test_an_activity_can_be_called_by_its_name() -> None:  # covers B-01
    @workflow
    async def calls() -> list[Any]:
        typed = await call("flaky", 1, result=int)
        plain = await call("gateway.release", "tea", options=ActivityOptions(retry=Retry(attempts=1)))
        return [typed, plain]

    async with world(calls, flaky, Gateway("x")) as env:
        assert await env.run(calls) == [1, "x released tea"]


async def test_with_options_changes_this_call_only() -> None:
    quick = flaky.with_options(retry=Retry(attempts=1))
    assert quick.options.retry.attempts == 1
    assert flaky.options.retry == STEADY
    assert quick.name == flaky.name


async def test_keyword_arguments_reach_the_activity() -> None:
    @activity
    async def mixed(a: int, *rest: int, b: str = "b", **more: float) -> list[Any]:
        return [a, list(rest), b, more]

    @workflow
    async def calls() -> list[Any]:
        return [await mixed(1), await mixed(1, 2, 3, b="x", c=1.5)]

    async with world(calls, mixed) as env:
        assert await env.run(calls) == [[1, [], "b", {}], [1, [2, 3], "x", {"c": 1.5}]]


async def test_a_double_stands_in_for_an_activity() -> None:
    async with world(calls_flaky, double(flaky, lambda good_at: good_at * 100)) as env:
        assert await env.run(calls_flaky, 7) == 700


async def test_activities_of_many_runs_share_the_workers_places() -> None:
    inside: list[int] = []
    most = 0

    @activity
    async def counts() -> None:
        nonlocal most
        inside.append(1)
        most = max(most, len(inside))
        await asyncio.sleep(1)
        inside.pop()

    @workflow
    async def one() -> None:
        await counts()

    async with world(one, counts, max_activities=5) as env:
        handles = [await env.start(one) for _ in range(20)]
        for handle in handles:
            await handle.result()
        assert most == 5


# -- errors that futures do not take


async def test_a_sync_activity_that_raises_stop_iteration_has_failed() -> None:
    @activity(retry=Retry(attempts=1))
    def first(numbers: list[int]) -> int:
        return next(iter(numbers))

    @workflow
    async def asks() -> str:
        try:
            return str(await first([]))
        except RuntimeError as error:
            return str(error)

    async with world(asks, first) as env:
        assert await env.run(asks) == "activity 'first' raised StopIteration"


async def test_a_stop_iteration_from_outside_is_an_activity_failed() -> None:
    tokens: list[str] = []

    @activity(retry=Retry(attempts=1))
    async def later() -> None:
        tokens.append(activity_info().token)
        raise CompleteLater

    @workflow
    async def asks() -> str:
        try:
            await later()
        except ActivityFailed as error:
            return f"{error.type}: {error}"
        return "?"

    async with world(asks, later) as env:
        handle = await env.start(asks)
        await env.advance(1)
        await env.client.fail(tokens[0], StopIteration("nothing left"))
        assert await handle.result() == "StopIteration: nothing left"


# -- methods


class Contract:
    """What workers have, as workflows see it."""

    async def charge(self, amount: int) -> str:
        raise NotImplementedError


class Bank(Contract):
    @activity
    async def charge(self, amount: int) -> str:
        return f"charged {amount}"


charge = activity(Contract.charge)


async def test_a_method_of_a_plain_class_can_be_called_as_the_activity_that_a_worker_has() -> None:
    @workflow
    async def pays() -> str:
        return await charge(5)  # type: ignore[call-arg, arg-type]

    async with world(pays, Bank()) as env:
        assert await env.run(pays) == "charged 5"
