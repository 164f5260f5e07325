"""A run does the same in every replay: orders, generators, references and contexts do not depend on chance."""

import asyncio
import contextvars
import decimal
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from batuta import activity, random, uuid, workflow
from tests.engine.kit import journal_of, replay, world

TRIES = 150
seen: list[str] = []
"""Where workflows of this module leave word of what they did, behind the journal's back."""


@activity
async def echo(text: str) -> str:
    return text


@activity(once=True)
async def refuses() -> None:
    raise PermissionError("no")


async def lives_until_cancelled(name: str) -> None:
    try:
        await asyncio.sleep(3600)
    finally:
        seen.append(name)


def orders_of(workflow_: Any, entries: Any) -> set[tuple[str, ...]]:
    """What many replays of one journal leave in `seen`."""
    orders = set()
    for _ in range(TRIES):
        seen.clear()
        machine = replay(workflow_, entries)
        orders.add(tuple(seen))
        machine.tear_down()
    return orders


@workflow
async def cancels_gathered() -> int:
    gathered = [asyncio.gather(echo(str(number)), lives_until_cancelled(str(number))) for number in range(12)]
    first = asyncio.gather(echo("first"))
    done, pending = await asyncio.wait([*gathered, first], return_when=asyncio.FIRST_COMPLETED)
    for future in pending:
        future.cancel()
    await asyncio.wait(gathered)
    return len(done)


async def test_futures_of_gather_in_a_set_iterate_in_one_order() -> None:
    async with world(cancels_gathered, echo) as env:
        handle = await env.start(cancels_gathered)
        assert await handle.result() >= 1
        entries = await journal_of(env, handle)
        orders = orders_of(cancels_gathered, entries)
    assert len(orders) == 1
    assert len(orders.pop()) == 12


@workflow
async def begins_as_completed() -> None:
    seen.extend([await done for done in asyncio.as_completed([echo(str(number)) for number in range(12)])])


async def test_coroutines_given_to_as_completed_begin_in_the_order_of_their_names() -> None:
    async with world(begins_as_completed, echo) as env:
        handle = await env.start(begins_as_completed)
        await handle.result()
        entries = await journal_of(env, handle)
        begun = [step.input for step in (await handle.timeline()).steps if step.kind == "activity"]
    assert begun == [[str(number)] for number in range(12)]
    assert len(orders_of(begins_as_completed, entries)) == 1


async def test_as_completed_outside_of_workflows_is_asyncios() -> None:
    tasks = [asyncio.create_task(asyncio.sleep(0, number)) for number in range(3)]
    assert sorted([await done for done in asyncio.as_completed(tasks, timeout=10)]) == [0, 1, 2]


async def test_futures_of_gather_outside_of_workflows_are_hashed_as_ever() -> None:
    gathered = asyncio.gather(asyncio.sleep(0))
    assert hash(gathered) == object.__hash__(gathered) == hash(gathered)
    assert (await asyncio.wait([gathered]))[0] == {gathered}


@workflow
async def fails_in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(12):
            group.create_task(lives_until_cancelled(f"member {number}"))
        group.create_task(refuses())


async def test_a_task_group_cancels_its_members_in_one_order() -> None:
    async with world(fails_in_a_group, refuses) as env:
        handle = await env.start(fails_in_a_group)
        await env.settle()
        orders = orders_of(fails_in_a_group, await journal_of(env, handle))
    assert len(orders) == 1
    assert len(orders.pop()) == 12


@workflow
async def cancels_what_is_pending() -> str:
    tasks = [asyncio.create_task(lives_until_cancelled(str(n))) for n in range(12)]
    tasks.append(asyncio.create_task(echo("first")))  # type: ignore[arg-type]  # a mixed bag is meant
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    return str(len(done))


async def test_the_sets_of_wait_iterate_in_one_order() -> None:
    async with world(cancels_what_is_pending, echo) as env:
        handle = await env.start(cancels_what_is_pending)
        assert await handle.result() == "1"
        assert len(orders_of(cancels_what_is_pending, await journal_of(env, handle))) == 1


@workflow
async def calls_from_a_set() -> list[str]:
    tasks = {asyncio.create_task(echo(str(n)), name=f"t{n}") for n in range(20)}
    return [await echo(task.get_name()) for task in tasks]


async def test_a_set_of_tasks_issues_the_same_commands_in_replay() -> None:
    async with world(calls_from_a_set, echo) as env:
        handle = await env.start(calls_from_a_set)
        names = await handle.result()
        assert sorted(names) == sorted(f"t{n}" for n in range(20))
        for _ in range(20):
            replay(calls_from_a_set, await journal_of(env, handle)).tear_down()


async def test_tasks_are_named_by_count_and_futures_hashed_by_it() -> None:
    hashes: list[int] = []

    @workflow
    async def hashed() -> list[str]:
        loop = asyncio.get_running_loop()
        hashes.append(hash(loop.create_future()))
        task = asyncio.create_task(echo("x"))
        hashes.append(hash(task))
        await task
        return [task.get_name()]

    async with world(hashed, echo) as env:
        handle = await env.start(hashed)
        name = await handle.result()
        live = hashes[:2]
        hashes.clear()
        machine = replay(hashed, await journal_of(env, handle))
        assert hashes[:2] == live
        assert name == [machine.outcome and bytes(machine.outcome.value).decode().strip('[]"')]  # type: ignore[arg-type]  # set when complete


async def test_random_and_uuid_are_the_runs_own() -> None:
    @workflow
    async def rolls() -> list[str]:
        before = [str(uuid()), str(random().random())]
        await echo("a turn later")
        return [*before, str(uuid()), str(random().randint(1, 10**9))]

    async with world(rolls, echo) as env:
        one = await (first := await env.start(rolls)).result()
        two = await env.run(rolls)
        assert len({*one, *two}) == 8
        machine = replay(rolls, await journal_of(env, first))
        assert machine.outcome is not None
        assert all(roll.encode() in bytes(machine.outcome.value) for roll in one)  # type: ignore[arg-type]  # set when complete


async def test_turns_run_on_the_workers_thread_but_never_inside_one_of_its_tasks() -> None:
    host, tasks, loops = asyncio.get_running_loop(), set[Any](), set[str]()

    def look() -> None:
        tasks.add(asyncio.current_task(host))
        loops.add(type(asyncio.get_running_loop()).__name__)

    @workflow
    async def looks() -> str:
        look()
        await echo("x")
        look()
        await asyncio.sleep(1)
        look()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            look()
        await asyncio.sleep(3600)
        look()
        return "done"

    async with world(looks, echo) as env:
        handle = await env.start(looks)
        await env.advance(60)
        await handle.cancel()
        await env.crash()
        assert await handle.result() == "done"
        assert tasks == {None}
        assert loops == {"RunLoop"}
        assert asyncio.get_running_loop() is host


# -- strong references


async def test_a_task_without_references_is_not_collected() -> None:
    @workflow
    async def forgets() -> list[str]:
        done: list[str] = []

        async def works() -> None:
            done.append(await echo("worked"))

        asyncio.create_task(works())  # noqa: RUF006 - this is the point
        gc.collect()
        await asyncio.sleep(60)
        gc.collect()
        return done

    async with world(forgets, echo, keep_in_memory=3600) as env:
        handle = await env.start(forgets)
        await env.settle()
        gc.collect()
        assert await handle.result() == ["worked"]


async def countdown(name: str) -> AsyncIterator[int]:
    try:
        for number in range(3):
            yield number
            await asyncio.sleep(1)
    finally:
        seen.append(f"{name} closed on {type(asyncio.get_running_loop()).__name__}")


async def test_an_async_generator_runs_through_with_durable_sleeps() -> None:
    @workflow
    async def counts() -> list[int]:
        return [number async for number in countdown("all")]

    async with world(counts) as env:
        assert await env.run(counts) == [0, 1, 2]


async def test_a_generator_left_in_the_middle_is_closed_at_the_end_on_the_runs_loop() -> None:
    @workflow
    async def breaks_off() -> int:
        async for _ in countdown("left"):
            break
        async for _ in countdown("left, too"):
            break
        gc.collect()
        await asyncio.sleep(1)
        seen.append("main ended")
        return 1

    async with world(breaks_off, keep_in_memory=60, always_replay=False) as env:
        seen.clear()
        assert await env.run(breaks_off) == 1
        await env.settle()
        gc.collect()
        assert seen == ["main ended", "left closed on RunLoop", "left, too closed on RunLoop"]


async def test_aclose_in_a_workflow_runs_the_finally_at_once() -> None:
    @workflow
    async def closes() -> list[str]:
        generator = countdown("closed")
        await anext(generator)
        await generator.aclose()  # type: ignore[attr-defined]  # an iterator by its annotation
        return seen[-1:]

    async with world(closes) as env:
        seen.clear()
        assert await env.run(closes) == ["closed closed on RunLoop"]


async def test_generators_of_the_worker_are_not_held_by_runs() -> None:
    async def of_the_host() -> AsyncIterator[int]:
        yield 1
        yield 2

    @workflow
    async def naps() -> None:
        await asyncio.sleep(1)

    async with world(naps) as env:
        await env.run(naps)
        assert [number async for number in of_the_host()] == [1, 2]


@pytest.mark.parametrize("after", [0, 1])
async def test_what_a_finaliser_wakes_goes_on_in_the_same_turn(after: int) -> None:
    class Last:
        def __init__(self, woken: asyncio.Future[str]) -> None:
            self.woken = woken

        def call(self) -> None: ...

        def __del__(self) -> None:
            if not self.woken.done():
                self.woken.set_result("woken")

    @workflow
    async def is_woken(after: int) -> str:
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[str] = loop.create_future()
        loop.call_soon(Last(woken).call)  # only the callback refers to it
        for _ in range(after):
            loop.call_soon(int)
        return await woken

    async with world(is_woken) as env:
        handle = await env.start(is_woken, after)
        assert await handle.result() == "woken"
        assert [line.kind for line in await handle.journal()] == ["started"]


# -- nothing leaks in

request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="none")


@workflow
async def looks_around() -> list[str]:
    inside = [request_id.get(), str(decimal.getcontext().prec)]
    await asyncio.sleep(1)
    return [*inside, request_id.get()]


async def test_the_context_of_the_starter_does_not_leak_into_the_run() -> None:
    async with world(looks_around) as env:
        request_id.set("request 17")
        with decimal.localcontext(prec=5):
            assert await env.run(looks_around) == ["none", "28", "none"]


async def test_a_context_variable_set_in_a_run_stays_in_it() -> None:
    @workflow
    async def sets() -> list[str]:
        request_id.set("of the run")
        await asyncio.sleep(1)

        async def child() -> str:
            return request_id.get()

        return [request_id.get(), await asyncio.create_task(child())]

    async with world(sets, keep_in_memory=60) as env:
        assert await env.run(sets) == ["of the run", "of the run"]
        assert request_id.get() == "none"


@activity
async def looks_outside() -> str:
    return request_id.get()


@activity
def looks_outside_in_a_thread() -> str:
    return request_id.get()


async def test_the_context_of_the_starter_does_not_leak_into_activities() -> None:
    @workflow
    async def asks() -> list[str]:
        return [await looks_outside(), await looks_outside_in_a_thread()]

    async with world(asks, looks_outside, looks_outside_in_a_thread) as env:
        request_id.set("request 18")
        assert await env.run(asks) == ["none", "none"]


async def test_values_are_copies_also_live() -> None:
    @activity
    async def gives() -> dict[str, Any]:
        return {"tuple": (1, 2), "number": 1}

    @workflow
    async def takes(given: dict[str, Any]) -> list[Any]:
        got = await gives()
        got["number"] = 2
        again = await gives()
        return [given, got["tuple"], again["number"]]

    async with world(takes, gives) as env:
        assert await env.run(takes, {"a": (1, 2)}) == [{"a": [1, 2]}, [1, 2], 1]
