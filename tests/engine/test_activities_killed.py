"""Workers killed at every failpoint on the way of an answer from outside, of a routed activity and of heartbeats."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from batuta import (
    CompleteLater,
    Handle,
    InvalidToken,
    LostAttempt,
    Retry,
    RunClosed,
    activity,
    activity_info,
    failpoints,
    heartbeat,
    workflow,
)
from batuta.errors import OutcomeUnknown, StoreUnavailable
from batuta.journal.entries import EntryKind
from batuta.testing import Environment
from batuta.verify import verify
from tests.long import LONG, some_of
from tests.properties.test_crashes import Killer, forgive_the_killed

executed: list[tuple[str, Any]] = []
tokens: list[str] = []

Scenario = Callable[[Environment], Awaitable[Handle[Any]]]


@activity(retry=Retry(attempts=2, first=1, jitter=0), timeout=3600)
async def ask(question: str) -> str:
    executed.append((activity_info().key, activity_info().attempt))
    tokens.append(activity_info().token)
    raise CompleteLater


@activity(queue="gpu", retry=Retry(attempts=3, first=1, jitter=0), heartbeat=30)
async def render(pages: int) -> int:
    executed.append((activity_info().key, activity_info().details))
    for page in range(activity_info().details or 0, pages):
        await asyncio.sleep(2)
        heartbeat(page + 1)
        if page == 2 and activity_info().attempt == 1:
            raise ConnectionError("reset")
    return pages


@workflow
async def approval() -> str:
    first = await ask("may I?")
    await asyncio.sleep(3600)
    return f"{first}, {await ask('really?')}"


@workflow
async def film() -> list[int]:
    return [await render(5), *await asyncio.gather(render(1), render(2))]


async def begun(env: Environment, workflow: Any, id: str) -> Handle[Any]:
    """As a starter does who is not told whether it worked."""
    while True:
        try:
            return await env.start(workflow, id=id)
        except (OutcomeUnknown, StoreUnavailable):
            await asyncio.sleep(1)


async def answered(env: Environment) -> Handle[Any]:
    """A person answers each question, the first one with a failure, until it is acknowledged."""
    handle = await begun(env, approval, "a")
    known, failed = 0, False
    while (await handle.describe()).closed_at is None:
        await env.advance(60)
        for token in tokens[known:]:
            try:
                if not failed:
                    await env.client.fail(token, "ask me later")
                    failed = True
                else:
                    await env.client.complete(token, "yes")
            except (LostAttempt, RunClosed):
                pass
            except InvalidToken:
                pass  # its worker died before it was kept: the activity hands out another one
        known = len(tokens)
    return handle


async def routed(env: Environment) -> Handle[Any]:
    handle = await begun(env, film, "f")
    await handle.result()
    return handle


SCENARIOS: dict[str, tuple[Scenario, Any]] = {
    "answers from outside": (answered, "yes, yes"),
    "routed": (routed, [5, 1, 2]),
}


async def once(scenario: str, moments: set[int], killer_seen: list[Killer]) -> Handle[Any]:
    executed.clear()
    tokens.clear()
    happen, expected = SCENARIOS[scenario]
    asyncio.get_running_loop().set_exception_handler(forgive_the_killed)
    async with Environment(workflows=[approval, film], activities=[ask, render], queues=["default", "gpu"]) as env:
        killer = Killer(env, moments)
        killer_seen.append(killer)
        failpoints.armed = killer  # type: ignore[assignment]  # it passes by as an armed plan does
        try:
            handle = await happen(env)
            assert await handle.result() == expected
        finally:
            failpoints.arm()
        await killer.recovered()
        lines = await handle.journal()
        answers = [line for line in lines if line.kind in (EntryKind.ACTIVITY_DONE, EntryKind.ACTIVITY_FAILED)]
        assert len({line.body.seq for line in answers}) == len(answers)
        report = await verify(env.store, [approval, film])
        assert not report.violations, report.violations
        return handle


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_nothing_is_lost_wherever_a_worker_is_killed(scenario: str) -> None:
    calm: list[Killer] = []
    await once(scenario, set(), calm)
    assert len(calm[0].sites) > 30
    for moment in some_of(calm[0].sites):
        await once(scenario, {moment}, calm)
        assert calm[-1].killed, moment


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_nothing_is_lost_when_workers_are_killed_again_and_again(scenario: str) -> None:
    for step in (3, 5, 7, 11) if LONG else (3, 7):
        await once(scenario, set(range(step, 600, step)), [])


async def test_an_attempt_whose_answer_is_awaited_is_not_repeated_by_a_death() -> None:
    async with Environment(workflows=[approval], activities=[ask]) as env:
        executed.clear()
        tokens.clear()
        handle = await env.start(approval)
        await env.settle()
        for _ in range(5):
            await env.crash()
            await env.settle()
        assert len(executed) == 1
        await handle.terminate()
