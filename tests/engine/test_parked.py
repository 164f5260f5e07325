"""Parked runs: tried again when somebody asks for it, and never with a reason that is not true any more."""

import asyncio

import pytest

from batuta import NotParked, RunClosed, RunState, activity, workflow
from tests.engine.kit import parked, world

broken = True


@activity
async def echo(text: str) -> str:
    return text


@workflow
async def depends_on_the_weather() -> str:
    if broken:
        asyncio.get_running_loop().run_in_executor(None, print)
    return await echo("fine")


@workflow(name="changes")
async def before() -> str:
    await echo("one")
    await asyncio.sleep(3600)
    return "before"


@workflow(name="changes")
async def after() -> str:
    await asyncio.sleep(3600)
    await echo("one")
    return "after"


@workflow(name="changes")
async def both() -> str:
    first = await echo("one")
    await asyncio.sleep(3600)
    await asyncio.sleep(3600)
    return f"{first} in the end"


@workflow
async def other() -> None:
    pass


async def test_a_parked_run_is_tried_again_by_the_same_code_when_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world(depends_on_the_weather, echo) as env:
        handle = await env.start(depends_on_the_weather)
        await parked(env, handle)
        await handle.retry()
        again = await parked(env, handle)
        assert "run_in_executor" in again
        waiting = asyncio.ensure_future(handle.result())
        monkeypatch.setattr("tests.engine.test_parked.broken", False)
        await handle.retry()
        assert await waiting == "fine"
        with pytest.raises(RunClosed):
            await handle.retry()


async def test_a_run_that_goes_on_by_itself_is_not_tried_again() -> None:
    async with world(before, echo) as env:
        handle = await env.start(before)
        await env.settle()
        with pytest.raises(NotParked, match="is waiting: only a parked run"):
            await handle.retry()


async def test_a_run_that_goes_on_has_no_old_reason() -> None:
    async with world(before, echo) as env:
        handle = await env.start(before)
        await env.settle()
        await env.deploy([after])
        await env.advance(3601)
        assert "recorded: activity echo" in await parked(env, handle)
        await env.deploy([both])
        await env.settle()
        seen = await handle.describe()
        assert (seen.state, seen.reason) == (RunState.WAITING, "")
        assert (await env.client.list()).runs[0].reason == ""
        assert await handle.result() == "one in the end"


async def test_after_a_rollback_a_run_says_that_no_live_worker_may_take_it() -> None:
    async with world(before, echo) as env:
        handle = await env.start(before)
        await env.settle()
        await env.deploy([after])
        await env.advance(3601)
        reason = await parked(env, handle)
        assert "needs code: every live worker with workflow 'changes' has code that this run was parked on" in reason
        assert "batuta runs retry" in reason
        await env.deploy([other])
        assert "no live worker of this queue has workflow 'changes'" in (await handle.describe()).reason
        await env.deploy([both])
        await env.settle()
        await env.deploy([after])
        await env.advance(3601)
        seen = await handle.describe()
        assert seen.state is RunState.WAITING
        assert seen.reason.startswith("needs code: every live worker with workflow 'changes'")
        await env.worker.stop()
        assert (await handle.describe()).reason == "no live worker serves queue 'default'"
        await env.deploy([both])
        assert await handle.result() == "one in the end"
