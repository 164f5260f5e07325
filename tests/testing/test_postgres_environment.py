"""Environments on a real PostgreSQL: transactional activities and own transactions, in virtual time."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from batuta import Queue, RunState, Schedule, Signal, activity, every, job, transaction, workflow
from batuta.testing import Environment, in_virtual_time, run

go = Signal("go", int)


@activity(transactional=True)
async def book(order: int) -> int:
    await transaction().connection.execute("INSERT INTO orders VALUES ($1)", order)
    transaction().enqueue(note, order, id=f"note-{order}")
    return order


@activity(transactional=True)
async def slow_booking(order: int) -> int:
    await transaction().connection.execute("INSERT INTO orders VALUES ($1)", order)
    await asyncio.sleep(5)
    await transaction().connection.execute("INSERT INTO orders VALUES ($1)", order + 1)
    return order


@job
async def note(order: int) -> str:
    return f"noted {order}"


@job
async def slow() -> None:
    await asyncio.sleep(3600)


@workflow
async def checkout(order: int) -> int:
    await book(order)
    await asyncio.sleep(30 * 86_400)
    return await go.wait(timeout=86_400)


def environment(**more: Any) -> Environment:
    return Environment(
        workflows=[checkout], activities=[book, slow_booking], jobs=[note, slow], store="postgres", **more
    )


async def execute(env: Environment, statement: str) -> list[Any]:
    connection = await asyncpg.connect(env.url)
    try:
        return list(await connection.fetch(statement))
    finally:
        await connection.close()


@in_virtual_time
async def test_a_transactional_activity_is_tested_over_months() -> None:
    async with environment() as env:
        await execute(env, "CREATE TABLE orders (id integer)")
        before, begun = env.now, time.monotonic()
        handle = await env.start(checkout, 7)
        await env.settle()
        assert await (await env.get("note-7", note)).result() == "noted 7"
        await env.crash()
        await env.advance(timedelta(days=30, hours=1))
        assert (await handle.describe()).state is RunState.WAITING
        await handle.signal(go, 5)
        assert await handle.result() == 5
        assert env.now - before < timedelta(days=30, hours=2)
        assert await execute(env, "SELECT id FROM orders") == [(7,)]
        assert time.monotonic() - begun < 60  # and not a month


@in_virtual_time
async def test_times_in_the_database_are_the_tests() -> None:
    async with environment() as env:
        before = env.now
        await env.advance(timedelta(days=3))
        handle = await env.enqueue(note, 1)
        await handle.result()
        found = await handle.describe()
        assert found.created_at == found.closed_at == before + timedelta(days=3)


@in_virtual_time
async def test_a_transaction_may_take_virtual_time() -> None:
    @workflow
    async def slowly() -> int:
        return await slow_booking(1)

    async with Environment(workflows=[slowly], activities=[slow_booking], store="postgres") as env:
        await execute(env, "CREATE TABLE orders (id integer)")
        before = env.now
        assert await env.run(slowly) == 1
        assert env.now - before == timedelta(seconds=5)
        assert await execute(env, "SELECT id FROM orders ORDER BY id") == [(1,), (2,)]


@in_virtual_time
async def test_schedules_limits_and_timeouts_go_by_virtual_time() -> None:
    async with environment(queues=[Queue("default", concurrency=1)]) as env:
        await env.client.schedules.create(Schedule("hourly", every(3600), note, 1))
        await env.advance(timedelta(hours=5, minutes=1))
        assert await env.client.count(kind="job", state="completed") == 5
        await env.schedules.delete("hourly")
        first, second = await env.enqueue(slow), await env.enqueue(slow)
        await env.advance(60)
        assert [(await one.describe()).state for one in (first, second)] == [RunState.RUNNING, RunState.PENDING]
        await second.result()
        late = await env.start(checkout, 1, timeout=10.0, delay=5.0)
        await late.pause()
        await env.advance(60)
        assert (await late.describe()).state is RunState.PAUSED


@in_virtual_time
async def test_starts_and_signals_in_a_transaction_of_the_tests_own_are_heard() -> None:
    async with environment() as env:
        await env.advance(86_400)
        connection = await asyncpg.connect(env.url)
        async with connection.transaction():
            kept = await env.client.enqueue(note, 1, transaction=connection)
        await connection.close()
        assert await kept.result() == "noted 1"
        found = await kept.describe()
        assert found.created_at is not None
        # A connection of the test's own is open: here a second is a second, and it was open for a moment.
        assert abs(env.now - found.created_at) < timedelta(minutes=1)


async def test_on_an_ordinary_event_loop_it_is_the_store_as_it_is() -> None:
    async with environment(grace=1.0) as env:
        await execute(env, "CREATE TABLE orders (id integer)")
        handle = await env.enqueue(note, 3)
        assert await handle.result(30) == "noted 3"


def test_each_environment_has_a_database_of_its_own() -> None:
    async def main() -> list[str]:
        urls = []
        for _ in range(2):
            async with environment() as env:
                await env.enqueue(note, 1, id="the same")
                assert await env.client.count(kind="job") == 1
                urls.append(env.url)
        return urls

    first, second = run(main())
    assert first != second
    with pytest.raises(asyncpg.InvalidCatalogNameError):
        asyncio.run(asyncpg.connect(first))
