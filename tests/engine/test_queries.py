"""Queries: answered from the journal, and the run does not notice, on every store."""

import asyncio
from typing import Any

import pytest

from batuta import (
    CompleteLater,
    InvalidInput,
    Query,
    QueryFailed,
    RunState,
    Signal,
    UnknownQuery,
    UnknownRun,
    Update,
    WrongWorkflow,
    activity,
    activity_info,
    info,
    logger,
    now,
    publish,
    run_child,
    side_effect,
    start_child,
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
    with pytest.raises(QueryFailed, match="its code is not in this process"):
        await (await other.get("s")).query(status)

    @workflow
    async def another() -> str:
        return ""

    with pytest.raises(WrongWorkflow, match="is of workflow 'stages'"):
        await (await other.get("s", another)).query(status)


async def test_a_query_sees_a_start_and_a_signal_that_were_acknowledged(arena: Arena) -> None:
    """No worker has looked at them, and none may be there."""
    client, other = await arena.client(), await arena.client()
    handle = await client.start(stages, id="s")
    elsewhere = await other.get("s", stages)
    for asking in (handle, elsewhere):
        assert await asking.query(status) == "begun"
    worker = await arena.worker(client, stages, act)
    await until_state(handle, RunState.WAITING)
    await worker.stop()
    await elsewhere.signal(go_on, "told")
    for asking in (handle, elsewhere):
        assert await asking.query(status) == "begun acted told"
    assert executed == ["acted"]
    assert [line.kind for line in await handle.journal()] == ["started", "activity_done"]


async def test_a_query_sees_each_signal_that_was_acknowledged_before_it(arena: Arena) -> None:
    @workflow
    async def counts() -> int:
        seen: list[str] = []
        total.handle(lambda: len(seen))
        go_on.handle(seen.append)
        while len(seen) < 60:
            await act("x")
            await asyncio.sleep(0.01)
        return len(seen)

    client, other = await arena.client(), await arena.client()
    await arena.worker(client, counts, act)
    handle = await client.start(counts, id="c")
    elsewhere = await other.get("c", counts)
    for count in range(1, 61):
        await elsewhere.signal(go_on, "on")
        assert await elsewhere.query(total) == count
    assert await handle.result(PATIENCE) == 60


# -- in virtual time


async def test_a_query_sees_updates_that_would_be_accepted_and_a_cancel() -> None:
    ask = Update("ask", int)

    @workflow
    async def listens() -> str:
        seen: list[str] = []
        status.handle(lambda: " ".join(seen))

        def positive(number: int) -> None:
            if number < 0:
                raise ValueError("too low")

        @ask.handle(validator=positive)
        async def take(number: int) -> int:
            seen.append(f"asked {number}")
            await act("never")
            return number

        try:
            return await go_on.wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            await act("never")
            raise

    async with world(listens, act) as env:
        handle = await env.start(listens)
        await env.settle()
        await env.worker.stop()
        asking = [asyncio.create_task(handle.update(ask, number)) for number in (1, -1, 2)]
        async with asyncio.timeout(30):
            while await handle.query(status) != "asked 1 asked 2":
                await asyncio.sleep(0)
        await handle.cancel("enough")
        assert await handle.query(status) == "asked 1 asked 2 cancelled"
        assert executed == []
        for task in asking:
            task.cancel()
        await handle.terminate()


async def test_a_query_sees_an_answer_from_outside_and_the_end_of_a_child() -> None:
    tokens: list[str] = []

    @activity
    async def person() -> str:
        tokens.append(activity_info().token)
        raise CompleteLater

    @workflow
    async def child() -> str:
        return await go_on.wait()

    @workflow
    async def waits_for_both() -> str:
        seen: list[str] = []
        status.handle(lambda: " ".join(seen))
        young = await start_child(child, id="child")
        seen.append(await person())
        seen.append(await young.result())
        return await act("never")

    async with world(waits_for_both, child, person, act) as env:
        handle = await env.start(waits_for_both)
        await env.settle()
        await env.deploy([child])
        await env.client.complete(tokens[0], "yes")
        assert await handle.query(status) == "yes"
        await (await env.client.get("child")).signal(go_on, "grown")
        await env.settle()
        assert await handle.query(status) == "yes grown"
        await env.deploy([child, waits_for_both])
        assert await handle.result() == "never"


async def test_a_query_sees_a_signal_that_comes_after_the_message_that_ends_the_run() -> None:
    """The run reads them together, too: its close would be refused."""
    more = Signal("more", str)

    @workflow
    async def child() -> str:
        return "grown"

    @workflow
    async def waits_for_its_child() -> str:
        seen: list[str] = []
        status.handle(lambda: " ".join(seen))
        more.handle(seen.append)
        seen.append(await run_child(child))
        return "done"

    @workflow
    async def at_once() -> str:
        seen: list[str] = []
        status.handle(lambda: " ".join(seen))
        more.handle(seen.append)
        return "done"

    async with world(waits_for_its_child, at_once, child) as env:
        await env.deploy([waits_for_its_child])
        handle = await env.start(waits_for_its_child)
        await env.settle()
        await env.deploy([child])
        await env.settle()
        for word in ("one", "two"):
            await handle.signal(more, word)
        assert await handle.query(status) == "one two grown"
        unbegun = await env.start(at_once)
        await unbegun.signal(more, "three")
        assert await unbegun.query(status) == "three"
        await env.deploy([waits_for_its_child, at_once])
        assert await handle.result() == await unbegun.result() == "done"
        assert (await handle.query(status), await unbegun.query(status)) == ("one two grown", "three")


async def test_a_query_waits_for_a_state_that_is_still_to_come() -> None:
    def draw() -> str:
        executed.append("drawn")
        return "drawn"

    @workflow
    async def draws() -> str:
        seen: list[str] = []
        status.handle(lambda: " ".join(seen))
        seen.append(await go_on.wait())
        seen.append(await side_effect(draw))
        return await go_on.wait()

    async with world(draws) as env:
        handle = await env.start(draws)
        await env.settle()
        await env.worker.stop()
        await handle.signal(go_on, "told")
        with pytest.raises(QueryFailed, match=r"has unread messages.*makes a side effect"):
            await handle.query(status)
        assert executed == []
        asking = asyncio.create_task(handle.query(status))
        await env.deploy()
        assert await asking == "told drawn"
        assert executed == ["drawn"]
        await handle.pause("look at it")
        await handle.signal(go_on, "more")
        assert await handle.query(status) == "told drawn"
        await handle.terminate()


async def test_a_run_that_was_cancelled_before_it_began_answers_nothing() -> None:
    async with world(stages, act) as env:
        handle = await env.start(stages, delay=60)
        await handle.cancel()
        with pytest.raises(QueryFailed, match="has not begun"):
            await handle.query(status)


async def test_messages_that_a_closed_run_has_not_read_are_not_read_for_it() -> None:
    async with world(stages, act) as env:
        handle = await env.start(stages)
        await env.settle()
        await env.worker.stop()
        await handle.signal(go_on, "told")
        await handle.terminate()
        assert await handle.query(status) == "begun acted"


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
        assert await handle.query(status) == "begun acted x", "the handle has the code that it was started with"
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
async def test_a_query_that_does_more_than_read_fails_and_changes_nothing(handler: Any) -> None:
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
