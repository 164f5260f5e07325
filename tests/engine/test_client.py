"""The client: ids, what exists already, lists, pages and counts."""

import asyncio
from datetime import timedelta

import pytest

from batuta import AlreadyStarted, InvalidInput, RunState, UnknownRun, activity, workflow
from tests.engine.kit import world


@activity
async def echo(text: str) -> str:
    return text


@workflow
async def greets(name: str) -> str:
    return await echo(f"hello {name}")


@workflow
async def sleeps(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "slept"


async def test_an_id_that_is_taken_gives_the_run_that_has_it() -> None:
    async with world(greets, sleeps, echo) as env:
        first = await env.start(sleeps, 3600, id="one")
        second = await env.start(sleeps, 7200, id="one")
        assert first.run_id == second.run_id
        assert await second.result() == "slept"
        third = await env.start(sleeps, 1, id="one")
        assert third.run_id == first.run_id
        assert await env.client.count() == 1


async def test_reject_refuses_an_id_that_is_taken_open_or_closed() -> None:
    async with world(sleeps) as env:
        handle = await env.start(sleeps, 3600, id="one")
        await env.settle()
        with pytest.raises(AlreadyStarted, match="'one' exists and is waiting"):
            await env.start(sleeps, 3600, id="one", if_exists="reject")
        await handle.result()
        with pytest.raises(AlreadyStarted, match="'one' exists and is completed"):
            await env.start(sleeps, 3600, id="one", if_exists="reject")


async def test_restart_begins_anew_once_the_run_is_closed() -> None:
    async with world(sleeps) as env:
        first = await env.start(sleeps, 3600, id="one")
        with pytest.raises(AlreadyStarted):
            await env.start(sleeps, 1, id="one", if_exists="restart")
        await first.result()
        second = await env.start(sleeps, 1, id="one", if_exists="restart")
        assert second.run_id != first.run_id
        assert await second.result() == "slept"
        assert (await env.client.get("one")).run_id == second.run_id
        assert await first.result() == "slept"


async def test_a_hundred_starts_of_one_id_at_once_make_one_run() -> None:
    async with world(sleeps) as env:
        handles = await asyncio.gather(*(env.start(sleeps, 60, id="one") for _ in range(100)))
        assert len({handle.run_id for handle in handles}) == 1
        assert {await handle.result() for handle in handles} == {"slept"}


async def test_without_an_id_every_start_is_another_run() -> None:
    async with world(greets, echo) as env:
        handles = [await env.start(greets, "you") for _ in range(3)]
        assert len({handle.id for handle in handles}) == 3


async def test_an_unknown_id_is_an_error_that_names_it() -> None:
    async with world(greets, echo) as env:
        with pytest.raises(UnknownRun, match="no run 'nobody'"):
            await env.client.get("nobody")


async def test_a_delayed_start_begins_when_it_is_due() -> None:
    async with world(greets, echo) as env:
        before = env.now
        handle = await env.start(greets, "you", delay=3600)
        await env.settle()
        assert (await handle.describe()).state is RunState.PENDING
        assert await handle.result() == "hello you"
        assert timedelta(hours=1) <= env.now - before < timedelta(hours=1, seconds=1)


async def test_a_run_of_another_queue_is_left_alone() -> None:
    async with world(greets, echo, queues=["quick"]) as env:
        slow = await env.start(greets, "slow", queue="slow")
        quick = await env.start(greets, "quick", queue="quick")
        assert await quick.result() == "hello quick"
        assert (await slow.describe()).state is RunState.PENDING


async def test_urgent_runs_are_claimed_first() -> None:
    order: list[str] = []

    @workflow
    async def notes(name: str) -> None:
        order.append(name)

    async with world(echo, max_runs=1) as env:
        handles = [await env.client.start("notes", str(n), priority=n) for n in (0, 5, 9, 5)]
        await env.deploy(workflows=[notes])
        for handle in handles:
            await handle.result()
        assert [*dict.fromkeys(order)] == ["9", "5", "0"]


async def test_describe_tells_all_about_a_run() -> None:
    async with world(greets, echo) as env:
        handle = await env.start(greets, "you", id="g", tags={"team": "a"}, memo={"note": [1]}, timeout=60, priority=3)
        await handle.result()
        found = await handle.describe()
        assert (found.id, found.workflow, found.state, found.entries) == ("g", "greets", RunState.COMPLETED, 2)
        assert (found.tags, found.memo, found.priority) == ({"team": "a"}, {"note": [1]}, 3)
        assert found.created_at is not None
        assert found.deadline == found.created_at + timedelta(seconds=60)
        assert found.closed_at is not None
        assert found.wake_at is None


async def test_the_journal_shows_input_output_attempts_and_times_in_order() -> None:  # covers B-02
    async with world(greets, echo) as env:
        handle = await env.start(greets, "you")
        await handle.result()
        started, done = await handle.journal()
        assert (started.ord, done.ord) == (0, 1)
        assert bytes(started.body.value) == b'["you"]'  # type: ignore[arg-type]  # a start has one
        assert bytes(started.body.commands[0].value) == b'["hello you"]'  # type: ignore[arg-type]  # an activity has one
        assert bytes(done.body.value) == b'"hello you"'  # type: ignore[arg-type]  # a result has one
        assert (done.body.name, done.body.attempts) == ("echo", 1)
        assert done.body.started_at > 0
        assert started.at <= done.at
        assert started.body.start.python  # type: ignore[union-attr]  # a start has one


async def test_runs_are_listed_newest_first_in_pages() -> None:
    async with world(greets, echo) as env:
        ids = [(await env.start(greets, "x", id=f"run-{n}")).id for n in range(7)]
        seen: list[str] = []
        cursor = None
        while True:
            page = await env.client.list(limit=3, cursor=cursor)
            seen += [run.id for run in page.runs]
            cursor = page.cursor
            if cursor is None:
                break
        assert seen == ids[::-1]


async def test_runs_are_filtered_and_counted() -> None:
    async with world(greets, sleeps, echo) as env:
        await env.run(greets, "a", id="a-1", tags={"team": "x"})
        await env.run(greets, "b", id="a-2", tags={"team": "y"})
        await env.start(sleeps, 3600, id="b-1")
        await env.settle()
        client = env.client
        assert await client.count() == 3
        assert await client.count(state="completed") == 2
        assert await client.count(states=["completed", "waiting"]) == 3
        assert await client.count(workflow=sleeps) == await client.count(workflow="sleeps") == 1
        assert await client.count(id_prefix="a-") == 2
        assert [run.id for run in (await client.list(tags={"team": "y"})).runs] == ["a-2"]
        assert await client.count(created_after=env.now) == 0
        assert await client.count(created_before=env.now + timedelta(seconds=1)) == 3


@pytest.mark.parametrize("limit", [0, -1, 1001])
async def test_a_page_has_a_sensible_size(limit: int) -> None:
    async with world(greets, echo) as env:
        with pytest.raises(InvalidInput, match="from 1 to 1000"):
            await env.client.list(limit=limit)


async def test_a_state_that_does_not_exist_is_refused() -> None:
    async with world(greets, echo) as env:
        with pytest.raises(InvalidInput, match="the states are"):
            await env.client.count(state="done")


async def test_a_start_without_a_worker_waits_for_one() -> None:
    async with world(echo) as env:
        handle = await env.client.start("greets", "you")
        await env.settle()
        assert (await handle.describe()).state is RunState.PENDING
        await env.deploy(workflows=[greets])
        assert await handle.result() == "hello you"
