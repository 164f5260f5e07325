"""Versions of workflows: a run is taken by workers that have its version, and by no others."""

import asyncio
from typing import Any

import pytest

from batuta import InvalidInput, RunState, activity, continue_as_new, info, run_child, workflow
from batuta.errors import DuplicateDefinition
from tests.engine.arena import PATIENCE, Arena, until, until_state
from tests.engine.kit import world

begun: list[str] = []
gate = asyncio.Event()


@pytest.fixture(autouse=True)
def _afresh() -> None:
    global gate  # noqa: PLW0603 - one for each test's event loop
    begun.clear()
    gate = asyncio.Event()


@activity
async def step(name: str) -> str:
    begun.append(name)
    await gate.wait()
    return name


@workflow(name="ship", version="1")
async def ship_1(sku: str) -> str:
    return f"{await step(sku)} by post"


@workflow(name="ship", version="2")
async def ship_2(sku: str) -> str:
    return f"{await step(sku)} by drone"


async def test_old_and_new_workers_work_side_by_side(arena: Arena) -> None:
    old, new = await arena.client(), await arena.client()
    await arena.worker(old, ship_1, step)
    first = [await old.start(ship_1, f"old {n}") for n in range(5)]
    await arena.worker(new, ship_2, step)
    second = [await old.start(ship_2, f"new {n}") for n in range(5)]
    third = [await new.start(ship_1, f"late {n}") for n in range(5)]
    gate.set()
    assert [await one.result(PATIENCE) for one in first] == [f"old {n} by post" for n in range(5)]
    assert [await one.result(PATIENCE) for one in second] == [f"new {n} by drone" for n in range(5)]
    assert [await one.result(PATIENCE) for one in third] == [f"late {n} by post" for n in range(5)]


async def test_a_rolling_deploy_finishes_old_runs_on_the_old_code(arena: Arena) -> None:
    client = await arena.client()
    first = await arena.worker(client, ship_1, step)
    old = await client.start(ship_1, "a")
    await until(lambda: _is_begun("a"))
    both = await arena.worker(client, ship_1, ship_2, step)
    await first.stop(grace=0.01)
    new = await client.start(ship_2, "b")
    gate.set()
    assert await old.result(PATIENCE) == "a by post"
    assert await new.result(PATIENCE) == "b by drone"
    await both.stop()


async def _is_begun(name: str) -> bool:
    return name in begun


async def test_a_run_whose_version_no_worker_has_waits_and_says_so(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, ship_1, step)
    handle = await client.start(ship_2, "a", id="a")
    described = await handle.describe()
    assert described.state is RunState.PENDING
    assert "no live worker of this queue has workflow 'ship' version '2'" in described.reason
    assert described.version == "2"
    gate.set()
    await arena.worker(client, ship_2, step)
    assert await handle.result(PATIENCE) == "a by drone"


async def test_a_run_without_a_version_goes_to_any_worker_and_to_the_last_definition(arena: Arena) -> None:
    client = await arena.client()
    gate.set()
    await arena.worker(client, ship_1, ship_2, step)
    assert await (await client.start("ship", "a")).result(PATIENCE) == "a by drone"
    assert await (await client.start("ship", "a", version="1")).result(PATIENCE) == "a by post"


async def test_a_parked_run_of_one_version_is_left_alone_by_the_other(arena: Arena) -> None:
    @workflow(name="ship", version="1")
    async def broken(sku: str) -> str:
        await asyncio.get_running_loop().create_future()
        return sku

    client = await arena.client()
    worker = await arena.worker(client, broken, step)
    handle = await client.start(broken, "a")
    await until_state(handle, RunState.NEEDS_CODE)
    await worker.stop()
    gate.set()
    two = await arena.worker(client, ship_2, step)
    assert await (await client.start(ship_2, "b")).result(PATIENCE) == "b by drone"
    assert (await handle.describe()).state is RunState.NEEDS_CODE
    await two.stop()
    await arena.worker(client, ship_1, step)
    await until_state(handle, RunState.COMPLETED)


async def test_children_and_the_next_run_have_their_definitions_version(arena: Arena) -> None:
    @workflow(version="7")
    async def goes_on(times: int) -> list[str]:
        if times == 2:
            continue_as_new(1)
        if times == 1:
            continue_as_new(0, version="8")
        return [info().version]

    @workflow(name="goes_on", version="8")
    async def goes_on_8(times: int) -> list[str]:
        return [info().version, await run_child(ship_1, "a"), await run_child("ship", "b", version="2", result=str)]

    client = await arena.client()
    gate.set()
    await arena.worker(client, goes_on, goes_on_8, ship_1, ship_2, step)
    assert await (await client.start(goes_on, 2)).result(PATIENCE) == ["8", "a by post", "b by drone"]


@pytest.mark.parametrize("name", ["ship@2", "activity:ship"])
async def test_a_name_that_looks_like_a_version_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="must not hold '@' or ':'"):

        @workflow(name=name)
        async def named() -> None: ...

    async with world(ship_1, step) as env:
        with pytest.raises(InvalidInput, match="must not hold"):
            await env.start(name, "a")


@pytest.mark.parametrize("version", [2, "a\nb", "x" * 101])
def test_a_version_must_be_a_short_string(version: Any) -> None:
    with pytest.raises(InvalidInput, match="must be a string"):

        @workflow(version=version)
        async def named() -> None: ...


async def test_the_same_version_twice_in_one_worker_is_refused() -> None:
    @workflow(name="ship", version="1")
    async def again(sku: str) -> str:
        return sku

    with pytest.raises(DuplicateDefinition, match="two workflows are named 'ship' version '1'"):
        async with world(ship_1, again):
            pass


async def test_a_run_may_continue_as_a_version_with_other_parameters(arena: Arena) -> None:
    @workflow(name="grows", version="1")
    async def grows_1(sku: str) -> str:
        continue_as_new(sku, 3, version="2")

    @workflow(name="grows", version="2")
    async def grows_2(sku: str, times: int) -> str:
        return sku * times

    client = await arena.client()
    await arena.worker(client, grows_1, grows_2)
    assert await (await client.start(grows_1, "a")).result(PATIENCE) == "aaa"
