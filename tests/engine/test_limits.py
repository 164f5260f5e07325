"""How many attempts a worker executes at once: by kind, and by activity."""

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from batuta import ActivityTimeout, InvalidInput, Retry, activity, activity_info, now, workflow
from tests.engine.kit import world

running: Counter[str] = Counter()
most: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def _nothing_runs() -> None:
    running.clear()
    most.clear()


async def busy(name: str, seconds: float) -> str:
    running[name] += 1
    most[name] = max(most[name], running[name])
    try:
        await asyncio.sleep(seconds)
    finally:
        running[name] -= 1
    return name


@activity(limit=2)
async def charge(seconds: float) -> str:
    return await busy("charge", seconds)


@activity
async def ship(seconds: float) -> str:
    return await busy("ship", seconds)


@workflow
async def sells(charges: int, ships: int) -> float:
    begun = now()
    work = [charge(10) for _ in range(charges)] + [ship(10) for _ in range(ships)]
    await asyncio.gather(*work)
    return round((now() - begun).total_seconds())


async def test_an_activity_with_a_limit_runs_so_often_at_once() -> None:
    async with world(sells, charge, ship) as env:
        assert await env.run(sells, 7, 7) == 40
        assert most == {"charge": 2, "ship": 7}


async def test_the_limit_holds_over_all_runs_of_a_worker() -> None:
    async with world(sells, charge, ship) as env:
        handles = [await env.start(sells, 1, 0) for _ in range(6)]
        assert sorted([await handle.result() for handle in handles]) == [10, 10, 20, 20, 30, 30]
        assert most["charge"] == 2


async def test_both_limits_hold_together() -> None:
    async with world(sells, charge, ship, max_activities=3) as env:
        assert await env.run(sells, 4, 5) == 30
        assert most["charge"] <= 2
        assert most["charge"] + most["ship"] <= 5


async def test_an_activity_waiting_for_its_limit_leaves_other_slots_free() -> None:
    async with world(sells, charge, ship, max_activities=3) as env:
        handle = await env.start(sells, 9, 1)
        await env.advance(1)
        assert running == {"charge": 2, "ship": 1}
        await handle.result()


async def test_a_call_that_waits_for_its_limit_too_long_fails() -> None:
    @workflow
    async def hurries() -> list[Any]:
        async def one(**options: Any) -> str:
            try:
                return await charge.with_options(retry=Retry(attempts=1), **options)(60)
            except ActivityTimeout as error:
                return error.kind

        return list(await asyncio.gather(one(), one(), one(start_timeout=10), one()))

    async with world(hurries, charge) as env:
        assert await env.run(hurries) == ["charge", "charge", "start", "charge"]


async def test_cancelled_calls_free_their_limit_wherever_they_wait() -> None:
    @workflow
    async def changes_its_mind(crowd: int) -> str:
        tasks = [asyncio.create_task(charge(1000)) for _ in range(crowd)]
        await asyncio.sleep(1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return await charge(1)

    async with world(changes_its_mind, charge, ship, max_activities=1) as env:
        assert await env.run(changes_its_mind, 9) == "charge"
        assert env.worker.session is not None
        places = env.worker.session.executor._slots
        assert [gate.free for gate in places._kinds] == [1, 32, 4, 8]
        assert places._named["charge"].free == 2


async def test_failed_attempts_give_their_place_back() -> None:
    @activity(limit=1, retry=Retry(attempts=3, first=1))
    async def flaky() -> int:
        if activity_info().attempt < 3:
            raise ConnectionError
        return activity_info().attempt

    @workflow
    async def asks() -> list[int]:
        return list(await asyncio.gather(flaky(), flaky()))

    async with world(asks, flaky) as env:
        assert await env.run(asks) == [3, 3]
        assert env.worker.session is not None
        assert env.worker.session.executor._slots._named["flaky"].free == 1


@dataclass
class Article:
    name: str

    def __post_init__(self) -> None:
        _ = {"pen": 1}[self.name]


@pytest.mark.parametrize("is_async", [True, False], ids=["loop", "thread"])
async def test_attempts_whose_arguments_cannot_be_made_fail_and_give_their_place_back(is_async: bool) -> None:
    async def weigh(article: Article) -> str:
        return article.name

    def weigh_in_thread(article: Article) -> str:
        return article.name

    retried = activity(name="weighs", retry=Retry(attempts=2, first=1))
    weighs: Any = retried(weigh) if is_async else retried(weigh_in_thread)

    @workflow
    async def asks(name: str) -> str:
        try:
            return str(await weighs({"name": name}))
        except InvalidInput as error:
            return type(error.__cause__).__name__

    async with world(asks, weighs, max_activities=1, threads=1) as env:
        assert [await env.run(asks, name) for name in ("ink", "pen")] == ["KeyError", "pen"]


async def test_threads_have_limits_of_their_own_too() -> None:
    @activity(limit=1)
    def sync(number: int) -> int:
        running["sync"] += 1
        most["sync"] = max(most["sync"], running["sync"])
        running["sync"] -= 1
        return number

    @workflow
    async def asks() -> list[int]:
        return list(await asyncio.gather(*(sync(number) for number in range(20))))

    async with world(asks, sync) as env:
        assert await env.run(asks) == list(range(20))
        assert most["sync"] == 1
