"""Attempts that wait for their next try are made now when somebody asks for it."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from batuta import NotParked, Retry, RunState, activity, connect, job, workflow
from batuta.testing import Environment, in_virtual_time

STORES = pytest.mark.parametrize("store", ["memory", "sqlite", "postgres"])
HOURS = Retry(attempts=4, first=3_600.0, factor=10.0, longest=100_000.0, jitter=0)

tried: Counter[str] = Counter()
broken: set[str] = set()


@pytest.fixture(autouse=True)
def fresh() -> None:
    tried.clear()
    broken.clear()


async def attempt(what: str) -> str:
    tried[what] += 1
    if what in broken:
        raise ConnectionError("away")
    return what


@activity(retry=HOURS)
async def call(what: str) -> str:
    return await attempt(what)


@job(retry=HOURS)
async def post(what: str) -> str:
    return await attempt(what)


@workflow
async def calls_two() -> list[str]:
    return list(await asyncio.gather(call("one"), call("two")))


@STORES
@in_virtual_time
async def test_all_calls_of_a_run_that_wait_are_tried_now_and_the_policy_goes_on(store: Any) -> None:
    broken.update(("one", "two"))
    async with Environment(workflows=[calls_two], activities=[call], store=store) as env:
        began = env.now
        handle = await env.start(calls_two)
        await env.settle()
        broken.remove("one")
        await handle.retry("the bank is back")
        await env.settle()
        assert (tried["one"], tried["two"], env.now) == (2, 2, began)
        broken.clear()
        await env.advance(35_000)
        assert tried["two"] == 2, "the second wait is the longer one"
        await env.advance(2_000)
        assert await handle.result() == ["one", "two"]
        [row] = (await env.client.audit(target=str(handle.run_id))).rows
        assert (row.verb, row.reason) == ("retry", "the bank is back")


@STORES
@in_virtual_time
async def test_a_job_is_tried_now_also_after_its_worker_has_died(store: Any) -> None:
    broken.add("letter")
    async with Environment(jobs=[post], store=store) as env:
        handle = await env.enqueue(post, "letter")
        await env.settle()
        broken.clear()
        await env.crash()
        await env.settle()
        assert tried["letter"] == 1
        await handle.retry()
        assert await handle.result() == "letter"


@in_virtual_time
async def test_a_paused_run_and_one_of_which_nothing_waits_are_not_hurried() -> None:
    broken.add("letter")
    async with Environment(jobs=[post]) as env:
        handle = await env.enqueue(post, "letter")
        await env.settle()
        await handle.pause()
        await env.settle()
        with pytest.raises(NotParked, match="is paused"):
            await handle.retry()
        await handle.resume()
        await env.settle()
        later = await env.enqueue(post, "other", delay=60)
        with pytest.raises(NotParked, match="is pending"):
            await later.retry()
        assert (await later.describe()).state is RunState.PENDING
        assert tried == {"letter": 1}


async def test_a_run_that_no_worker_has_is_hurried_when_one_comes(sqlite_url: str) -> None:
    broken.add("letter")
    async with connect(sqlite_url) as client:
        async with client.worker(jobs=[post]):
            handle = await client.enqueue(post, "letter")
            async with asyncio.timeout(30):
                while not await handle.attempts():
                    await asyncio.sleep(0.01)
        await handle.retry()
        broken.clear()
        async with client.worker(jobs=[post]):
            assert await handle.result(30) == "letter"
