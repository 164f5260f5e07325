"""Runs of dead workers: a violation only when somebody was there to set them free, and had the time."""

import asyncio

from batuta.ids import new_run_id
from batuta.journal.records import NewRun, WorkerInfo
from batuta.stores.memory import MemoryStore
from batuta.verify import verify


async def store_with_a_dead_worker() -> MemoryStore:
    store = MemoryStore()
    await store.open()
    await store.register(worker("dead"))
    await store.start(NewRun(run_id=new_run_id(), id="left behind", name="w"))
    assert len((await store.claim(worker("dead"), 1)).stored_runs) == 1
    store.shift_clock(60)
    return store


def worker(id: str) -> WorkerInfo:
    return WorkerInfo(worker_id=id, queues=["default"], code={"w": "1"})


async def test_a_run_of_a_dead_worker_waits_for_the_next_worker() -> None:
    store = await store_with_a_dead_worker()
    assert (await verify(store, patience=0)).holds


async def test_a_run_of_a_dead_worker_that_no_live_one_sets_free_is_found() -> None:
    store = await store_with_a_dead_worker()
    await store.register(worker("idle"))
    report = await verify(store, patience=0)
    assert [(one.invariant, one.id) for one in report.violations] == [("I12", "left behind")]
    assert "dead" in report.violations[0].what


async def test_a_run_of_a_worker_that_is_not_registered_is_found() -> None:
    store = await store_with_a_dead_worker()
    await store.register(worker("idle"))
    store._tables.workers.pop("dead")
    assert (await verify(store, patience=0)).found["I12"] == 1


async def test_a_run_that_is_set_free_while_it_is_waited_for_is_no_violation() -> None:
    store = await store_with_a_dead_worker()
    await store.register(worker("idle"))
    checking = asyncio.ensure_future(verify(store, patience=600))
    await asyncio.sleep(0)
    async with store.heartbeat("idle") as heartbeat:
        assert (await heartbeat.beat(worker("idle"), reap=True)).reaped == 1
    assert (await checking).holds
