"""The environment: all that a worker has, on either store, and a word about whoever waits in vain."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from batuta import App, InvalidInput, Queue, RunState, workflow
from batuta.testing import Environment, Stuck, in_virtual_time, run
from tests.testing.shop import app, approval, approve, family, letter, order, reserve

STORES = pytest.mark.parametrize("store", ["memory", "sqlite"])


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
    with pytest.raises(InvalidInput, match="'memory' or 'sqlite'"):
        Environment(store="postgres")  # type: ignore[arg-type]  # that is what is refused


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
