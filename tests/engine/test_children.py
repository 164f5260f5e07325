"""Children and messages between runs: the same on every store."""

import asyncio
from typing import Any

import pytest

from batuta import (
    AlreadyStarted,
    Child,
    Handle,
    InvalidInput,
    Retry,
    RunCancelled,
    RunClosed,
    RunFailed,
    RunState,
    RunTerminated,
    RunTimedOut,
    Signal,
    UnknownRun,
    Workflow,
    activity,
    info,
    run_child,
    send,
    start_child,
    workflow,
)
from batuta.verify import verify
from tests.engine.arena import PATIENCE, Arena, until, until_state
from tests.engine.kit import replay_all, world

begun: list[str] = []
gates: dict[str, asyncio.Event] = {}


@pytest.fixture(autouse=True)
def _afresh() -> None:
    begun.clear()
    gates.clear()


@activity
async def add(number: int) -> int:
    return number + 1


@activity
async def waits_at(gate: str) -> str:
    begun.append(gate)
    await gates.setdefault(gate, asyncio.Event()).wait()
    return gate


@workflow
async def adds(number: int) -> int:
    return await add(number)


@workflow
async def fails(message: str) -> None:
    raise ValueError(message)


@workflow
async def stays(gate: str) -> str:
    return await waits_at(gate)


@workflow
async def sleeps(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "slept"


@workflow
async def family(count: int) -> list[int]:
    return await asyncio.gather(*(run_child(adds, number) for number in range(count)))


@workflow
async def names_its_children() -> list[Any]:
    said: list[Any] = []
    child = await start_child(adds, 1, id="kid", tags={"who": "kid"}, memo={"n": 1})
    said.append(child.id)
    said.append(await child.result())
    said.append(await child.result())
    try:
        await run_child(fails, "no more tea")
    except RunFailed as error:
        said += [type(error).__name__, repr(error.__cause__)]
    said.append(await run_child("adds", 5, result=int))
    return said


@workflow
async def refused() -> list[str]:
    said: list[str] = []
    for start in (start_child, run_child):
        try:
            await start(adds, 1, id="taken")
        except AlreadyStarted as error:
            advice = str(error).partition(":")[2].partition(",")[0]
            said.append(f"{error.id} {error.state}:{advice}")
    return said


@workflow
async def keeps(policy: str, gate: str) -> str:
    await start_child(stays, gate, id="kid", policy=policy)  # type: ignore[call-overload]  # any text
    return await waits_at("parent")


@workflow
async def asks_once(gate: str) -> str:
    try:
        async with asyncio.timeout(0.05):
            return await run_child(stays, gate, id="kid")
    except TimeoutError:
        return "too slow"


@workflow
async def watches(seconds: float) -> str:
    child: Child[str] = await start_child(sleeps, seconds, id="kid", timeout=0.05 if seconds > 50 else None)
    try:
        return await child.result()
    except (RunTerminated, RunTimedOut, RunCancelled) as error:
        return f"{type(error).__name__} {error.state}"


@workflow
async def sends_to(id: str) -> str:
    try:
        await send(id, "news", {"n": 1})
    except (UnknownRun, RunClosed) as error:
        return type(error).__name__
    return "sent"


EVERYTHING = (
    adds,
    fails,
    stays,
    sleeps,
    family,
    names_its_children,
    refused,
    keeps,
    asks_once,
    watches,
    sends_to,
    add,
    waits_at,
)
WORKFLOWS: dict[str, Workflow[..., Any]] = {thing.name: thing for thing in EVERYTHING if isinstance(thing, Workflow)}


async def has_begun(gate: str) -> None:
    async def is_there() -> bool:
        return gate in begun

    await until(is_there)


async def test_results_of_children_come_in_the_order_they_were_asked_for(arena: Arena) -> None:  # covers B-15
    client = await arena.client()
    await arena.worker(client, *EVERYTHING)
    handle = await client.start(family, 30, id="p")
    assert await handle.result(PATIENCE) == list(range(1, 31))
    kinds = [str(line.kind) for line in await handle.journal()]
    assert kinds == ["started"] + ["child_done"] * 30
    await replay_all(arena.store(client), WORKFLOWS)


async def test_children_spread_over_workers(arena: Arena) -> None:
    one, two = await arena.client(), await arena.client()
    await arena.worker(one, *EVERYTHING, claim_batch=5)
    await arena.worker(two, *EVERYTHING, claim_batch=5)
    handle = await one.start(family, 60)
    assert await handle.result(PATIENCE) == list(range(1, 61))


async def test_a_child_can_be_named_awaited_twice_and_fail(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *EVERYTHING)
    handle = await client.start(names_its_children, id="p")
    assert await handle.result(PATIENCE) == ["kid", 2, 2, "RunFailed", "ValueError('no more tea')", 6]
    kid = await (await client.get("kid")).describe()
    assert (kid.tags, kid.memo, kid.state) == ({"who": "kid"}, {"n": 1}, RunState.COMPLETED)
    await replay_all(arena.store(client), WORKFLOWS)


async def test_a_child_whose_id_is_taken_is_refused(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *EVERYTHING)
    other = await client.start(stays, "gate", id="taken")
    await has_begun("gate")
    handle = await client.start(refused, id="p")
    assert await handle.result(PATIENCE) == ["taken running: give the child another id"] * 2
    gates["gate"].set()
    assert await other.result(PATIENCE) == "gate"
    await replay_all(arena.store(client), WORKFLOWS)


@pytest.mark.parametrize(
    ("policy", "state"),
    [("cancel", RunState.CANCELLED), ("terminate", RunState.TERMINATED), ("abandon", RunState.COMPLETED)],
)
async def test_a_parent_that_closes_tells_its_children_by_their_policy(
    arena: Arena, policy: str, state: RunState
) -> None:
    client = await arena.client()
    await arena.worker(client, *EVERYTHING)
    handle = await client.start(keeps, policy, "gate", id="p")
    await has_begun("gate")
    await has_begun("parent")
    gates["parent"].set()
    await handle.result(PATIENCE)
    kid: Handle[Any] = await client.get("kid")
    if policy == "abandon":
        assert (await kid.describe()).state is RunState.RUNNING
        gates["gate"].set()
    await until_state(kid, state)
    await replay_all(arena.store(client), WORKFLOWS)


async def test_a_parent_that_is_terminated_tells_its_children_too(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *EVERYTHING)
    handle = await client.start(keeps, "cancel", "gate", id="p")
    await has_begun("gate")
    await handle.terminate("enough")
    await until_state(await client.get("kid"), RunState.CANCELLED)


async def test_giving_up_on_a_child_cancels_it_and_goes_on_at_once(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *EVERYTHING)
    handle = await client.start(asks_once, "gate", id="p")
    assert await handle.result(PATIENCE) == "too slow"
    await until_state(await client.get("kid"), RunState.CANCELLED)
    await replay_all(arena.store(client), WORKFLOWS)


async def test_a_cancel_of_a_child_does_not_reach_another_run_that_has_its_id(arena: Arena) -> None:
    @workflow
    async def gives_up_at_once() -> str:
        task = asyncio.ensure_future(run_child(stays, "other", id="kid"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        number = await run_child(adds, 1)
        return f"done {number}"

    client = await arena.client()
    await arena.worker(client, *EVERYTHING, gives_up_at_once)
    stranger = await client.start(stays, "gate", id="kid")
    await has_begun("gate")
    assert await (await client.start(gives_up_at_once, id="p")).result(PATIENCE) == "done 2"
    await until(lambda: _is_unread_free(arena, client, stranger))
    gates["gate"].set()
    assert await stranger.result(PATIENCE) == "gate"


async def _is_unread_free(arena: Arena, client: Any, handle: Any) -> bool:
    found = await arena.store(client).unread([handle.run_id])
    return not found[handle.run_id][1]


async def test_a_child_that_is_ended_from_outside_is_an_error_of_its_parent(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *EVERYTHING)
    handle = await client.start(watches, 30.0, id="p")
    await until(lambda: _exists(client, "kid"))
    await (await client.get("kid")).terminate("enough")
    assert await handle.result(PATIENCE) == "RunTerminated terminated"


async def test_a_child_that_is_over_its_time_is_an_error_of_its_parent(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *EVERYTHING)
    handle = await client.start(watches, 60.0, id="p")
    assert await handle.result(PATIENCE) == "RunTimedOut timed_out"


async def _exists(client: Any, id: str) -> bool:
    try:
        await client.get(id)
    except UnknownRun:
        return False
    return True


async def test_after_a_crash_parent_and_children_go_on(arena: Arena) -> None:
    one, two = await arena.client(), await arena.client()
    first = await arena.worker(one, *EVERYTHING)
    handle = await two.start(keeps, "cancel", "gate", id="p")
    await has_begun("gate")
    await has_begun("parent")
    await arena.kill(one, first)
    begun.clear()
    await arena.worker(two, *EVERYTHING)
    await has_begun("gate")
    await has_begun("parent")
    gates["parent"].set()
    assert await handle.result(PATIENCE) == "parent"


async def test_a_parent_that_has_left_memory_hears_of_its_children(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *EVERYTHING, keep_in_memory=0.01)
    handle = await client.start(watches, 0.3, id="p")
    assert await handle.result(PATIENCE) == "slept"


async def test_a_graceful_stop_hands_parent_and_children_to_another_worker(arena: Arena) -> None:
    client = await arena.client()
    first = await arena.worker(client, *EVERYTHING)
    handle = await client.start(watches, 0.2, id="p")
    await until(lambda: _exists(client, "kid"))
    await first.stop()
    await arena.worker(client, *EVERYTHING)
    assert await handle.result(PATIENCE) == "slept"


async def test_the_database_keeps_its_promises_about_families(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *EVERYTHING)
    await (await client.start(family, 5)).result(PATIENCE)
    await (await client.start(names_its_children, id="p")).result(PATIENCE)
    await (await client.start(asks_once, "gate", id="q")).result(PATIENCE)
    await until_state(await client.get("kid"), RunState.CANCELLED)
    report = await verify(arena.store(client), list(WORKFLOWS.values()))
    assert report.violations == []


async def test_a_signal_to_an_unknown_or_closed_run_is_refused(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *EVERYTHING)
    await (await client.start(adds, 1, id="closed")).result(PATIENCE)
    assert await (await client.start(sends_to, "nobody")).result(PATIENCE) == "UnknownRun"
    assert await (await client.start(sends_to, "closed")).result(PATIENCE) == "RunClosed"
    await replay_all(arena.store(client), WORKFLOWS)


async def test_a_child_is_retried_by_its_own_policy(arena: Arena) -> None:
    @workflow
    async def third_time() -> int:
        if info().attempt < 3:
            raise ConnectionError
        return info().attempt

    @workflow
    async def patient() -> int:
        return await run_child(third_time, retry=Retry(attempts=3, first=0.01))

    client = await arena.client()
    await arena.worker(client, third_time, patient)
    assert await (await client.start(patient)).result(PATIENCE) == 3


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"policy": "adopt"}, "policy='adopt' must be one of cancel, terminate, abandon"),
        ({"colour": "red"}, "unknown options of a child colour"),
        ({"id": ""}, "run id ''"),
        ({"timeout": -1}, "timeout=-1"),
        ({"retry": 3}, "retry=3 must be a Retry"),
        ({"tags": {"a": 1}}, "must map strings to strings"),
        ({"version": 2}, "version 2 must be a string"),
        ({"memo": object()}, "memo has no JSON form"),
    ],
)
async def test_bad_options_of_a_child_are_errors_in_the_code(options: dict[str, Any], says: str) -> None:
    @workflow
    async def careless() -> str:
        try:
            await run_child(adds, 1, **options)
        except InvalidInput as error:
            return str(error)
        return "accepted"

    async with world(careless, adds, add) as env:
        assert says in await env.run(careless)


@pytest.mark.parametrize("always_replay", [False, True])
async def test_a_parent_that_is_cancelled_cancels_its_child_once(always_replay: bool) -> None:
    cleaned: list[str] = []

    @activity
    async def clean(word: str) -> None:
        await asyncio.sleep(5)
        cleaned.append(word)

    @workflow
    async def tidy() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            await clean("child")

    @workflow
    async def waits_for_it(policy: str) -> None:
        await run_child(tidy, id="kid", policy=policy)  # type: ignore[call-arg, call-overload]  # any text

    async with world(tidy, waits_for_it, clean, always_replay=always_replay) as env:
        for policy, state in (("cancel", RunState.CANCELLED), ("abandon", RunState.COMPLETED)):
            handle = await env.start(waits_for_it, policy)
            await env.advance(10)
            await handle.cancel("enough")
            with pytest.raises(RunCancelled):
                await handle.result()
            await env.advance(2000)
            assert (await (await env.client.get("kid")).describe()).state is state
        assert cleaned == ["child", "child"]


@pytest.mark.parametrize("always_replay", [False, True])
async def test_what_a_child_sends_comes_before_word_of_its_end(always_replay: bool) -> None:
    news = Signal("news", int)

    @workflow
    async def reports(id: str) -> None:
        for number in range(3):
            await send(id, news, number)

    @workflow
    async def reads() -> list[Any]:
        said: list[Any] = []

        @news.handle
        def take(number: int) -> None:
            said.append(number)

        await run_child(reports, info().id)
        return [*said, "ended"]

    async with world(reports, reads, always_replay=always_replay) as env:
        assert await env.run(reads) == [0, 1, 2, "ended"]


async def test_thousands_of_parents_leave_room_for_their_children() -> None:
    @workflow
    async def one() -> int:
        return await run_child(adds, 1)

    async with world(one, adds, add, max_runs=20, keep_in_memory=3600.0) as env:
        began = env.now
        handles = [await env.start(one) for _ in range(100)]
        assert [await handle.result() for handle in handles] == [2] * 100
        assert (env.now - began).total_seconds() < 60


async def test_a_run_leaves_memory_when_its_children_take_long() -> None:
    @workflow
    async def patient() -> str:
        return await run_child(sleeps, 3600.0)

    async with world(patient, sleeps, keep_in_memory=30.0) as env:
        handle = await env.start(patient)
        await env.advance(10)
        assert (await handle.describe()).state is RunState.RUNNING
        await env.advance(60)
        assert (await handle.describe()).state is RunState.WAITING
        assert await handle.result() == "slept"


async def test_arguments_that_do_not_fit_are_an_error_in_the_code() -> None:
    @workflow
    async def careless() -> str:
        try:
            await run_child(adds, 1, 2, 3)  # type: ignore[call-arg, arg-type]  # on purpose
        except TypeError as error:
            return str(error)
        return "accepted"

    async with world(careless, adds, add) as env:
        assert "too many positional arguments" in await env.run(careless)
