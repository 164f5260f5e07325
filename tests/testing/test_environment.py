"""The environment: all that a worker has, on either store, and a word about whoever waits in vain."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from batuta import App, InvalidInput, Queue, RunState, activity, workflow
from batuta.authoring.history.steps import SegmentKind, StepKind
from batuta.errors import DuplicateDefinition
from batuta.testing import Environment, Stuck, in_virtual_time, run
from tests.testing.shop import app, approval, approve, family, letter, order, reserve

STORES = pytest.mark.parametrize("store", ["memory", "sqlite", "postgres"])


@STORES
@in_virtual_time
async def test_workflows_activities_jobs_and_schedules_of_an_app_run_in_it(store: Any) -> None:
    async with Environment.of(app, store=store) as env:
        assert await env.run(order, "tea") == "1 x tea, charged 4000, tea is on its way"
        assert await env.run(letter, "ada") == "dear ada"
        batch = await env.enqueue_many([letter.call("bob"), letter.call("cy")])
        assert [await handle.result() for handle in batch] == ["dear bob", "dear cy"]
        await env.advance(timedelta(days=3))
        slots = await env.client.list(id_prefix="daily:", kind="any")
        assert len(slots.runs) == 4  # a day has passed in the order
        assert await (await env.get(slots.runs[0].id, letter)).result() == "dear all"
        assert (await env.schedules.get("daily")).id == "daily"


@STORES
@in_virtual_time
async def test_signals_crashes_and_months_work_on_either_store(store: Any) -> None:
    async with Environment(workflows=[approval, family, order], activities=app.activities, store=store) as env:
        handle = await env.start(approval)
        await env.advance(timedelta(days=40))
        assert (await handle.describe()).state is RunState.WAITING
        await env.crash()
        await handle.signal(approve, True)
        assert await handle.result() == "approved"
        ends = await env.run(family, ["a", "b", "c"])
        assert [end[:5] for end in ends] == ["1 x a", "1 x b", "1 x c"]


@STORES
@in_virtual_time
async def test_limits_of_queues_hold_in_virtual_time(store: Any) -> None:
    async with Environment(jobs=[letter], queues=[Queue("default", concurrency=1)], store=store) as env:
        batch = await env.enqueue_many([letter.call(str(number)) for number in range(5)])
        assert [await handle.result() for handle in batch] == [f"dear {number}" for number in range(5)]


async def test_on_an_ordinary_loop_a_file_is_worked_on_in_real_time() -> None:
    async with Environment(jobs=[letter], store="sqlite") as env:
        assert await env.run(letter, "ada") == "dear ada"


async def test_a_store_that_an_environment_cannot_have_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'memory', 'sqlite' or 'postgres'"):
        Environment(store="oracle")  # type: ignore[arg-type]  # that is what is refused
    with pytest.raises(InvalidInput, match="seed= cannot be given with store='postgres'"):
        Environment(store="postgres", seed=1)


@STORES
def test_a_test_that_waits_in_vain_is_told_where_and_what_every_run_waits_for(store: Any) -> None:
    async def main() -> None:
        async with Environment(workflows=[approval], store=store) as env:
            await env.run(approval, id="for-the-boss")

    with pytest.raises(Stuck) as caught:
        run(main())
    told = str(caught.value)
    assert "main waits at test_environment.py:" in told
    assert "run 'for-the-boss' of 'approval' is waiting, waits for signal 'approve' at shop.py:" in told


def test_a_test_that_waits_for_a_parked_run_is_told_why_it_is() -> None:
    @workflow
    async def forgetful() -> None:
        await asyncio.get_running_loop().create_future()

    async def main() -> None:
        async with Environment(workflows=[forgetful]) as env:
            await env.run(forgetful)

    with pytest.raises(Stuck, match=r"is needs_code: .*no activity, timer or message can wake it"):
        run(main())


def test_a_test_that_waits_for_a_queue_without_worker_is_told_so() -> None:
    async def main() -> None:
        async with Environment(workflows=[approval]) as env:
            await env.run(approval, queue="elsewhere")

    with pytest.raises(Stuck, match="is pending: no worker here has taken it from queue 'elsewhere'"):
        run(main())


@in_virtual_time
async def test_an_environment_that_cannot_begin_leaves_nothing_behind() -> None:
    with pytest.raises(InvalidInput, match="two activities are named"):
        async with Environment.of(App(activities=[reserve, app.activities[2]]), letter, letter.with_options()):
            raise AssertionError


@STORES
@in_virtual_time
async def test_an_activity_that_was_not_given_is_named(store: Any) -> None:
    async with Environment(workflows=[order], store=store) as env:
        with pytest.raises(Stuck, match="activity 'reserve' is not known here"):
            await env.run(order, "tea")


@STORES
@in_virtual_time
async def test_a_crash_is_seen_on_the_timeline_as_a_lost_attempt(store: Any) -> None:
    @activity
    async def slow() -> str:
        await asyncio.sleep(60)
        return "done"

    @workflow
    async def calls() -> str:
        return await slow()

    async with Environment(workflows=[calls], activities=[slow], store=store) as env:
        handle = await env.start(calls)
        await env.advance(10)
        await env.crash()
        assert await handle.result() == "done"
        [step] = [one for one in (await handle.timeline()).steps if one.kind is StepKind.ACTIVITY]
        assert [str(one.kind) for one in step.segments if one.kind is not SegmentKind.QUEUED] == ["lost", "running"]
        assert [(one.number, one.lost) for one in step.attempts] == [(1, True), (1, False)]
        assert await handle.attempts() == step.attempts


@STORES
@in_virtual_time
async def test_a_crash_counts_as_a_death_as_kill_9_does(store: Any) -> None:
    tried: list[int] = []

    @activity
    async def hangs() -> None:
        tried.append(1)
        await asyncio.sleep(3600)

    @workflow
    async def deadly() -> str:
        await hangs()
        return "survived"

    @workflow
    async def moves() -> str:
        for _ in range(10):
            await asyncio.sleep(1)
        return "survived"

    async with Environment(workflows=[deadly, moves], activities=[hangs], store=store) as env:
        poisoned, moving = await env.start(deadly), await env.start(moves)
        for deaths in (0, 0, 1, 2, 3, 4):  # the first worker came further than where it had begun: its start
            await env.advance(1.5)
            assert (await poisoned.describe()).deaths == deaths
            await env.crash()
        found = await poisoned.describe()
        assert (found.state, found.deaths) == (RunState.POISONED, 5)
        assert len(tried) == 6
        assert await moving.result() == "survived"
        await poisoned.retry()
        assert await poisoned.result() == "survived"


@in_virtual_time
async def test_a_deploy_that_is_refused_leaves_the_worker_as_it_was() -> None:
    @workflow
    async def two() -> int:
        return 2

    @workflow(name=two.name)
    async def another() -> int:
        return 3

    async with Environment(workflows=[two]) as env:
        with pytest.raises(InvalidInput, match="no_such"):
            await env.deploy(no_such=1)
        with pytest.raises(DuplicateDefinition):
            await env.deploy(workflows=[two, another])
        assert await env.run(two) == 2
        await env.deploy()
        assert await env.run(two) == 2
