"""The server is restarted under a store and its workers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import pytest

from batuta import activity, connect, workflow
from batuta.errors import OutcomeUnknown, StoreError, StoreUnavailable
from batuta.stores.postgres import PostgresStore
from batuta.testing.conformance.commits.hints import Ear
from batuta.testing.conformance.kit import live_worker, new_run, start_owned
from batuta.testing.servers import PostgresServer, StopMode

PATIENCE = 40.0
T = TypeVar("T")


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer(settings={"synchronous_commit": "on"}) as started:
        yield started


async def in_the_end(call: Callable[[], Awaitable[T]]) -> T:
    """Call until the store is back."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await call()
            except StoreError:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_a_store_connects_again_and_has_lost_nothing(server: PostgresServer, mode: StopMode) -> None:
    url = server.create_database()
    store = PostgresStore(url)
    await store.migrate()
    await store.open()
    ear = Ear(store)
    await ear.hears(lambda hint: hint.closed is None)
    worker = await live_worker(store)
    pen = await start_owned(store, worker)
    ear.hints.clear()
    await asyncio.to_thread(server.stop, mode)
    with pytest.raises(StoreUnavailable):
        await store.get_run(pen.run_id)
    with pytest.raises((StoreUnavailable, OutcomeUnknown)):
        await store.commit(worker.worker_id, [pen.change(1)])
    await asyncio.to_thread(server.start)
    assert (await in_the_end(lambda: store.get_run(pen.run_id))).head == 0
    assert await in_the_end(lambda: pen.write(store, worker)) is None
    await ear.hears(lambda hint: hint.closed is None)
    await store.start(new_run())
    await store.close()


begun, gate = asyncio.Event(), asyncio.Event()


@activity
async def step(n: int) -> int:
    if n == 1:
        begun.set()
        await gate.wait()
    return n


@workflow
async def walk() -> list[int]:
    return [await step(n) for n in range(3)]


async def test_a_worker_goes_on_with_its_runs_after_a_restart(server: PostgresServer) -> None:
    url = server.create_database()
    async with connect(url) as client, client.worker(workflows=[walk], activities=[step], grace=1.0):
        handle = await client.start(walk)
        await begun.wait()
        await asyncio.to_thread(server.stop)
        gate.set()
        await asyncio.to_thread(server.start)
        assert await handle.result(PATIENCE) == [0, 1, 2]
        assert [line.ord for line in await handle.journal()] == [0, 1, 2, 3]
