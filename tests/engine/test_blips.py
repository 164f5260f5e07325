"""A worker that loses the database for less than its lease keeps its runs."""

import asyncio

import pytest

from batuta import activity, connect, workflow
from batuta.engine.worker.worker import Worker
from batuta.journal.records import WorkerInfo
from batuta.stores.postgres import PostgresStore
from batuta.testing.conformance.kit import ended_process
from chaos.wire import Wire
from tests.engine.arena import until

executed: list[str] = []
gates: list[asyncio.Event] = []


@activity
async def waits(text: str) -> str:
    executed.append(text)
    await gates[0].wait()
    return text


@workflow
async def greets(text: str) -> str:
    return await waits(text)


@pytest.fixture(autouse=True)
def _afresh(real_time: None) -> None:
    executed.clear()
    gates[:] = [asyncio.Event()]


async def beats_of(store: PostgresStore, worker: Worker, count: int) -> None:
    """Wait for so many heartbeats of the worker."""
    assert worker.session is not None
    worker_id, seen = worker.session.info.worker_id, set[int]()

    async def reached() -> bool:
        seen.update(one.lease_until for one in await store.workers() if one.worker_id == worker_id)
        return len(seen) > count

    await until(reached)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["same machine", "another machine"])
async def test_a_blip_shorter_than_the_lease_ends_nothing(
    postgres_url: str, elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"workflows": [greets], "activities": [waits], "heartbeat": 0.1, "lease": 60.0}
    if elsewhere:
        monkeypatch.setattr("batuta.engine.worker.session.this_process", lambda: "elsewhere boot 1 2")
    async with Wire(postgres_url) as wire, connect(wire.url) as near, connect(postgres_url) as far:
        async with near.worker(**settings) as worker, far.worker(**settings) as other:  # type: ignore[arg-type]
            handle = await near.start(greets, "hello")
            assert isinstance(worker, Worker)
            assert isinstance(other, Worker)
            await until(_has_begun)
            before = worker.session
            store = PostgresStore(postgres_url)
            await store.open()
            wire.cut()
            await beats_of(store, other, 10)  # which sees that the lock is free, again and again
            wire.mend()
            await beats_of(store, worker, 2)
            await store.close()
            gates[0].set()
            assert await handle.result(20) == "hello"
            assert worker.session is before
            assert executed == ["hello"]


async def _has_begun() -> bool:
    return bool(executed)


async def test_a_process_that_was_killed_is_noticed_long_before_its_lease_is_over(postgres_url: str) -> None:
    store = PostgresStore(postgres_url)
    await store.open()
    dead = WorkerInfo(worker_id="dead", queues=["x"], code={}, lease=10**12, process=ended_process())
    await store.register(dead)
    async with connect(postgres_url) as client, client.worker(workflows=[greets], activities=[waits]):

        async def is_forgotten() -> bool:
            return "dead" not in [one.worker_id for one in await store.workers()]

        await until(is_forgotten)
    await store.close()
