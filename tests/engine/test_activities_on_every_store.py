"""Heartbeats, answers from outside and routing are the same on every store."""

import asyncio
from typing import Any

import pytest

from batuta import (
    ActivityTimeout,
    CompleteLater,
    LostAttempt,
    Retry,
    RunCancelled,
    RunClosed,
    RunState,
    TokenUsed,
    activity,
    activity_info,
    heartbeat,
    workflow,
)
from tests.engine.arena import PATIENCE, Arena, until, until_state
from tests.engine.kit import replay_all

executed: list[Any] = []
tokens: list[str] = []
gates: list[asyncio.Event] = []
"""The one of the test's own loop."""


@pytest.fixture(autouse=True)
def _afresh() -> None:
    executed.clear()
    tokens.clear()
    gates[:] = [asyncio.Event()]


@activity(heartbeat=30, retry=Retry(attempts=2, first=0.01))
async def copies(pages: int) -> int:
    executed.append(activity_info().details)
    for page in range(activity_info().details or 0, pages):
        heartbeat(page + 1)
    if len(executed) < 3:
        await gates[0].wait()
        raise ConnectionError("reset")
    return pages


@activity(retry=Retry(attempts=2, first=0.01), timeout=3600)
async def ask(question: str) -> str:
    executed.append(question)
    tokens.append(activity_info().token)
    raise CompleteLater


@activity(queue="gpu", retry=Retry(attempts=2, first=0.01))
async def render(scene: str) -> str:
    executed.append((activity_info().key, activity_info().attempt))
    if scene == "endless":
        await gates[0].wait()
    if activity_info().attempt == 1:
        raise ConnectionError("reset")
    return f"{scene}.png"


@workflow
async def copying(pages: int) -> int:
    return await copies(pages)


@workflow
async def asking() -> list[str]:
    return [await ask("first?"), *await asyncio.gather(ask("second?"), ask("third?"))]


@workflow
async def film(scene: str) -> list[str]:
    return list(await asyncio.gather(render(scene), render("credits")))


@workflow
async def hurries() -> str:
    try:
        return await render.with_options(start_timeout=0.2)("dawn")
    except ActivityTimeout as error:
        return error.kind


async def until_executed(count: int) -> None:
    async def there() -> bool:
        return len(executed) >= count

    await until(there)


async def test_heartbeat_details_outlive_a_worker_and_an_attempt(arena: Arena) -> None:
    client = await arena.client()
    first = await arena.worker(client, copying, copies)
    handle = await client.start(copying, 4)

    async def written() -> bool:
        return any(attempt.details == "4" for attempt in (await handle.describe()).attempts)

    await until(written)
    await arena.kill(client, first)
    await arena.worker(client, copying, copies)
    await until_executed(2)
    gates[0].set()
    assert await handle.result(PATIENCE) == 4
    assert executed == [None, 4, 4]


async def test_answers_from_outside_reach_a_run_without_an_owner(arena: Arena) -> None:
    client, other = await arena.client(), await arena.client()
    await arena.worker(client, asking, ask)
    handle = await client.start(asking)
    await until_state(handle, RunState.WAITING)
    assert [attempt.outside for attempt in (await handle.describe()).attempts] == [True]
    await other.heartbeat(tokens[0], {"page": 1})

    async def noted() -> bool:
        return [attempt.details for attempt in (await handle.describe()).attempts] == ['{"page":1}']

    await until(noted)
    await other.fail(tokens[0], "later")
    await until_executed(2)
    with pytest.raises(LostAttempt):
        await other.complete(tokens[0], "too late")
    await other.complete(tokens[1], "one")
    with pytest.raises(TokenUsed):
        await other.complete(tokens[1], "one")
    await until_executed(4)
    await asyncio.gather(other.complete(tokens[3], "x"), client.complete(tokens[2], "x"))
    assert await handle.result(PATIENCE) == ["one", "x", "x"]
    with pytest.raises(RunClosed):
        await other.complete(tokens[3], "again")
    assert executed[:2] == ["first?", "first?"]
    await replay_all(arena.store(client), {"asking": asking})


async def test_heartbeats_from_outside_leave_nothing_in_the_inbox(arena: Arena) -> None:
    client, other = await arena.client(), await arena.client()
    await arena.worker(client, asking, ask)
    handle = await client.start(asking)
    await until_state(handle, RunState.WAITING)
    for page in range(20):
        await other.heartbeat(tokens[0], page)

        async def noted(page: int = page) -> bool:
            return [attempt.details for attempt in (await handle.describe()).attempts] == [str(page)]

        await until(noted)
    kept = await arena.store(client).inbox(handle.run_id)
    assert [message.message_id for message in kept if message.message_id.startswith("beat:")] == []
    await handle.terminate()


async def test_a_worker_of_another_queue_executes_activities_routed_to_it(arena: Arena) -> None:
    client, other = await arena.client(), await arena.client()
    await arena.worker(client, film)
    await arena.worker(other, render, queues=["gpu"])
    handle = await client.start(film, "dawn")
    assert await handle.result(PATIENCE) == ["dawn.png", "credits.png"]
    keys = [f"{handle.run_id}:{seq}:render" for seq in (1, 2)]
    assert sorted(executed) == sorted((key, attempt) for key in keys for attempt in (1, 2))
    assert await client.count(kind="activity", state="completed") == 2
    await replay_all(arena.store(client), {"film": film})


async def test_a_cancel_travels_to_the_other_worker(arena: Arena) -> None:
    client, other = await arena.client(), await arena.client()
    await arena.worker(client, film)
    await arena.worker(other, render, queues=["gpu"])
    handle = await client.start(film, "endless")
    await until_executed(1)
    await handle.cancel()
    with pytest.raises(RunCancelled):
        await handle.result(PATIENCE)

    async def ended() -> bool:
        return await client.count(kind="activity", state="cancelled") >= 1

    await until(ended)


async def test_a_call_that_is_not_taken_in_time_fails(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, hurries)
    handle = await client.start(hurries)
    assert await handle.result(PATIENCE) == "start"
    assert await client.count(kind="activity", state="timed_out") == 1


async def test_a_dead_worker_of_the_other_queue_is_replaced(arena: Arena) -> None:
    client, other = await arena.client(), await arena.client()
    await arena.worker(client, film)
    doomed = await arena.worker(other, render, queues=["gpu"])
    handle = await client.start(film, "endless")
    await until_executed(3)
    await arena.kill(other, doomed)
    gates[0].set()
    await arena.worker(other, render, queues=["gpu"])
    assert await handle.result(PATIENCE) == ["endless.png", "credits.png"]
    assert len({key for key, _ in executed}) == 2
