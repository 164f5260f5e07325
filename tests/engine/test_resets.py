"""Resets: another run goes on from a point in the place of the first."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from batuta import (
    InvalidFork,
    Retry,
    RunFailed,
    RunState,
    RunTimedOut,
    activity,
    continue_as_new,
    job,
    workflow,
)
from batuta.clock import SECOND
from batuta.errors import RunMoved
from batuta.journal.audit import Act
from batuta.journal.forks import Fork
from batuta.journal.store import ForkOutcome
from tests.engine.forkkit import act, add, broken, executed, forget, go, is_sound, keys, order
from tests.engine.kit import jobs, world


@pytest.fixture(autouse=True)
def _afresh() -> None:
    forget()


@workflow
async def waits() -> list[Any]:
    first = await act("first")
    said = await go.wait()
    second = await act("second")
    return [first, said, second]


async def test_an_open_run_is_reset_and_its_signals_are_read_again() -> None:
    @workflow
    async def talks() -> list[str]:
        one = await go.wait()
        await act("between")
        return [one, await go.wait(), await go.wait()]

    async with world(talks, act) as env:
        handle = await env.start(talks, id="t")
        await handle.signal(go, "a")
        await handle.signal(go, "b")
        await env.settle()
        before = handle.run_id
        await handle.reset(0, reason="from the top")
        assert handle.run_id != before
        await handle.signal(go, "c")
        assert await handle.result() == ["a", "b", "c"]
        old = await env.store.get_run(before)
        assert (old.state, old.reason) == (RunState.TERMINATED, "from the top")
        assert executed == [("between", 1), ("between", 1)]
        assert len(keys["between"]) == 1
        await is_sound(env)


async def test_a_waiting_caller_gets_the_result_of_the_reset_run() -> None:
    async with world(waits, act) as env:
        handle = await env.start(waits, id="w")
        waiting = asyncio.ensure_future((await env.get("w", waits)).result())
        await env.settle()
        await handle.reset(1)
        await handle.signal(go, "now")
        assert await waiting == [1, "now", 1]


async def test_a_completed_run_can_be_reset() -> None:
    async with world(order, act) as env:
        handle = await env.start(order, 5, id="order-1")
        await handle.result()
        await handle.reset(2)
        assert await handle.result() == [5, 10, 15]
        assert Counter(name for name, _ in executed) == {"reserve": 1, "charge": 1, "ship": 1}


async def test_a_reset_takes_edits_too() -> None:
    broken.add("charge")
    async with world(order, act) as env:
        handle = await env.start(order, 5, id="order-1")
        with pytest.raises(RunFailed):
            await handle.result()
        await handle.reset(1, output={2: 11}, reason="charged by hand")
        assert await handle.result() == [5, 11, 15]
        await is_sound(env)


async def test_a_reset_of_what_was_continued_is_of_the_last_run() -> None:
    @workflow
    async def counts(n: int) -> int:
        await act(f"step {n}")
        if n < 3:
            continue_as_new(n + 1)
        return await act("last", n)

    broken.add("last")
    async with world(counts, act) as env:
        handle = await env.start(counts, 1, id="c")
        with pytest.raises(RunFailed):
            await handle.result()
        broken.clear()
        await handle.retry()
        assert await handle.result() == 3
        assert Counter(name for name, _ in executed) == {"step 1": 1, "step 2": 1, "step 3": 1, "last": 2}
        again = await env.get("c", counts)
        assert (await again.describe()).run_id == handle.run_id
        await is_sound(env)


async def test_a_run_that_goes_on_after_a_retry_can_continue_as_new() -> None:
    @workflow
    async def counts(n: int) -> int:
        await act(f"step {n}")
        if n < 3:
            continue_as_new(n + 1)
        return n

    broken.add("step 2")
    async with world(counts, act) as env:
        old = await env.start(counts, 1, id="c")
        with pytest.raises(RunFailed):
            await old.result()
        broken.clear()
        await (await env.get("c")).retry()
        assert await old.result() == 3
        await is_sound(env)


async def test_times_begin_anew() -> None:
    @activity(retry=Retry(attempts=1), total_timeout=5, start_timeout=5)
    async def quick() -> str:
        if "quick" in broken:
            raise ConnectionError("away")
        return "quick"

    @workflow
    async def hurried() -> str:
        return await quick()

    broken.add("quick")
    async with world(hurried, quick) as env:
        handle = await env.start(hurried, id="h", timeout=30, execution_timeout=60)
        with pytest.raises(RunFailed):
            await handle.result()
        broken.clear()
        await env.advance(1000)
        await handle.retry()
        assert await handle.result() == "quick"


async def test_times_of_what_follows_and_of_a_fork_begin_anew_too() -> None:
    @workflow
    async def slow(n: int) -> int:
        await act("charge")
        if n:
            continue_as_new(n - 1)
        await asyncio.sleep(30)
        return n

    broken.add("charge")
    async with world(slow, act) as env:
        handle = await env.start(slow, 1, id="h", execution_timeout=60)
        with pytest.raises(RunFailed):
            await handle.result()
        broken.clear()
        await env.advance(1000)
        await handle.fork("copy", at=0)
        copy = await env.store.get("copy")
        assert copy.deadline == copy.created_at + 60 * SECOND
        await handle.retry()
        assert await handle.result() == 0


async def test_a_run_that_timed_out_goes_on_where_it_stood() -> None:
    async with world(waits, act) as env:
        handle = await env.start(waits, id="w", timeout=10)
        with pytest.raises(RunTimedOut):
            await handle.result()
        await handle.retry()
        await handle.signal(go, "late")
        assert await handle.result() == [1, "late", 1]
        assert [name for name, _ in executed] == ["first", "second"]
        await is_sound(env)


async def test_a_run_that_never_began_begins_after_a_retry() -> None:
    async with world(order, act) as env:
        handle = await env.start(order, 5, id="o", delay=1000)
        await handle.terminate("not now")
        await handle.retry()
        assert await handle.result() == [5, 10, 15]
        await is_sound(env)


async def test_a_run_that_is_not_to_begin_yet_is_not_reset() -> None:
    ran: list[str] = []

    @job
    async def member() -> None:
        ran.append("member")

    @job
    async def last() -> None:
        ran.append("last")

    async with jobs(member, last) as env:
        batch = await env.enqueue_many([member.call().with_options(delay=1000)], on_done=last.call())
        late = await env.enqueue(member.call().with_options(delay=2000))
        paused = await env.enqueue(member.call().with_options(delay=2000))
        await paused.pause()
        assert batch.done is not None
        for handle in (batch.done, late, paused):
            with pytest.raises(InvalidFork, match="has not begun"):
                await handle.reset(-1)
        assert ran == []
        await env.advance(1500)
        assert ran == ["member", "last"]


async def test_an_update_that_was_answered_after_the_point_is_answered_again() -> None:
    @workflow
    async def sums() -> int:
        total = 0

        @add.handle
        def take(number: int) -> int:
            nonlocal total
            total += number
            return total

        await go.wait()
        return total

    async with world(sums) as env:
        handle = await env.start(sums, id="s")
        assert await handle.update(add, 2) == 2
        assert await handle.update(add, 3) == 5
        await env.settle()
        await handle.reset(0)
        await handle.signal(go, "end")
        assert await handle.result() == 5
        await is_sound(env)


async def test_a_run_that_is_paused_can_be_reset() -> None:
    async with world(waits, act) as env:
        handle = await env.start(waits, id="w")
        await env.settle()
        await handle.pause("hold on")
        await env.settle()
        await handle.reset(0)
        await handle.signal(go, "on")
        assert await handle.result() == [1, "on", 1]
        await is_sound(env)


async def test_a_reset_that_is_given_up_does_not_leave_its_run_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(forks: Sequence[Fork], act: Act) -> list[ForkOutcome]:
        return [RunMoved("w", "has moved on") for _ in forks]

    async with world(waits, act) as env:
        handle = await env.start(waits, id="w")
        await env.settle()
        monkeypatch.setattr(env.store, "fork", refuse)
        reset = asyncio.ensure_future(handle.reset(0))
        async with asyncio.timeout(20):
            while not (await env.store.get("w")).paused_at:
                await asyncio.sleep(0)
        reset.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reset
        await handle.signal(go, "on")
        assert await handle.result() == [1, "on", 1]
