"""Published values: shown outside by a run, read by anybody, on every store."""

import asyncio
from dataclasses import dataclass

import pytest

from batuta import (
    Batuta,
    InvalidInput,
    NotPublished,
    RunFailed,
    RunState,
    Signal,
    UnknownRun,
    activity,
    connect,
    publish,
    workflow,
)
from tests.engine.arena import PATIENCE, Arena, until_state
from tests.engine.kit import commands, replay_all, world

go_on = Signal("go_on")


@dataclass
class Progress:
    done: int
    of: int


@activity
async def act(number: int) -> int:
    return number


@workflow
async def copies(count: int) -> int:
    for number in range(count):
        publish("progress", Progress(await act(number) + 1, count))
        publish("percent", 100 * (number + 1) // count)
    publish("waiting", True)
    await go_on.wait()
    publish("waiting", False)
    return count


async def test_values_are_read_by_any_client_while_the_run_waits_and_when_it_is_closed(arena: Arena) -> None:
    client, other = await arena.client(), await arena.client()
    await arena.worker(client, copies, act)
    handle = await client.start(copies, 4, id="c")
    await until_state(handle, RunState.WAITING)
    before = await handle.describe()
    elsewhere = await other.get("c", copies)
    for reader in (handle, elsewhere):
        assert await reader.published("progress", Progress) == Progress(4, 4)
        assert await reader.published("percent", int) == 100
        assert await reader.published("percent") == 100
        assert await reader.published() == {"progress": {"done": 4, "of": 4}, "percent": 100, "waiting": True}
    assert await handle.describe() == before
    await handle.signal(go_on)
    await handle.result(PATIENCE)
    assert (await elsewhere.published())["waiting"] is False
    await replay_all(arena.store(client), {"copies": copies})


async def test_a_value_that_is_not_there_is_an_error_or_the_default(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, copies, act)
    handle = await client.start(copies, 1, id="c")
    await until_state(handle, RunState.WAITING)
    with pytest.raises(NotPublished, match="it has published: percent, progress, waiting"):
        await handle.published("nothing", int)
    assert await handle.published("nothing", int, 7) == 7
    assert await handle.published("nothing", default=None) is None
    with pytest.raises(InvalidInput, match="does not fit"):
        await handle.published("percent", str)
    with pytest.raises(UnknownRun):
        await (await client.get("nobody")).published()


async def test_each_run_has_values_of_its_own(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, copies, act)
    handles = [await client.start(copies, count) for count in range(1, 6)]
    for handle in handles:
        await until_state(handle, RunState.WAITING)
    found = [(await handle.published("progress", Progress)).of for handle in handles]
    assert found == [1, 2, 3, 4, 5]


# -- in virtual time


async def test_what_is_published_in_one_turn_shows_its_last_value() -> None:
    @workflow
    async def counts() -> None:
        for number in range(100):
            publish("number", number)
        await asyncio.sleep(3600)

    async with world(counts) as env:
        handle = await env.start(counts)
        await env.settle()
        assert await handle.published("number", int) == 99
        await handle.result()


async def test_publishing_is_a_command_that_is_replayed_and_not_repeated() -> None:
    for always_replay in (False, True):
        async with world(copies, act, always_replay=always_replay) as env:
            handle = await env.start(copies, 2)
            await env.settle()
            await env.crash()
            await handle.signal(go_on)
            assert await handle.result() == 2
            assert (await commands(handle)).count("publish progress") == 2


async def test_what_cannot_be_published_is_the_workflows_error() -> None:
    @workflow
    async def bad(kind: str) -> None:
        name = {"name": "", "ours": "batuta.misfits"}.get(kind, "x")
        publish(name, object() if kind == "value" else "y" * 3_000_000)

    async with world(bad) as env:
        for kind, words in (
            ("name", "must be 1 to"),
            ("ours", "is reserved"),
            ("value", "no JSON form"),
            ("size", "over the limit"),
        ):
            with pytest.raises(RunFailed, match=words):
                await (await env.start(bad, kind)).result()


async def test_a_run_that_published_nothing_has_nothing_to_show() -> None:
    client: Batuta = connect("memory://")
    async with client:
        handle = await client.start(copies, 1)
        assert await handle.published() == {}
        with pytest.raises(NotPublished, match="it has published: nothing"):
            await handle.published("progress")
