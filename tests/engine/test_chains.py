"""Runs that follow each other under one id: the same on every store."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from batuta import (
    Handle,
    InvalidInput,
    NonRetryable,
    Retry,
    RunClosed,
    RunFailed,
    RunState,
    RunTimedOut,
    Signal,
    Update,
    Workflow,
    activity,
    continue_as_new,
    info,
    run_child,
    safe_point,
    start_child,
    workflow,
)
from batuta.engine.run import effects
from tests.engine.arena import PATIENCE, Arena, until_state
from tests.engine.kit import replay_all, world


@activity
async def add(number: int) -> int:
    return number + 1


@workflow
async def counts(number: int, left: int) -> int:
    number = await add(number)
    if left:
        continue_as_new(number, left - 1)
    return number


@workflow(continue_after=20)
async def counts_by_itself(number: int) -> list[int]:
    while number < 100:
        number = await add(number)
        await safe_point(number)
    return [number, info().entries]


@workflow
async def fails_until(attempt: int) -> int:
    if info().attempt < attempt:
        raise ValueError(f"attempt {info().attempt}")
    return await add(info().attempt)


@workflow
async def fails_oddly() -> int:
    if info().attempt < 2:
        raise ValueError("nul \x00, half \ud800")
    return info().attempt


@workflow
async def refuses() -> None:
    raise NonRetryable("never")


@workflow
async def for_ever(number: int) -> None:
    await asyncio.sleep(0.01)
    continue_as_new(number + 1)


@workflow
async def parent() -> int:
    return await run_child(counts, 0, 3)


EVERYTHING = (counts, counts_by_itself, fails_until, fails_oddly, refuses, for_ever, parent, add)
WORKFLOWS: dict[str, Workflow[..., Any]] = {thing.name: thing for thing in EVERYTHING if isinstance(thing, Workflow)}


async def test_a_result_is_that_of_the_last_run_of_the_chain(arena: Arena) -> None:
    client, other = await arena.client(), await arena.client()
    await arena.worker(client, *EVERYTHING)
    handle = await client.start(counts, 0, 5, id="c")
    assert await handle.result(PATIENCE) == 6
    assert await (await other.get("c")).result(PATIENCE) == 6
    described = await handle.describe()
    assert (described.state, described.id) == (RunState.COMPLETED, "c")
    assert described.run_id != handle.run_id
    assert await client.count(state="continued") == 5
    await replay_all(arena.store(client), WORKFLOWS)


async def test_an_old_handle_finds_the_end_of_its_own_chain(arena: Arena) -> None:
    client, other = await arena.client(), await arena.client()
    await arena.worker(client, *EVERYTHING)
    handle = await client.start(counts, 0, 3, id="c")
    await handle.result(PATIENCE)
    again = await client.start(counts, 100, 0, id="c", if_exists="restart")
    assert await again.result(PATIENCE) == 101
    old: Handle[Any] = await other.get("c")
    old._ref.run_id, old._ref.local = handle.run_id, None
    assert await old.result(PATIENCE) == 4


async def test_a_parent_gets_the_result_of_the_last_run(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *EVERYTHING)
    assert await (await client.start(parent)).result(PATIENCE) == 4


async def test_a_loop_that_declares_its_state_continues_by_itself(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *EVERYTHING)
    number, entries = await (await client.start(counts_by_itself, 0)).result(PATIENCE)
    assert number == 100
    assert entries < 20
    assert await client.count(state="continued") == 5
    await replay_all(arena.store(client), WORKFLOWS)


async def test_a_failed_run_is_tried_again(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *EVERYTHING)
    handle = await client.start(fails_until, 3, retry=Retry(attempts=3, first=0.01))
    assert await handle.result(PATIENCE) == 4
    first = await arena.store(client).get_run(handle.run_id)
    assert first.state is RunState.CONTINUED
    assert first.reason.startswith("attempt 1 failed with ValueError: attempt 1 (test_chains.py:")
    last = (await handle.journal())[-1].body.commands[-1]
    assert str(last.kind) == "fail"
    await replay_all(arena.store(client), WORKFLOWS)


async def test_a_run_is_tried_again_whatever_its_error_says(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *EVERYTHING)
    handle = await client.start(fails_oddly, retry=Retry(attempts=2, first=0.01))
    assert await handle.result(PATIENCE) == 2
    first = await arena.store(client).get_run(handle.run_id)
    assert first.reason.startswith(r"attempt 1 failed with ValueError: nul \x00, half \ud800 (test_chains.py:")


async def test_a_run_that_fails_too_often_has_failed(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *EVERYTHING)
    handle = await client.start(fails_until, 9, retry=Retry(attempts=2, first=0.01))
    with pytest.raises(RunFailed, match="attempt 2"):
        await handle.result(PATIENCE)
    assert await client.count(workflow="fails_until") == 2


async def test_some_errors_are_not_tried_again(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *EVERYTHING)
    with pytest.raises(RunFailed, match="never"):
        await (await client.start(refuses, retry=Retry(first=0.01))).result(PATIENCE)
    with pytest.raises(RunFailed, match="attempt 1"):
        await (await client.start(fails_until, 3, retry=Retry(first=0.01, never=["ValueError"]))).result(PATIENCE)
    assert await client.count() == 2


async def test_a_chain_is_over_its_time_as_a_whole(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *EVERYTHING)
    handle = await client.start(for_ever, 0, execution_timeout=0.5)
    with pytest.raises(RunTimedOut):
        await handle.result(PATIENCE)
    assert await client.count(state="continued") > 1


async def test_a_chain_can_be_terminated_and_cancelled_by_its_first_handle(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *EVERYTHING)
    handle = await client.start(for_ever, 0, id="a")
    await until_state_is_continued(arena, client, handle)
    await handle.terminate("enough")
    await until_state(handle, RunState.TERMINATED)
    with pytest.raises(RunClosed):
        await handle.terminate("enough")
    handle = await client.start(for_ever, 0, id="b")
    await until_state_is_continued(arena, client, handle)
    await handle.cancel("enough")
    await until_state(handle, RunState.CANCELLED)
    with pytest.raises(RunClosed):
        await handle.cancel("enough")


async def until_state_is_continued(arena: Arena, client: Any, handle: Any) -> None:
    from tests.engine.arena import until

    async def continued() -> bool:
        return (await arena.store(client).get_run(handle.run_id)).state is RunState.CONTINUED

    await until(continued)


async def test_what_a_run_was_started_with_goes_on(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *EVERYTHING)
    handle = await client.start(counts, 0, 2, priority=3, tags={"a": "b"}, memo=[1])
    await handle.result(PATIENCE)
    described = await handle.describe()
    assert (described.priority, described.tags, described.memo) == (3, {"a": "b"}, [1])


async def test_after_a_crash_the_chain_goes_on(arena: Arena) -> None:
    one, two = await arena.client(), await arena.client()
    first = await arena.worker(one, *EVERYTHING)
    handle = await two.start(counts, 0, 100)
    await until_state_is_continued(arena, two, handle)
    await arena.kill(one, first)
    await arena.worker(two, *EVERYTHING)
    assert await handle.result(PATIENCE) == 101


@pytest.mark.parametrize("arguments", [(), (1,), (1, 2, 3), ("one", 2)])
async def test_continuing_with_arguments_that_do_not_fit_is_an_error_in_the_code(arguments: tuple[Any, ...]) -> None:
    @workflow
    async def careless(number: int, left: int) -> str:
        try:
            continue_as_new(*arguments)
        except (TypeError, InvalidInput) as error:
            return f"{await add(number)} {type(error).__name__}"

    async with world(careless, add) as env:
        assert await env.run(careless, 1, 2) in ("2 TypeError", "2 InvalidInput")


async def test_continuing_in_a_task_is_an_error() -> None:
    @workflow
    async def careless() -> str:
        async def inner() -> None:
            continue_as_new()

        try:
            await asyncio.create_task(inner())
        except InvalidInput as error:
            return str(error)
        return "continued"

    async with world(careless) as env:
        assert "was called in a task" in await env.run(careless)


async def test_the_hint_comes_after_a_day() -> None:
    @workflow
    async def old() -> list[bool]:
        young = info().continue_hint
        await asyncio.sleep(timedelta(hours=24).total_seconds())
        return [young, info().continue_hint]

    async with world(old) as env:
        assert await env.run(old) == [False, True]


async def test_a_safe_point_with_something_pending_is_passed_by() -> None:
    @workflow(continue_after=1)
    async def busy(seconds: float) -> str:
        nap = asyncio.create_task(asyncio.sleep(seconds))
        await asyncio.sleep(0)
        await safe_point(seconds)
        child = await start_child(counts, 0, 0)
        await nap
        await child.result()
        return "not continued"

    async with world(busy, counts, add) as env:
        assert await env.run(busy, 5.0) == "not continued"


async def test_children_of_a_run_that_continues_are_told_and_their_answers_do_not_reach_the_next() -> None:
    ended: list[str] = []

    @activity
    async def note(word: str) -> None:
        ended.append(word)

    @workflow
    async def child() -> str:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            await note("cancelled")
            raise
        return "slept"

    @workflow
    async def goes_on(times: int) -> list[str]:
        if times:
            await start_child(child)
            await asyncio.sleep(1)
            continue_as_new(times - 1)
        await asyncio.sleep(10)
        return ended

    async with world(child, goes_on, note) as env:
        assert await env.run(goes_on, 3) == ["cancelled"] * 3


# -- what does not follow


async def test_a_cancelled_run_that_fails_while_it_cleans_up_is_not_tried_again() -> None:
    @workflow
    async def stumbles() -> str:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            raise ValueError("the clean-up failed") from None
        return "worked to the end"

    async with world(stumbles) as env:
        handle = await env.start(stumbles, retry=Retry(attempts=3))
        await env.advance(1)
        await handle.cancel("enough")
        with pytest.raises(RunFailed, match="the clean-up failed"):
            await handle.result()


async def test_an_error_in_a_group_is_not_tried_again_either() -> None:
    @workflow
    async def together() -> int:
        async with asyncio.TaskGroup() as group:
            group.create_task(_refuse())
        return info().attempt

    async def _refuse() -> None:
        raise PermissionError("never")

    async with world(together) as env:
        handle = await env.start(together, retry=Retry(attempts=3, never=["PermissionError"]))
        with pytest.raises(RunFailed):
            await handle.result()
        assert (await env.client.get(handle.id)).run_id == handle.run_id, "no other run followed"


async def test_a_safe_point_is_passed_by_while_a_handler_is_not_done() -> None:
    pay, ask = Signal("pay", int), Update("ask", int)
    handled: list[int] = []

    @activity
    async def note(number: int) -> None:
        handled.append(number)

    @workflow(continue_after=1)
    async def busy(times: int) -> int:
        free, paid = asyncio.Event(), asyncio.Event()

        @pay.handle
        async def on_pay(number: int) -> None:
            await free.wait()
            await note(number)
            paid.set()

        @ask.handle
        async def on_ask(number: int) -> int:
            await free.wait()
            return number

        if times == 0:
            return info().entries
        await asyncio.sleep(10)
        await safe_point(times - 1)
        free.set()
        await paid.wait()
        await asyncio.sleep(1)
        await safe_point(times - 1)
        return -1

    async with world(busy, note) as env:
        handle = await env.start(busy, 1)
        await handle.signal(pay, 7)
        assert await handle.update(ask, 5) == 5
        assert await handle.result() == 1
        assert handled == [7]


async def test_signals_that_are_not_received_are_carried_on_with_a_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise, number = Signal("noise"), Signal("number", int)
    monkeypatch.setattr(effects, "_MANY", 3)

    @workflow
    async def deaf(left: int) -> int:
        await asyncio.sleep(10)
        if left:
            continue_as_new(left - 1)
        return await number.wait()

    async with world(deaf) as env:
        handle = await env.start(deaf, 2)
        await handle.signal(number, 7)
        for sent in range(3):
            assert "carries" not in caplog.text
            await handle.signal(noise, message_id=str(sent))
        assert await handle.result() == 7
    assert caplog.text.count("carries 4 signals that its code has not received (3 of 'noise', 1 of 'number')") == 2


async def test_a_run_that_passes_a_safe_point_and_then_continues_by_itself_replays() -> None:
    @workflow
    async def passes(left: int) -> int:
        number = await add(left)
        await safe_point(100)
        if left:
            continue_as_new(left - 1)
        return number

    @workflow
    async def passes_with_what_does_not_fit(left: int) -> int:
        await safe_point("not", "fit")
        if left:
            continue_as_new(left - 1)
        return await add(left)

    async with world(passes, passes_with_what_does_not_fit, add) as env:
        assert await env.run(passes, 2) == 1
        assert await env.run(passes_with_what_does_not_fit, 2) == 1


async def test_a_safe_point_that_is_left_through_an_activity_replays() -> None:
    @workflow(continue_after=2)
    async def tidies(left: int) -> int:
        await add(1)
        if left:
            try:
                await safe_point(left - 1)
            finally:
                await add(2)
        return left

    async with world(tidies, add) as env:
        assert await env.run(tidies, 2) == 0
        handle = await env.start(tidies, 1)
        await env.crash()
        assert await handle.result() == 0
        kinds = [[str(command.kind) for command in line.body.commands] for line in await handle.journal()]
        assert kinds == [["activity"], ["safe_point", "activity"], ["continue"]]


async def test_a_safe_point_whose_arguments_do_not_fit_replays() -> None:
    @workflow(continue_after=2)
    async def careless(number: int) -> str:
        await add(number)
        try:
            await safe_point("not", "fit")
        except TypeError as error:
            return f"{type(error).__name__} {await add(number)}"
        return "passed by"

    async with world(careless, add) as env:
        assert await env.run(careless, 1) == "TypeError 2"
