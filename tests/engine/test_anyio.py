"""anyio inside workflows: its task groups and cancel scopes work, and replay."""

import asyncio
import inspect
from typing import Any

import anyio
import pytest

from batuta import RunFailed, RunState, activity, saga, workflow
from batuta.engine.machine.loop import RunLoop
from batuta.errors import Forbidden
from tests.engine.kit import commands, journal_of, parked, replay, world

seen: list[str] = []


@pytest.fixture(autouse=True)
def _afresh() -> None:
    seen.clear()


@activity
async def echo(text: str) -> str:
    return text


@activity
async def undo(name: str) -> None:
    seen.append(name)


async def test_a_task_group_waits_for_its_tasks() -> None:
    @workflow
    async def group() -> list[str]:
        found: list[str] = []

        async def fetch(name: str) -> None:
            found.append(await echo(name))

        async with anyio.create_task_group() as tasks:
            for name in ("a", "b", "c"):
                tasks.start_soon(fetch, name)
            tasks.start_soon(echo, "d")
        return found

    async with world(group, echo) as env:
        assert await env.run(group) == ["a", "b", "c"]


async def test_a_task_group_cancels_the_others_when_one_fails_and_lets_them_clean_up() -> None:
    @workflow
    async def group() -> None:
        async def lives(name: str) -> None:
            try:
                await anyio.sleep(3600)
            finally:
                with anyio.CancelScope(shield=True):
                    await undo(name)

        async with anyio.create_task_group() as tasks:
            for name in ("a", "b", "c"):
                tasks.start_soon(lives, name)
            await anyio.sleep(1)
            raise PermissionError("no")

    async with world(group, undo) as env:
        with pytest.raises(RunFailed) as caught:
            await env.run(group)
    assert isinstance(caught.value.__cause__, ExceptionGroup)
    assert sorted(seen) == ["a", "b", "c"]


async def test_move_on_after_and_fail_after_are_durable_timers() -> None:
    @workflow
    async def waits() -> list[str]:
        found = []
        with anyio.move_on_after(60) as scope:
            await anyio.sleep(3600)
        found.append(f"moved on {scope.cancelled_caught}")
        try:
            with anyio.fail_after(60):
                await asyncio.sleep(3600)
        except TimeoutError:
            found.append("failed")
        return found

    async with world(waits) as env:
        handle = await env.start(waits)
        assert await handle.result() == ["moved on True", "failed"]
        assert [one for one in await commands(handle) if one != "complete"] == ["timer"] * 4


async def test_a_cancelled_run_is_cancelled_within_a_task_group() -> None:
    @workflow
    async def group() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.sleep, 3600)
            await anyio.sleep(3600)

    async with world(group) as env:
        handle = await env.start(group)
        await env.settle()
        await handle.cancel()
        await env.settle()
        assert (await handle.describe()).state is RunState.CANCELLED


@workflow
async def nested_scopes() -> None:
    async def lives(name: str) -> None:
        with anyio.CancelScope():
            try:
                await anyio.sleep(3600)
            finally:
                seen.append(name)

    async with anyio.create_task_group() as tasks:
        for number in range(12):
            tasks.start_soon(lives, f"member {number}")
        await anyio.sleep(1)
        tasks.cancel_scope.cancel()


async def test_nested_scopes_are_cancelled_in_one_order() -> None:
    async with world(nested_scopes) as env:
        handle = await env.start(nested_scopes)
        await handle.result()
        entries = await journal_of(env, handle)
        orders = set()
        for _ in range(50):
            seen.clear()
            replay(nested_scopes, entries).tear_down()
            orders.add(tuple(seen))
    assert orders == {tuple(f"member {number}" for number in range(12))}


@pytest.mark.parametrize("way", ["deadline", "group"])
async def test_a_saga_in_a_cancelled_scope_is_undone(way: str) -> None:
    @workflow
    async def books(way: str) -> str:
        async def trip() -> None:
            async with saga() as undoing:
                undoing(undo, await echo("flight"))
                undoing(undo, await echo("hotel"))
                await anyio.sleep(3600)

        if way == "deadline":
            with anyio.move_on_after(60) as scope:
                await trip()
            return await echo(f"moved on {scope.cancelled_caught}")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(trip)
            await anyio.sleep(60)
            tasks.cancel_scope.cancel()
        return await echo("cancelled")

    async with world(books, echo, undo) as env:
        assert await env.run(books, way) == ("moved on True" if way == "deadline" else "cancelled")
        assert seen == ["hotel", "flight"]


async def test_tasks_of_asyncio_clean_up_durably_in_a_cancelled_scope() -> None:
    @workflow
    async def mixes() -> str:
        async def holds(name: str) -> None:
            try:
                await asyncio.sleep(3600)
            finally:
                await undo(name)
                await asyncio.sleep(60)
                await undo(f"{name} again")

        with anyio.move_on_after(60):
            async with asyncio.TaskGroup() as group:
                group.create_task(holds("a"))
        return await echo("done")

    async with world(mixes, echo, undo, always_replay=True) as env:
        handle = await env.start(mixes)
        await env.advance(61)
        await env.crash()
        assert await handle.result() == "done"
        assert seen == ["a", "a again"]


async def test_code_that_never_leaves_a_cancelled_scope_is_parked_when_nothing_can_end_it() -> None:
    @workflow
    async def stays() -> None:
        with anyio.move_on_after(60):
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    continue

    async with world(stays) as env:
        handle = await env.start(stays)
        await env.advance(61)
        assert "waits, and no activity" in await parked(env, handle)


async def test_a_loop_of_a_run_answers_or_refuses_by_name_whatever_a_loop_can_be_asked() -> None:
    @workflow
    async def asks(name: str) -> str:
        loop: Any = asyncio.get_running_loop()
        method = getattr(loop, name)
        arguments = [None] * sum(
            one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
            for one in inspect.signature(getattr(asyncio.AbstractEventLoop, name)).parameters.values()
        )
        try:
            answer = method(*arguments[1:])
        except Forbidden:
            return "refused"
        except NotImplementedError:
            return "not implemented"
        if inspect.isawaitable(answer):
            close = getattr(answer, "close", None)
            if close is not None:
                close()
        return "answered"

    names = [name for name in vars(asyncio.AbstractEventLoop) if not name.startswith("_")]
    assert [name for name in names if getattr(RunLoop, name) is vars(asyncio.AbstractEventLoop)[name]] == []
    async with world(asks) as env:
        for name in ("get_task_factory", "get_exception_handler", "get_debug", "is_running", "time"):
            assert await env.run(asks, name) == "answered"
        for name in ("set_task_factory", "set_exception_handler", "set_debug", "set_default_executor"):
            assert f"loop.{name}()" in await parked(env, await env.start(asks, name))
