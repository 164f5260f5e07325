"""Activities of a batch may share a task while none of them waits; nothing of one is seen by another."""

import asyncio
import contextvars
from collections.abc import AsyncIterator

from batuta import Retry, activity, activity_info, workflow
from tests.engine.kit import world

seen: list[object] = []
mark: contextvars.ContextVar[str] = contextvars.ContextVar("mark", default="clean")


@activity
async def act(name: str) -> str:
    """What it does is in its name."""
    task = asyncio.current_task()
    assert task is not None
    seen.append((name, mark.get(), activity_info().id))
    if "marks" in name:
        mark.set(name)
    if "waits" in name:
        async with asyncio.timeout(60):
            await asyncio.sleep(0.01)
        assert asyncio.current_task() is task
    if "cancels itself" in name:
        task.cancel()
    if "fails" in name:
        raise ValueError(name)
    seen.append(f"{name} done")
    return mark.get()


@workflow
async def many(names: list[str]) -> list[str]:
    answers = await asyncio.gather(*(act(name) for name in names), return_exceptions=True)
    return [str(answer) for answer in answers]


@workflow
async def takes_back() -> str:
    """Asks for an activity and gives it up, both in one turn."""
    task = asyncio.ensure_future(act("never"))
    await asyncio.sleep(0)
    task.cancel()
    return await act("after")


async def test_what_an_activity_sets_in_its_context_is_not_seen_by_the_next() -> None:
    async with world(many, act) as env:
        assert await env.run(many, ["a", "marks", "b", "marks and waits", "c"]) == [
            "clean",
            "marks",
            "clean",
            "marks and waits",
            "clean",
        ]


async def test_a_waiting_activity_does_not_hold_up_those_behind_it() -> None:
    seen.clear()
    async with world(many, act) as env:
        assert await env.run(many, ["waits 1", "a", "waits 2", "b", "c"]) == ["clean"] * 5
    done = [line for line in seen if isinstance(line, str)]
    assert sorted(done[:3]) == ["a done", "b done", "c done"]


async def test_an_activity_that_cancels_its_own_task_does_not_cancel_the_next_activity() -> None:
    async with world(many, act) as env:
        answers = await env.run(many, ["cancels itself", "waits", "a", "waits too"])
        assert answers[1:] == ["clean"] * 3


async def test_an_activity_cancelled_before_its_attempt_begins_is_never_called_and_frees_its_slot() -> None:
    seen.clear()
    async with world(takes_back, many, act, max_activities=1) as env:
        assert await env.run(takes_back) == "clean"
        assert await env.run(many, ["a", "b"]) == ["clean"] * 2
    assert "never done" not in seen


async def test_async_generators_of_an_activity_that_is_begun_again_are_its_own() -> None:
    async def numbers() -> AsyncIterator[int]:
        for number in range(3):
            yield number

    @activity(retry=Retry(attempts=1))
    async def counts() -> list[int]:
        found = [number async for number in numbers()]
        if not crashed:
            await asyncio.sleep(1_000)
        return found

    @workflow
    async def one() -> list[int]:
        return await counts()

    crashed = False
    async with world(one, counts) as env:
        handle = await env.start(one)
        await env.settle()
        crashed = True
        await env.crash()
        assert await handle.result() == [0, 1, 2]
