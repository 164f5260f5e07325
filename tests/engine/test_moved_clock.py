"""A store whose time is another one: for simulations that wait for days."""

import asyncio
from pathlib import Path

import pytest

from batuta import connect, now, workflow
from batuta.clock import SECOND, SystemClock, as_micros
from batuta.errors import InvalidInput

DAY = 86_400


class Moved(SystemClock):
    ahead = 0

    def now(self) -> int:
        return super().now() + self.ahead * SECOND


@workflow
async def wait_a_month() -> int:
    begun = now()
    await asyncio.sleep(30 * DAY)
    return (as_micros(now()) - as_micros(begun)) // (DAY * SECOND)


async def test_a_timer_of_a_month_is_due_when_the_clock_was_moved_before_the_worker_begins(tmp_path: Path) -> None:
    clock = Moved()
    async with connect(f"sqlite:///{tmp_path}/x.db", clock=clock) as client:
        async with client.worker(workflows=[wait_a_month], grace=0.5):
            handle = await client.start(wait_a_month)
            with pytest.raises(TimeoutError):
                await handle.result(timeout=0.2)
        clock.ahead = 30 * DAY
        async with client.worker(workflows=[wait_a_month], grace=0.5):
            assert await handle.result(timeout=30) == 30


async def test_a_store_in_memory_has_that_time_too() -> None:
    clock = Moved()
    clock.ahead = 365 * DAY
    async with connect("memory://", clock=clock) as client:
        handle = await client.start(wait_a_month)
        created = (await handle.describe()).created_at
        assert created is not None
        ahead = as_micros(created) - SystemClock().now()
        assert ahead > 364 * DAY * SECOND


def test_postgresql_has_a_clock_of_its_own() -> None:
    with pytest.raises(InvalidInput, match="a clock of its own"):
        connect("postgresql://localhost/x", clock=SystemClock())
