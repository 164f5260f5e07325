"""Families of runs when something goes wrong: crashes, ends before the beginning, and careless code."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from batuta import (
    Child,
    Interrupted,
    InvalidInput,
    Retry,
    RunState,
    Signal,
    Update,
    activity,
    continue_as_new,
    failpoints,
    info,
    publish,
    run_child,
    send,
    start_child,
    workflow,
)
from batuta.journal.entries import EntryKind
from batuta.testing import Environment
from batuta.testing.stores import AnyStoreName
from batuta.verify import verify
from tests.engine.arena import PATIENCE, Arena, until_state
from tests.engine.kit import world


@activity
async def add(number: int) -> int:
    return number + 1


@workflow
async def adds(number: int) -> int:
    return await add(number)


@workflow
async def sleeps(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "slept"


@pytest.mark.parametrize("always_replay", [False, True])
async def test_what_an_interrupted_payment_causes_after_a_crash_is_all_done(always_replay: bool) -> None:
    @activity(once=True)
    async def pay() -> None:
        await asyncio.sleep(60)

    @workflow
    async def pays(then: str) -> str:
        if then == "done":
            return "another run"
        child = asyncio.create_task(run_child(sleeps, 3600.0, id=f"kid of {then}"))
        try:
            await pay()
        except Interrupted:
            publish("state", "interrupted")
            if then == "continue":
                continue_as_new("done")
            child.cancel()
            await asyncio.sleep(5)
        return "handled"

    async with world(pays, sleeps, pay, always_replay=always_replay) as env:
        stays = await env.start(pays, "stay")
        goes_on = await env.start(pays, "continue")
        await env.advance(5)
        await env.crash()
        assert await stays.result() == "handled"
        assert await stays.published() == {"state": "interrupted"}
        assert await goes_on.result() == "another run"
        await env.advance(5)
        for kid in ("kid of stay", "kid of continue"):
            assert (await (await env.client.get(kid)).describe()).state is RunState.CANCELLED


async def test_a_child_that_is_terminated_before_it_begins_never_begins(arena: Arena) -> None:
    begun: list[str] = []

    @workflow
    async def kid() -> None:
        begun.append("kid")

    @workflow
    async def hasty() -> str:
        await start_child(kid, id="kid", policy="terminate", delay=3600)
        return "done"

    client = await arena.client()
    await arena.worker(client, kid, hasty)
    assert await (await client.start(hasty)).result(PATIENCE) == "done"
    await until_state(await client.get("kid"), RunState.TERMINATED)
    assert begun == []
    assert (await verify(arena.store(client), [kid, hasty])).violations == []


async def test_a_second_cancel_from_any_caller_does_not_reach_the_clean_up() -> None:
    @workflow
    async def tidy() -> str:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            await asyncio.sleep(10)
        return "cleaned"

    @workflow
    async def gives_up() -> str:
        child: Child[str] = await start_child(tidy, id="kid")
        await asyncio.sleep(1)
        await child.cancel("not needed")
        return await child.result()

    async with world(tidy, gives_up) as env:
        handle = await env.start(gives_up)
        await env.advance(5)
        await (await env.client.get("kid")).cancel("I say so, too")
        assert await handle.result() == "cleaned"


@pytest.mark.parametrize("reason", [None, 7, "nul \0", "half \ud83d"])
async def test_a_reason_that_is_no_text_is_refused(reason: Any) -> None:
    @workflow
    async def careless() -> str:
        child = await start_child(sleeps, 10.0)
        with pytest.raises(InvalidInput, match="must be text"):
            await child.cancel(reason)
        return await child.result()

    async with world(careless, sleeps) as env:
        assert await env.run(careless) == "slept"
        handle = await env.start(sleeps, 10.0)
        for end in (handle.cancel, handle.terminate):
            with pytest.raises(InvalidInput, match="must be text"):
                await end(reason)


async def test_only_what_fits_a_signal_is_sent_as_one() -> None:
    news = Signal("news", int)

    @workflow
    async def careless(id: str) -> list[str]:
        said = []
        for signal, value in ((Update("news", int), 1), (news, "text"), (None, 1)):
            try:
                await send(id, signal, value)  # type: ignore[arg-type, misc]  # on purpose
            except InvalidInput as error:
                said.append(str(error))
        await send(id, news, 5)
        return said

    @workflow
    async def listens() -> int:
        return await news.wait()

    async with world(careless, listens) as env:
        listener = await env.start(listens)
        no_signal, no_fit, nothing = await env.run(careless, listener.id)
        assert "<update news> is no signal" in no_signal
        assert "the value of signal 'news' does not fit" in no_fit
        assert "None is no signal" in nothing
        assert await listener.result() == 5


async def test_a_child_gets_the_memo_of_the_moment_it_was_asked_for() -> None:
    @workflow
    async def changes_its_mind() -> int:
        memo, tags = {"a": 1}, {"b": "1"}
        child = asyncio.create_task(run_child(adds, 1, id="kid", memo=memo, tags=tags))
        await asyncio.sleep(0)
        memo["a"], tags["b"] = 2, "2"
        return await child

    async with world(changes_its_mind, adds, add) as env:
        assert await env.run(changes_its_mind) == 2
        kid = await (await env.client.get("kid")).describe()
        assert (kid.memo, kid.tags) == ({"a": 1}, {"b": "1"})


async def test_a_run_whose_error_holds_nul_is_tried_again(arena: Arena) -> None:
    @workflow
    async def garbles() -> int:
        if info().attempt < 2:
            raise ValueError("nul \0 inside")
        return info().attempt

    client = await arena.client()
    await arena.worker(client, garbles)
    assert await (await client.start(garbles, retry=Retry(attempts=2, first=0.01))).result(PATIENCE) == 2


async def test_what_an_earlier_run_of_a_child_sent_comes_before_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    news = Signal("news", int)

    @workflow
    async def tells(parent: str, told: bool) -> str:
        if not told:
            await send(parent, news, 7)
            continue_as_new(parent, True)
        return "done"

    @workflow
    async def listens() -> list[Any]:
        heard: list[Any] = []
        news.handle(heard.append)
        before_its_end = [await run_child(tells, info().id, False), *heard]
        await asyncio.sleep(10)
        return before_its_end

    async with world(tells, listens) as env:
        unread = env.store.unread

        async def slow(*args: Any) -> Any:
            await asyncio.sleep(1)
            return await unread(*args)

        monkeypatch.setattr(env.store, "unread", slow)
        assert await env.run(listens) == ["done", 7]


class Killed(BaseException):
    """What a dying worker's code sees."""


def forgive_the_killed(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if not isinstance(context.get("exception"), Killed):
        loop.default_exception_handler(context)


async def dies_after_its_next_commit(env: Environment, acting: Callable[[], Awaitable[Any]]) -> None:
    """The worker is killed when the next batch is durable, before its runs know. There is no other one yet."""
    died = asyncio.Event()
    session = env.worker.session
    assert session is not None

    def die(name: str) -> None:
        if name == "commit.effects":
            failpoints.arm()
            session.abandon()
            died.set()
            raise Killed

    asyncio.get_running_loop().set_exception_handler(forgive_the_killed)
    failpoints.observe(die)
    acted = asyncio.ensure_future(acting())
    await died.wait()
    await session.abandoned()
    await env.store.retire(session.info.worker_id)
    await asyncio.gather(acted, return_exceptions=True)


@workflow
async def counts() -> int:
    return 7


@workflow
async def waits_for_its_count() -> int:
    child = await start_child(counts, id="count")
    return await child.result()


async def test_a_child_that_ends_before_its_parent_hears_that_it_was_taken_does_not_hold_it_up() -> None:
    async with world(waits_for_its_count, counts) as env:
        await dies_after_its_next_commit(env, lambda: env.start(waits_for_its_count, id="one"))
        handle = await env.get("one", waits_for_its_count)
        await handle.pause()
        await env._begin()
        assert await (await env.get("count")).result() == 7
        await dies_after_its_next_commit(env, handle.resume)
        await env._begin()
        assert await handle.result() == 7
        kinds = [line.kind for line in await handle.journal()]
        assert kinds == [EntryKind.STARTED, EntryKind.CHILD_DONE, EntryKind.ACCEPTED]


@pytest.mark.parametrize("store", ["memory", "sqlite", "postgres"])
async def test_a_parent_is_reset_to_where_a_childs_end_came_first(store: AnyStoreName) -> None:
    async with world(waits_for_its_count, counts, store=store) as env:
        handle = await env.start(waits_for_its_count)
        assert await handle.result() == 7
        await handle.reset(0)
        assert await handle.result() == 7
        kinds = [line.kind for line in await handle.journal()]
        assert kinds[-2:] == [EntryKind.CHILD_DONE, EntryKind.ACCEPTED]
        await handle.reset(kinds.index(EntryKind.CHILD_DONE))
        assert await handle.result() == 7
