"""Timelines, attempts and differences of runs that have really run, in virtual time."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import pytest

from batuta import (
    CompleteLater,
    Handle,
    InvalidInput,
    Retry,
    RunFailed,
    UnknownRun,
    activity,
    activity_info,
    continue_as_new,
    job,
    run_child,
    workflow,
)
from batuta.authoring.history.steps import Segment, SegmentKind, Step, StepKind, StepState
from batuta.ids import new_run_id
from batuta.testing import Environment
from tests.engine.kit import jobs, world

broken: dict[str, int] = {}
tokens: list[str] = []


@pytest.fixture(autouse=True)
def _afresh() -> None:
    broken.clear()
    tokens.clear()


@activity(retry=Retry(attempts=3, first=4, factor=2, jitter=0))
async def act(name: str, seconds: float = 1) -> str:
    await asyncio.sleep(seconds)
    if broken.get(name, 0) > 0:
        broken[name] -= 1
        raise ConnectionError(f"{name} is down")
    return name


@activity(retry=Retry(attempts=2, first=2, jitter=0))
async def ask(name: str) -> str:
    tokens.append(activity_info().token)
    raise CompleteLater


@workflow
async def order(name: str) -> list[str]:
    return [await act("reserve"), await act("charge"), await act(name)]


@workflow
async def rests(seconds: float) -> str:
    async with asyncio.timeout(1_000):
        await asyncio.sleep(seconds)
        return await act("wake")


@workflow
async def asks(name: str) -> str:
    return await ask(name)


@workflow
async def parent(name: str) -> list[str]:
    return await run_child(order, name, id=f"child-{name}")


@workflow
async def counts(number: int) -> int:
    await asyncio.sleep(1)
    if number:
        continue_as_new(number - 1)
    return number


@workflow
async def fails(name: str) -> str:
    return await act(name)


@job(retry=Retry(attempts=3, first=4, factor=2, jitter=0))
async def mail(to: str) -> str:
    await asyncio.sleep(1)
    if broken.get(to, 0) > 0:
        broken[to] -= 1
        raise ConnectionError(to)
    return to


def drawn(since: datetime, segments: Sequence[Segment]) -> list[tuple[str, int, int | None]]:
    """Kinds, and whole seconds since then."""
    return [
        (
            str(one.kind),
            round((one.start - since).total_seconds()),
            None if one.end is None else round((one.end - since).total_seconds()),
        )
        for one in segments
    ]


async def step(handle: Handle[Any], name: str) -> Step:
    return next(one for one in (await handle.timeline()).steps if one.name == name)


async def ended(env: Environment, *args: Any, **options: Any) -> Handle[Any]:
    handle = await env.start(*args, **options)
    await handle.result()
    return handle


async def test_every_attempt_stays_visible_with_its_input() -> None:
    async with world(order, act) as env:
        broken["charge"] = 2
        before = env.now
        handle = await ended(env, order, "ship")
        charge = (await handle.timeline()).steps[2]
        assert (charge.name, charge.input, charge.output, charge.tries) == ("act", ["charge"], "charge", 3)
        assert [(one.number, bool(one.error), one.ended_at is not None) for one in charge.attempts] == [
            (1, True, True),
            (2, True, True),
            (3, False, True),
        ]
        assert drawn(before, charge.segments) == [
            ("running", 1, 2),
            ("backoff", 2, 6),
            ("running", 6, 7),
            ("backoff", 7, 15),
            ("running", 15, 16),
        ]
        assert [(one.seq, one.number) for one in await handle.attempts()] == [(1, 1), (2, 1), (2, 2), (2, 3), (3, 1)]


async def test_a_run_under_way_and_the_same_when_it_is_done() -> None:
    async with world(rests, act) as env:
        before = env.now
        handle = await env.start(rests, 60, id="r", delay=5)
        await env.advance(30)
        found = await handle.timeline()
        assert drawn(before, found.segments) == [("delayed", 0, 5), ("asleep", 5, None)]
        await handle.result()
        found = await handle.timeline()
        assert drawn(before, found.segments) == [("delayed", 0, 5), ("asleep", 5, 65), ("running", 65, 66)]
        limit, nap = (one for one in found.steps if one.kind is StepKind.TIMER)
        assert (limit.state, nap.state) == (StepState.DROPPED, StepState.DONE)


async def test_a_paused_run_shows_since_when_it_is_held() -> None:
    async with world(rests, act) as env:
        before = env.now
        handle = await env.start(rests, 10, id="r")
        await env.advance(4)
        await handle.pause("wait")
        await env.advance(26)
        assert drawn(before, (await handle.timeline()).segments) == [("asleep", 0, 4), ("paused", 4, None)]
        await handle.resume()
        await handle.result()
        seen = drawn(before, (await handle.timeline()).segments)
        assert seen == [("asleep", 0, 4), ("paused", 4, 30), ("running", 30, 31)]


async def test_an_answer_from_outside_is_waited_for_there() -> None:
    async with world(asks, ask) as env:
        before = env.now
        handle = await env.start(asks, "ada")
        await env.advance(10)
        await env.client.fail(tokens[0], "no time")
        await env.advance(5)
        await env.client.complete(tokens[1], "yes")
        await handle.result()
        call = await step(handle, "ask")
        assert drawn(before, call.segments) == [("outside", 0, 10), ("backoff", 10, 12), ("outside", 12, 15)]
        assert [one.outside for one in call.attempts] == [False, False]


async def test_children_are_linked_and_have_timelines_of_their_own() -> None:
    async with world(parent, order, act) as env:
        before = env.now
        handle = await ended(env, parent, "ship")
        child = await step(handle, "order")
        assert drawn(before, child.segments) == [("child", 0, 3)]
        inner = await (await env.client.get(child.to)).timeline()
        assert [one.name for one in inner.steps if one.kind is StepKind.ACTIVITY] == ["act"] * 3


async def test_a_chain_is_seen_run_by_run() -> None:
    async with world(counts) as env:
        first = await ended(env, counts, 1)
        found = await first.timeline()
        assert (found.run_id, found.state) == (first.run_id, "continued")
        assert found.continued_as is not None
        last = await (await env.client.get_run(found.continued_as)).timeline()
        assert (last.state, last.continued_as) == ("completed", None)
        assert last.steps[0].input == [0]


async def test_the_next_try_of_a_workflow_waits_for_its_time() -> None:
    async with world(fails, act) as env:
        broken["x"] = 3  # all attempts of the first run
        before = env.now
        handle = await ended(env, fails, "x", retry=Retry(attempts=2, first=10, jitter=0))
        first = await handle.timeline()
        assert first.continued_as is not None
        second = await (await env.client.get_run(first.continued_as)).timeline()
        assert drawn(before, second.segments) == [("backoff", 15, 25), ("running", 25, 26)]


async def test_a_job_is_a_run_like_any_other() -> None:
    async with jobs(mail) as env:
        broken["ada"] = 2
        before = env.now
        handle = await env.enqueue(mail, "ada", delay=3)
        await handle.result()
        found = await handle.timeline()
        assert drawn(before, found.segments) == [
            ("delayed", 0, 3),
            ("running", 3, 4),
            ("backoff", 4, 8),
            ("running", 8, 9),
            ("backoff", 9, 17),
            ("running", 17, 18),
        ]
        assert found.seconds[SegmentKind.RUNNING] == pytest.approx(3, abs=0.1)
        assert [bool(one.error) for one in found.steps[1].attempts] == [True, True, False]


async def test_what_a_fork_kept_has_the_attempts_of_the_run_that_made_them() -> None:
    async with world(order, act) as env:
        broken["reserve"] = 1
        handle = await ended(env, order, "ship", id="one")
        copy = await handle.fork("two", at=1)
        await copy.result()
        again = await copy.fork("three", at=3)
        await again.result()
        # What was pending at the point, and has its result by then, is kept, too.
        for one, kept in ((copy, [True, True, True, False]), (again, [True, True, True, True])):
            found = await one.timeline()
            steps = [each for each in found.steps if each.kind in (StepKind.START, StepKind.ACTIVITY)]
            assert [each.kept for each in steps] == kept
            assert [bool(each.error) for each in steps[1].attempts] == [True, False]
            assert SegmentKind.BACKOFF not in found.seconds
        await env.client.select(workflow=order, id_prefix="one").delete()
        reserve = (await copy.timeline()).steps[1]
        assert ([one.number for one in reserve.attempts], reserve.tries) == ([2], 2)  # the others are gone with it


async def test_a_retry_does_not_count_the_attempts_of_the_run_before() -> None:
    async with world(order, act) as env:
        broken["ship"] = 3
        handle = await env.start(order, "ship", id="one")
        with pytest.raises(RunFailed):
            await handle.result()
        first = handle.run_id
        await handle.retry("it is up again")
        await handle.result()
        ship = (await handle.timeline()).steps[3]
        assert (ship.kept, ship.tries, len(ship.attempts)) == (False, 1, 1)
        found = await handle.diff()
        assert (found.left.run_id, found.right.run_id) == (first, handle.run_id)
        assert found.same == 3
        assert [pair.differs for pair in found.steps[found.same :]] == [
            ["output", "error", "state", "tries"],
            ["step", "output", "error", "state"],
        ]


@workflow
async def gives_up() -> str:
    with suppress(TimeoutError):
        async with asyncio.timeout(5):
            await act("slow", 50)
    with suppress(TimeoutError):
        async with asyncio.timeout(5):
            await ask("ada")
    return await act("last", 50)


async def test_an_attempt_that_the_code_gave_up_has_no_worker() -> None:
    async with world(gives_up, act, ask) as env:
        handle = await env.start(gives_up)
        await env.advance(30)
        slow, asked, last = await handle.attempts()
        for over in (slow, asked):
            assert (over.outside, over.worker, over.error) == (False, None, None)
            assert over.started_at is not None
            assert over.ended_at is not None
            assert (over.ended_at - over.started_at).total_seconds() == pytest.approx(5, abs=0.1)
        assert (last.ended_at, last.worker is None) == (None, False)


async def test_a_call_that_goes_on_in_another_run_has_no_time_before_that() -> None:
    async with world(order, act) as env:
        broken["reserve"] = 1
        handle = await env.start(order, "ship", id="one")
        await env.advance(2)
        await handle.terminate()
        await env.advance(60)
        before = env.now
        await handle.retry()
        await handle.result()
        found = await handle.timeline()
        assert drawn(before, found.steps[1].segments) == [("running", 0, 1)]
        assert [bool(one.error) for one in found.steps[1].attempts] == [True, False]
        assert found.steps[1].segments[0].start == found.steps[1].began_at


async def test_a_fork_is_compared_with_its_origin() -> None:
    async with world(order, act) as env:
        handle = await ended(env, order, "ship", id="one")
        copy = await handle.fork("two", output={2: "free"})
        await copy.result()
        found = await copy.diff()
        assert (found.same, [pair.differs for pair in found.steps if not pair.is_same]) == (2, [["output"]] * 2)
        assert (await handle.diff(copy)).left.id == "two"


async def test_what_cannot_be_compared_says_why() -> None:
    async with world(order, fails, act) as env:
        one, other = await ended(env, order, "ship"), await ended(env, fails, "x")
        with pytest.raises(InvalidInput, match="not forked from another"):
            await one.diff()
        with pytest.raises(InvalidInput, match=r"'order', and run .* 'fails'"):
            await other.diff(one)
        with pytest.raises(InvalidInput, match="with itself"):
            await one.diff(one)
        with pytest.raises(InvalidInput, match="is no run id"):
            await env.client.get_run("nobody")
        with pytest.raises(UnknownRun):
            await env.client.get_run(new_run_id())


async def test_a_run_that_is_gone_has_no_timeline() -> None:
    async with world(order, act) as env:
        handle = await ended(env, order, "ship")
        await handle.delete()
        with pytest.raises(UnknownRun):
            await handle.timeline()


passed: list[str] = []
"""Keys, as activities were given them."""


@activity(retry=Retry(attempts=1))
async def pay(what: str) -> str:
    passed.append(activity_info().key)
    if broken.get(what, 0) > 0:
        broken[what] -= 1
        raise ConnectionError(what)
    return what


@workflow
async def buys(what: str) -> list[str]:
    return [await pay("deposit"), await pay(what)]


@job
async def pays(what: str) -> str:
    passed.append(activity_info().key)
    return what


async def keys(handle: Handle[Any]) -> list[str]:
    return [one.key for one in (await handle.timeline()).steps if one.kind is StepKind.ACTIVITY]


async def test_each_call_shows_the_key_that_its_attempts_were_given() -> None:
    passed.clear()
    broken["lamp"] = 1
    async with Environment(workflows=[buys], activities=[pay], jobs=[pays]) as env:
        handle = await env.start(buys, "lamp", id="one")
        with pytest.raises(RunFailed):
            await handle.result()
        assert await keys(handle) == passed
        await handle.retry()
        await handle.result()
        assert await keys(handle) == [passed[0], passed[2]] == passed[:2]  # as before: it is the same call
        copy = await handle.fork("two", input={2: ["sofa"]})
        await copy.result()
        assert await keys(copy) == [passed[0], passed[3]]
        assert passed[3] != passed[2]
        done = await env.client.enqueue(pays, "bill")
        await done.result()
        assert await keys(done) == passed[4:]


async def test_a_call_in_another_queue_has_one_key_in_both_runs() -> None:
    passed.clear()

    @workflow
    async def sends() -> str:
        return await pay.with_options(queue="till")("lamp")

    async with Environment(workflows=[sends], activities=[pay], queues=["default", "till"]) as env:
        handle = await env.start(sends)
        await handle.result()
        sent = next(one for one in (await handle.timeline()).steps if one.to)
        assert [sent.key] == passed == await keys(await env.client.get(sent.to))
