"""A worker that lacks an activity: it does what it can, and leaves the rest to those who have it."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from batuta import CompleteLater, Retry, RunState, activity, activity_info, workflow
from batuta.journal.records import Claim
from tests.engine.kit import world

happened: Counter[str] = Counter()


@activity
async def has() -> int:
    happened["begun"] += 1
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        happened["cut off"] += 1
        raise
    happened["done"] += 1
    return 1


@activity
async def lacks() -> int:
    happened["lacked"] += 1
    return 1


@workflow
async def needs_both() -> int:
    return sum(await asyncio.gather(has(), lacks(), has()))


@workflow
async def times_out() -> str:
    try:
        async with asyncio.timeout(3):
            await lacks()
    except TimeoutError:
        return f"timed out, {await has()} done"
    return "not timed out"


@workflow
async def is_cancelled() -> str:
    try:
        await lacks()
    except asyncio.CancelledError:
        return f"cancelled, {await has()} done"
    return "not cancelled"


@workflow
async def waits_for_ever() -> int:
    return await lacks()


@pytest.fixture(autouse=True)
def nothing_happened() -> None:
    happened.clear()


async def test_the_activities_it_has_are_executed_once_and_never_cut_off() -> None:
    async with world(needs_both, has) as env:
        handle = await env.start(needs_both)
        await env.advance(600)
        assert happened == {"begun": 2, "done": 2}
        assert (await handle.describe()).state is RunState.WAITING
        await env.deploy(activities=[has, lacks])
        assert await handle.result() == 3
        assert happened == {"begun": 2, "done": 2, "lacked": 1}


async def test_a_timeout_in_the_code_fires_while_an_activity_is_lacking() -> None:
    async with world(times_out, has) as env:
        assert await env.run(times_out) == "timed out, 1 done"


async def test_a_run_that_lacks_an_activity_can_be_cancelled() -> None:
    async with world(is_cancelled, has) as env:
        handle = await env.start(is_cancelled)
        await env.advance(60)
        await handle.cancel()
        assert await handle.result() == "cancelled, 1 done"


async def test_a_run_that_lacks_an_activity_runs_out_of_time() -> None:
    async with world(waits_for_ever, has) as env:
        handle = await env.start(waits_for_ever, timeout=60)
        await env.advance(70)
        assert (await handle.describe()).state is RunState.TIMED_OUT


@pytest.mark.parametrize("cancel", [True, False], ids=["cancelled", "left-alone"])
async def test_waiting_for_a_lacking_activity_costs_a_claim_every_few_seconds(
    cancel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(waits_for_ever, is_cancelled, has) as env:
        claim, claims = env.store.claim, Counter[str]()

        async def counted(*asked: Any) -> Claim:
            found = await claim(*asked)
            claims.update(journal_of.run.id for journal_of in found.stored_runs)
            return found

        monkeypatch.setattr(env.store, "claim", counted)
        await env.start(waits_for_ever, id="waits")
        cancelled = await env.start(is_cancelled, id="cancelled")
        await env.advance(30)
        if cancel:
            await cancelled.cancel()
        await env.advance(30)
        assert 2 <= claims["waits"] <= 20
        assert 2 <= claims["cancelled"] <= 25


@pytest.mark.parametrize("attempt", [1, 2])
async def test_what_it_writes_of_an_answer_from_outside_while_it_is_busy_can_be_read_again(attempt: int) -> None:
    tokens: list[str] = []

    @activity(retry=Retry(attempts=2, first=1, jitter=0))
    async def slow() -> str:
        if activity_info().attempt < attempt:
            raise OSError
        tokens.append(activity_info().token)
        await asyncio.sleep(60)
        raise CompleteLater

    @activity
    async def works() -> str:
        await asyncio.sleep(100)
        return "worked"

    @workflow
    async def asks() -> list[str]:
        return list(await asyncio.gather(slow(), works()))

    async with world(asks, slow, works) as env:
        handle = await env.start(asks)
        while not tokens:
            await env.advance(0.5)
        await env.deploy(activities=[works])
        await env.advance(1)
        await env.client.complete(tokens[0], "answered")
        await env.advance(1)
        await env.crash()
        assert await handle.result() == ["answered", "worked"]
