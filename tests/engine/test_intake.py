"""How much a worker takes from its queues."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from batuta import InvalidInput, Queue, Retry, RunState, activity_info, job, workflow
from batuta.errors import DuplicateDefinition
from batuta.testing import Environment
from tests.engine.kit import jobs

begun: list[int] = []
gate = threading.Event()


@pytest.fixture(autouse=True)
def _closed_gate() -> Iterator[None]:
    begun.clear()
    gate.clear()
    yield
    gate.set()


@job
def slow(n: int) -> int:
    begun.append(n)
    gate.wait(20)
    return n


@workflow
async def plain() -> str:
    return "done"


async def until_begun(count: int) -> None:
    async with asyncio.timeout(20):
        while len(begun) < count:
            await asyncio.sleep(0.001)


@pytest.mark.usefixtures("real_time")
async def test_a_worker_takes_no_more_jobs_than_can_begin_soon() -> None:
    async with jobs(slow, threads=2) as env:
        batch = await env.client.enqueue_many([slow.call(n) for n in range(50)])
        await until_begun(2)
        assert env.worker.session is not None
        assert len(env.worker.session.runs) == 4
        gate.set()
        assert [await handle.result() for handle in batch] == list(range(50))


@pytest.mark.usefixtures("real_time")
async def test_a_job_that_would_wait_here_waits_in_its_queue() -> None:
    async with jobs(slow, threads=2) as env:
        handles = [await env.client.enqueue(slow, n) for n in range(10)]
        await until_begun(2)
        states = [(await handle.describe()).state for handle in handles]
        assert states.count(RunState.PENDING) >= 6
        gate.set()
        assert [await handle.result() for handle in handles] == list(range(10))


@pytest.mark.usefixtures("real_time")
async def test_workflows_are_taken_though_all_places_for_jobs_are() -> None:
    async with Environment(workflows=[plain], jobs=[slow], threads=1) as env:
        await env.client.enqueue_many([slow.call(n) for n in range(20)])
        await until_begun(1)
        handle = await env.client.start(plain, delay=0.05)
        assert await handle.result() == "done"
        gate.set()


async def test_a_start_into_a_limited_queue_waits_for_its_turn() -> None:
    at_once: list[int] = []
    running: set[int] = set()

    @job
    async def one(n: int) -> None:
        running.add(n)
        at_once.append(len(running))
        await asyncio.sleep(1)
        running.discard(n)

    async with jobs(one, queues=[Queue("default", concurrency=2)]) as env:
        handles = [await env.client.enqueue(one, n) for n in range(6)]
        for handle in handles:
            await handle.result()
        assert max(at_once) == 2


async def test_a_job_that_waits_for_its_next_attempt_holds_no_place_in_its_queue() -> None:
    @job(retry=Retry(attempts=2, first=10, jitter=0))
    async def shaky(fails: bool) -> str:
        if fails and activity_info().attempt == 1:
            raise LookupError
        return "done"

    async with jobs(shaky, queues=[Queue("default", concurrency=1)]) as env:
        bad, good = await env.client.enqueue_many([shaky.call(True), shaky.call(False)])
        await env.advance(1)
        assert (await good.describe()).state is RunState.COMPLETED
        assert (await bad.describe()).state is RunState.WAITING
        assert await bad.result() == "done"


async def test_limits_that_change_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "batuta.engine")
    queue = Queue("default", concurrency=2, rate="5/s")
    async with jobs(slow, queues=[queue]) as env:
        assert "queue default change: concurrency none -> 2, rate none -> 5/s" in caplog.text
        caplog.clear()
        async with env.client.worker(jobs=[slow], queues=[Queue("default", concurrency=2)]):
            assert "change" not in caplog.text
        async with env.client.worker(jobs=[slow], queues=[Queue("default", rate=None)]):
            assert "rate 5/s -> none" in caplog.text


@pytest.mark.parametrize("queues", [[], "default", [""], [5], ["a", Queue("a", concurrency=1)]])
async def test_queues_that_cannot_be_are_refused(queues: Any) -> None:
    async with jobs(slow) as env:
        with pytest.raises((InvalidInput, DuplicateDefinition)):
            env.client.worker(jobs=[slow], queues=queues)


async def test_a_paused_queue_does_not_keep_the_worker_busy() -> None:
    @job
    async def quick() -> None:
        begun.append(1)

    async with jobs(quick) as env:
        await env.client.pause_queue("default")
        handle = await env.client.enqueue(quick)
        assert env.worker.session is not None
        before = env.worker.session._poller.claims_begun
        await env.advance(100)
        assert env.worker.session._poller.claims_begun - before < 5
        await env.client.resume_queue("default")
        await handle.result()


async def test_a_rate_does_not_keep_the_worker_busy() -> None:
    @job
    async def quick() -> None:
        begun.append(1)

    async with jobs(quick, queues=[Queue("default", rate="1/min")]) as env:
        batch = await env.client.enqueue_many([quick.call() for _ in range(3)])
        assert env.worker.session is not None
        await env.settle()
        before = env.worker.session._poller.claims_begun
        await env.advance(50)
        assert len(begun) == 1
        assert env.worker.session._poller.claims_begun - before < 60
        await env.advance(100)
        await asyncio.gather(*(handle.result() for handle in batch))
        assert len(begun) == 3


@job
async def quick(n: int) -> None:
    begun.append(n)


async def test_jobs_of_a_key_with_many_do_not_begin_before_all_those_of_one_with_few() -> None:
    async with jobs(quick) as env:
        many = [quick.call(0).with_options(key="many") for _ in range(300)]
        few = [quick.call(1).with_options(key="few") for _ in range(10)]
        batch = await env.client.enqueue_many([*many, *few])
        for handle in batch:
            await handle.result()
    assert begun.index(1) < 2
    assert 1 not in begun[20:]


async def test_a_queue_that_is_full_here_does_not_keep_the_worker_busy() -> None:
    @job
    async def long() -> None:
        begun.append(1)
        await asyncio.sleep(50)

    async with jobs(long, queues=[Queue("default", per_worker=2)]) as env:
        batch = await env.client.enqueue_many([long.call() for _ in range(6)])
        await env.settle()
        late = await env.client.enqueue(long, expires=10)
        assert env.worker.session is not None
        before = env.worker.session._poller.claims_begun
        await env.advance(40)
        assert len(begun) == 2
        assert env.worker.session._poller.claims_begun - before < 5
        await env.advance(120)
        assert [(await handle.describe()).state for handle in batch] == [RunState.COMPLETED] * 6
        assert (await late.describe()).state is RunState.TIMED_OUT
