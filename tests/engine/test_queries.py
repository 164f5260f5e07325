"""Queries: answered from the journal, and the run does not notice, on every store."""

import asyncio
from typing import Any

import pytest

from batuta import (
    InvalidInput,
    Query,
    QueryFailed,
    RunState,
    Signal,
    UnknownQuery,
    UnknownRun,
    activity,
    info,
    logger,
    now,
    publish,
    workflow,
)
from tests.engine.arena import PATIENCE, Arena, until_state
from tests.engine.kit import parked, world

status = Query("status", str)
total = Query("total", int)
go_on = Signal("go_on", str)

executed: list[str] = []


@activity
async def act(name: str) -> str:
    executed.append(name)
    return name


@workflow
async def stages() -> str:
    seen = ["begun"]

    @status.handle
    def where(separator: str = " ") -> str:
        return separator.join(seen)

    @total.handle
    def add(*numbers: int) -> int:
        return len(seen) + sum(numbers)

    seen.append(await act("acted"))
    seen.append(await go_on.wait())
    return "the end"


@pytest.fixture(autouse=True)
def _afresh() -> None:
    executed.clear()


async def test_a_query_is_answered_for_waiting_and_closed_runs_and_changes_nothing(arena: Arena) -> None:
    client, other = await arena.client(), await arena.client()
    await arena.worker(client, stages, act)
    handle = await client.start(stages, id="s")
    await until_state(handle, RunState.WAITING)
    before = await handle.describe()
    elsewhere = await other.get("s", stages)
    for asking in (handle, elsewhere, await client.get("s")):
        assert await asking.query(status) == "begun acted"
        assert await asking.query("status", "-") == "begun-acted"
        assert await asking.query(total, 1, 2) == 5
    assert await handle.describe() == before
    await handle.signal(go_on, "told")
    assert await handle.result(PATIENCE) == "the end"
    for asking in (handle, elsewhere):
        assert await asking.query(status) == "begun acted told"
    assert executed == ["acted"]


async def test_a_query_is_answered_while_the_run_works(arena: Arena) -> None:
    gate = asyncio.Event()

    @activity
    async def waits() -> None:
        executed.append("waits")
        await gate.wait()

    @workflow
    async def busy() -> str:
        seen = ["before"]
        status.handle(lambda: " ".join(seen))
        await waits()
        seen.append("after")
        return "done"

    client = await arena.client()
    await arena.worker(client, busy, waits)
    handle = await client.start(busy)
    while "waits" not in executed:
        await asyncio.sleep(0.01)
    assert [await handle.query(status) for _ in range(3)] == ["before"] * 3
    gate.set()
    assert await handle.result(PATIENCE) == "done"
    assert executed == ["waits"]


async def test_an_unknown_query_is_refused_with_the_names_of_those_that_exist(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, stages, act)
    handle = await client.start(stages)
    await until_state(handle, RunState.WAITING)
    with pytest.raises(UnknownQuery, match=r"it answers: status, total"):
        await handle.query("no such thing")
    with pytest.raises(UnknownRun):
        await (await client.get("nobody")).query(status)


async def test_a_query_needs_the_code(arena: Arena) -> None:
    client, other = await arena.client(), await arena.client()
    await arena.worker(client, stages, act)
    handle = await client.start(stages, id="s")
    await until_state(handle, RunState.WAITING)
    with pytest.raises(QueryFailed, match="its code is not here"):
        await (await other.get("s")).query(status)

    @workflow
    async def another() -> str:
        return ""

    with pytest.raises(InvalidInput, match="is of workflow 'stages'"):
        await (await other.get("s", another)).query(status)


# -- in virtual time


async def test_a_run_that_has_not_begun_answers_nothing() -> None:
    async with world(stages, act) as env:
        handle = await env.start(stages, delay=60)
        with pytest.raises(QueryFailed, match="has not begun"):
            await handle.query(status)
        await handle.terminate()


async def test_a_parked_run_is_answered_by_code_that_replays_it_and_says_so_otherwise() -> None:
    @workflow(name="stages")
    async def changed() -> str:
        await asyncio.sleep(5)
        return await act("another")

    async with world(stages, act) as env:
        handle = await env.start(stages, id="s")
        await env.settle()
        await env.deploy([changed])
        await handle.signal(go_on, "x")
        await parked(env, handle)
        assert await handle.query(status) == "begun acted", "the handle has the code that it was started with"
        with pytest.raises(QueryFailed, match="does not replay its journal"):
            await (await env.client.get("s")).query(status)
        await env.deploy([stages])
        assert await handle.result() == "the end"


def _waits() -> Any:
    return asyncio.sleep(1)


def _publishes() -> str:
    publish("x", 1)
    return "published"


def _starts() -> str:
    asyncio.get_running_loop().call_soon(print)
    return "started"


@pytest.mark.parametrize("handler", [_waits, _publishes, _starts])
async def test_a_query_that_does_more_than_look_fails_and_harms_nobody(handler: Any) -> None:
    @workflow
    async def odd() -> str:
        status.handle(handler)
        return await go_on.wait()

    async with world(odd) as env:
        handle = await env.start(odd)
        with pytest.raises(QueryFailed, match="the handler of query 'status' may only look"):
            await handle.query(status)
        await handle.signal(go_on, "on")
        assert await handle.result() == "on"


async def test_a_query_may_ask_the_time_and_who_it_is_and_its_log_lines_vanish(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @workflow
    async def tells() -> str:
        @status.handle
        def when() -> str:
            logger.warning("asked")
            return f"{info().id} {now():%Y}"

        return await go_on.wait()

    async with world(tells) as env:
        handle = await env.start(tells, id="me")
        assert await handle.query(status) == "me 2023"
        await handle.signal(go_on, "on")
        await handle.result()
    assert "asked" not in caplog.text


async def test_an_error_of_the_handler_and_arguments_that_do_not_fit_reach_the_caller() -> None:
    @workflow
    async def fragile() -> str:
        @total.handle
        def divide(number: int) -> int:
            return 10 // number

        status.handle(lambda: 7)
        return await go_on.wait()

    async with world(fragile) as env:
        handle = await env.start(fragile)
        assert await handle.query(total, 5) == 2
        with pytest.raises(QueryFailed, match="ZeroDivisionError") as caught:
            await handle.query(total, 0)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        for args in ((), ("x",), (1, 2)):
            with pytest.raises(QueryFailed):
                await handle.query(total, *args)
        with pytest.raises(QueryFailed, match="does not fit"):
            await handle.query(status)
        with pytest.raises(InvalidInput):
            await handle.query(total, object())
        with pytest.raises(InvalidInput):
            await handle.query(go_on)  # type: ignore[call-overload]  # that is the point
        await handle.terminate()


async def test_a_query_of_a_long_journal_lets_others_work() -> None:
    @workflow
    async def long(count: int) -> int:
        done = 0
        total.handle(lambda: done)
        for _ in range(count):
            await act("x")
            done += 1
        return done

    async with world(long, act, always_replay=False) as env:  # replaying it 3,000 times would take minutes
        handle = await env.start(long, 3000)
        assert await handle.result() == 3000
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0)
                ticks += 1

        ticking = asyncio.create_task(tick())
        assert await handle.query(total) == 3000
        ticking.cancel()
        assert ticks > 5
