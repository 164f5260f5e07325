"""Deploying changed code while runs are under way."""

import asyncio
from typing import Any

import pytest

from batuta import RunState, activity, deprecate_patch, patched, workflow
from batuta.testing import Environment
from tests.engine.kit import commands, replay, world

pytestmark = pytest.mark.parametrize("always_replay", [False, True])


@activity
async def by_post(letter: str) -> str:
    return f"posted {letter}"


@activity
async def by_mail(letter: str) -> str:
    return f"mailed {letter}"


@workflow(name="notify")
async def before() -> list[str]:
    first = await by_post("one")
    await asyncio.sleep(100)
    return [first, await by_post("two")]


@workflow(name="notify")
async def during() -> list[str]:
    first = await (by_mail("one") if patched("mail") else by_post("one"))
    await asyncio.sleep(100)
    return [first, await (by_mail("two") if patched("mail") else by_post("two"))]


@workflow(name="notify")
async def after() -> list[str]:
    deprecate_patch("mail")
    first = await by_mail("one")
    await asyncio.sleep(100)
    return [first, await by_mail("two")]


@workflow(name="notify")
async def careless() -> list[str]:
    return [await by_mail("one"), await by_mail("two")]


@workflow(name="notify")
async def late() -> list[str]:
    first = await by_post("one")
    await asyncio.sleep(100)
    return [first, await (by_mail("two") if patched("mail") else by_post("two"))]


def place(workflow: Any, always_replay: bool) -> Any:
    return world(workflow, by_post, by_mail, always_replay=always_replay)


async def deploy(env: Environment, *workflows: Any) -> None:
    await env.deploy(workflows=workflows)


async def test_a_run_keeps_to_the_way_it_took_and_a_new_one_takes_the_new(always_replay: bool) -> None:
    async with place(before, always_replay) as env:
        old = await env.start(before, id="old")
        await env.advance(10)
        await deploy(env, during)
        new = await env.start(during, id="new")
        assert await old.result() == ["posted one", "posted two"]
        assert await new.result() == ["mailed one", "mailed two"]
        assert (await commands(new))[0] == "patch mail"
        assert "patch mail" not in await commands(old)


async def test_a_run_that_has_not_come_to_the_change_takes_the_new_way(always_replay: bool) -> None:
    async with place(before, always_replay) as env:
        handle = await env.start(before)
        await env.advance(10)
        await deploy(env, late)
        assert await handle.result() == ["posted one", "mailed two"]


async def test_a_deprecated_patch_replays_runs_that_hold_the_marker_and_writes_none(always_replay: bool) -> None:
    async with place(during, always_replay) as env:
        marked = await env.start(during, id="marked")
        await env.advance(10)
        await deploy(env, after)
        fresh = await env.start(after, id="fresh")
        assert await marked.result() == await fresh.result() == ["mailed one", "mailed two"]
        assert "patch mail" not in await commands(fresh)
        assert "patch mail" in await commands(marked)


async def test_without_a_patch_the_run_is_parked_and_nothing_is_lost(always_replay: bool) -> None:
    async with place(before, always_replay) as env:
        handle = await env.start(before)
        await env.advance(10)
        await deploy(env, careless)
        await env.advance(100)
        assert (await handle.describe()).state is RunState.NEEDS_CODE
        await deploy(env, during)
        assert await handle.result() == ["posted one", "posted two"]


async def test_a_journal_with_the_marker_needs_it_in_the_code(always_replay: bool) -> None:
    async with place(during, always_replay) as env:
        handle = await env.start(during)
        await handle.result()
        entries = await env.store.journal(handle.run_id)
    replay(during, entries).tear_down()
    replay(after, entries).tear_down()
    with pytest.raises(Exception, match="recorded: patch mail"):
        replay(before, entries)


async def test_a_run_that_a_bad_deploy_began_is_told_its_way_out_under_the_later_patch(always_replay: bool) -> None:
    @workflow(name="notify")
    async def bad() -> list[str]:
        first = await by_post("one")
        second = await by_mail("both")  # without a gate
        await asyncio.sleep(100)
        return [first, second, await by_post("two")]

    @workflow(name="notify")
    async def good() -> list[str]:
        first = await by_post("one")
        second = await by_mail("both") if patched("both") else ""
        await asyncio.sleep(100)
        return [first, second, await by_post("two")]

    async with Environment(workflows=[bad], activities=[by_post, by_mail], always_replay=always_replay) as env:
        handle = await env.start(bad)
        await env.advance(50)
        await env.deploy(workflows=[good])
        await env.advance(100)
        found = await handle.describe()
        assert found.state is RunState.NEEDS_CODE
        assert "recorded: activity by_mail" in found.reason
        assert "If that code is not to come back: `batuta runs reset ID --to 0` lets today's go on" in found.reason
        await handle.reset(0)
        assert await handle.result() == ["posted one", "mailed both", "posted two"]
